"""What handles have in common: the end of a ``with`` block, and the refusal to be pickled."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypeVar

from pravega_spark.errors import PravegaSparkError

_Handle = TypeVar("_Handle")


class _Closable(Protocol):
    def close(self) -> None: ...


class _Committable(Protocol):
    @property
    def _done(self) -> bool:
        """Whether a call of this handle has ended it."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class ClosedByBlock:
    """A handle whose ``with`` block closes it, also after an exception of the body.

    That exception propagates; it hides a failure to close.
    """

    __slots__ = ()

    def __enter__(self: _Handle) -> _Handle:
        return self

    def __exit__(
        self: _Closable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(PravegaSparkError):
                self.close()


class CommittedByBlock:
    """A transaction whose ``with`` block commits it at its end, and aborts it if the body raises.

    A transaction that the body has ended is left as it is. An exception of the body propagates; it
    hides a failure to abort.
    """

    __slots__ = ()

    def __enter__(self: _Handle) -> _Handle:
        return self

    def __exit__(
        self: _Committable,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or abort if the body raised."""
        if self._done:
            return
        if kind is None:
            self.commit()
        else:
            with contextlib.suppress(PravegaSparkError):
                self.abort()


class NotPicklable:
    """An object of one process: pickling it raises TypeError with the text that its class gives."""

    __slots__ = ()

    _NOT_PICKLABLE: ClassVar[str]
    """What the error says: the object, and what to send to another process instead."""

    def __reduce__(self) -> Any:
        """Refuse pickling."""
        raise TypeError(self._NOT_PICKLABLE)
