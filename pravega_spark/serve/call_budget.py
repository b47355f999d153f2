"""The storage calls that one poll of the server may make, counted at the store itself.

Whatever a root holds, a poll makes no more calls than this: before each call the looks of a poll
are charged for it, and what would exceed the budget is not begun. It ends with BudgetSpent, and
its turn comes first in the next poll. A log that is interrupted so keeps what it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, TypeVar

import pyarrow as pa

from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.base import Entry, PutOutcome, WrappedStore
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import OPENED_COMMITS

POLL_CALLS: Final = 600
"""The most storage calls of a poll. It is above OPENED_COMMITS: so any log can be opened in one."""
GET_CALLS: Final = 600
"""The most calls that all lists of the page together may make in the time of a poll."""
assert OPENED_COMMITS + 16 <= POLL_CALLS

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class BudgetSpent(Exception):
    """A look needs more calls than are left; nothing is wrong, its turn comes again."""


class Allowance:
    """What is left of a budget for some looks, in any threads; thread-safe."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self._lock = new_lock()

    def charge(self, calls: int) -> None:
        """Take calls. Raises BudgetSpent, and takes none, if so many are not left."""
        with self._lock:
            if calls > self.left:
                raise BudgetSpent
            self.left -= calls

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Charge this allowance for the calls of the block, in this thread."""
        token = _present.set(self)
        try:
            yield
        finally:
            _present.reset(token)


_present: ContextVar[Allowance | None] = ContextVar("allowance", default=None)


class CallBudget:
    """The allowances of one server: of each poll, and of the lists of the page beside it."""

    def __init__(self, runtime: Runtime, poll_seconds: float) -> None:
        """Begin with whole allowances."""
        self._runtime, self._seconds = runtime, poll_seconds
        self._lock = new_lock()
        self._gets, self._gets_at = Allowance(GET_CALLS), runtime.monotonic()

    def of_poll(self) -> Allowance:
        """Return the allowance of a poll that begins now."""
        return Allowance(POLL_CALLS)

    def of_gets(self) -> Allowance:
        """Return the allowance that all lists share until a poll's time has passed."""
        with self._lock:
            now = self._runtime.monotonic()
            if now - self._gets_at >= self._seconds:
                self._gets, self._gets_at = Allowance(GET_CALLS), now
            return self._gets


class BudgetedStore(WrappedStore):
    """A store whose calls are charged to the allowance of the thread that makes them.

    A call without an allowance is made as it is: a page that a person opens is answered.
    """

    def time_ms(self) -> int:
        """Return the time by the storage's clock."""
        _charge(1)
        return self.inner.time_ms()

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written."""
        _charge(1)
        return self.inner.modified_ms(key)

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        _charge(1)
        return self.inner.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the object."""
        _charge(1)
        return self.inner.get_range(key, start, end)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects; each counts."""
        _charge(len(keys))
        return self.inner.get_many(keys)

    def exists(self, key: str) -> bool:
        """Return whether the object exists."""
        _charge(1)
        return self.inner.exists(key)

    def put_if_absent(
        self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
    ) -> PutOutcome:
        """Create the object unless one exists."""
        _charge(1)
        return self.inner.put_if_absent(key, data, after=after, staged=staged)

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object."""
        _charge(1)
        self.inner.put(key, data, durable=durable)

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects; each counts."""
        _charge(len(objects))
        self.inner.put_many(objects)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects; each counts."""
        _charge(len(objects))
        self.inner.stage(objects)

    def writer(self, key: str) -> AbstractContextManager[pa.NativeFile]:
        """Return a context whose file becomes the object."""
        _charge(1)
        return self.inner.writer(key)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; each counts."""
        named = list(keys)
        _charge(len(named))
        self.inner.delete(named)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete unfinished files."""
        _charge(1)
        return self.inner.discard_unfinished(prefix, older_ms, deep=deep)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders below ``prefix``."""
        _charge(1)
        return self.inner.folders(prefix)

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return all objects below the folder."""
        _charge(1)
        return self.inner.list(prefix, after=after, before=before)

    def open(self, key: str) -> pa.NativeFile:
        """Open the object for random reads."""
        _charge(1)
        return self.inner.open(key)

    def make_durable(self, prefix: str) -> None:
        """Make the visible objects of a folder durable; no request on an object store."""
        self.inner.make_durable(prefix)


def _charge(calls: int) -> None:
    allowance = _present.get()
    if allowance is not None:
        allowance.charge(calls)


class _ChargedRuntime(Runtime):
    """The system's runtime, whose threads charge the allowance of the thread that they help."""

    def each(self, function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
        allowance = _present.get()
        if allowance is None:
            return super().each(function, items)

        def charged(item: _In) -> _Out:
            with allowance.applied():
                return function(item)

        return super().each(charged, items)


def charged_runtime(runtime: Runtime) -> Runtime:
    """Return a runtime with the same clocks whose threads charge the allowance of their caller.

    One that is not the system's, such as a simulation's, has no other threads.
    """
    return _ChargedRuntime() if runtime is SYSTEM else runtime
