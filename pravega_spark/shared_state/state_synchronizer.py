"""StateSynchronizer: a state that many processes change, each on what it has read last.

The values of a state synchronizer's stream: an initial state, or a list of updates.

``I`` and the bytes of a state; or ``U`` and, for each update, its length (4 bytes, big-endian) and
its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.encode import Serializer, json_serializer
from pravega_spark.errors import IllegalState, InvalidInput, TooBusy, TruncatedData
from pravega_spark.event_reader import json_deserializer
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.shared_state.revisioned_stream import (
    Revision,
    RevisionedStream,
    first_revision,
    write_state,
)
from pravega_spark.values.checks import check_function, check_list
from pravega_spark.values.events import Deserializer
from pravega_spark.values.handles import ClosedByBlock, NotPicklable
from pravega_spark.values.limits import COMMIT_ATTEMPTS

_INITIAL, _UPDATES = b"I", b"U"
_LENGTH = struct.Struct(">I")


def encode_initial(state: bytes) -> bytes:
    """Return the value that starts over with a state."""
    return _INITIAL + state


def encode_updates(updates: Sequence[bytes]) -> bytes:
    """Return the value of updates that are applied together."""
    return _UPDATES + b"".join(_LENGTH.pack(len(update)) + update for update in updates)


def is_initial(value: bytes) -> bool:
    """Return whether a value starts over; raise IllegalState if no synchronizer wrote it."""
    if value[:1] not in (_INITIAL, _UPDATES):
        raise IllegalState(
            f"the stream holds an event that no state synchronizer wrote: {value[:32]!r}; use a "
            "separate stream for shared state."
        )
    return value[:1] == _INITIAL


def decode_initial(value: bytes) -> bytes:
    """Return the state of an initial value."""
    return value[1:]


def decode_updates(value: bytes) -> Iterator[bytes]:
    """Yield the updates of a value."""
    at = 1
    while at < len(value):
        (size,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size + size
        yield value[at - size : at]


_Result = TypeVar("_Result")

TRUNCATED_READS = 32
"""How often a read begins again because the stream was truncated under it."""


@dataclass(frozen=True, slots=True)
class _Local(Generic[_Result]):
    """What this process knows: a state, the revision after its last update, and bytes since."""

    revision: Revision
    state: _Result
    bytes_since_initial: int


class StateSynchronizer(ClosedByBlock, NotPicklable):
    """A state that is shared by all who open the same stream; thread-safe.

    Updates are values of a revisioned stream. Each process applies them in their order with the
    same function, so all come to the same states. ``apply(state, update)`` returns the next state
    and must depend on nothing else; it should not change ``state``, which callers hold. Made by
    ``StreamManager.state_synchronizer``.
    """

    _NOT_PICKLABLE = "a StateSynchronizer cannot be pickled; open it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        apply: Callable[[Any, Any], Any],
        *,
        serializer: Serializer | None = None,
        deserializer: Deserializer | None = None,
        life: int | None = None,
    ) -> None:
        """Open the stream; no state is read before it is needed.

        States and updates are JSON unless other functions are given.
        """
        if check_function("apply", apply) is None:
            raise InvalidInput("apply is a function of a state and an update; got None.")
        self._apply = apply
        self._encode = check_function("a serializer", serializer) or json_serializer
        self._decode = check_function("a deserializer", deserializer) or json_deserializer
        self._log = RevisionedStream(stream, life=life)
        self._name = stream.name
        self._guard = ProcessGuard(f"the shared state {stream.name}")
        self._lock = new_rlock()
        """Held during a call, so that this process does not race with itself."""
        self._local: _Local[Any] | None = None

    # ------------------------------------------------------------------------------ the state

    def initialize(self, state: Any) -> bool:
        """Give the stream its first state; False if it has one, which is then fetched.

        Raises IllegalState if its state was truncated away.
        """
        self._guard.check()
        with self._lock:
            value = encode_initial(self._bytes(state))
            written = write_state(self._log, first_revision(self._log), value)
            if written is None:
                self.fetch_updates()
                self._known()  # what is there must begin with a state
            else:
                self._adopt(self._next(None, written, value))
            return written is not None

    def get_state(self) -> Any:
        """Return the state as this process knows it, without a call; None before it knows one."""
        local = self._local
        return None if local is None else local.state

    @property
    def revision(self) -> Revision | None:
        """The revision of the state that this process knows."""
        local = self._local
        return None if local is None else local.revision

    @property
    def bytes_written_since_compaction(self) -> int:
        """The bytes of the updates since the last compaction, as far as this process knows."""
        local = self._local
        return 0 if local is None else local.bytes_since_initial

    def fetch_updates(self) -> None:
        """Apply what others have written since. The state never goes back.

        Raises IllegalState if the state was truncated away and this process does not know it.
        """
        self._guard.check()
        with self._lock:
            known = self._local
            for _ in range(TRUNCATED_READS):
                try:
                    found = self._read_on(known)
                except TruncatedData:
                    known = None  # behind by more than a compaction: begin again at the mark
                else:
                    self._adopt(found)
                    return
            raise TooBusy(
                f"the state of {self._name} was compacted {TRUNCATED_READS} times while it was "
                "read; compact less often, and call again."
            )

    # ---------------------------------------------------------------------------- its changes

    def update_state(self, generator: Callable[[Any, list[Any]], _Result]) -> _Result:
        """Append what ``generator(state, updates)`` puts into the list ``updates``, atomically.

        The generator is called with the newest state; if another process was first, again with
        the next one. So it must have no effect but its list and its result, and the result of the
        last call is returned. Without updates nothing is written. Raises IllegalState before
        :meth:`initialize`.
        """
        self._guard.check()
        with self._lock:
            for _ in range(COMMIT_ATTEMPTS):
                local = self._known()
                updates: list[Any] = []
                result = generator(local.state, updates)
                if not updates:
                    return result
                if self._write(local, self._encoded(updates)) is not None:
                    return result
                self.fetch_updates()
            raise TooBusy(
                f"an update of the state of {self._name} lost {COMMIT_ATTEMPTS} races; nothing was "
                "written. Try again."
            )

    def update_state_unconditionally(self, updates: Iterable[Any]) -> None:
        """Append updates to the state as it is; :meth:`fetch_updates` then applies them.

        Raises IllegalState before :meth:`initialize`.
        """
        self._guard.check()
        with self._lock:
            self._known()
            wanted = check_list("updates", updates)
            if wanted:
                self._log.write_unconditionally(self._encoded(wanted))

    def compact(self, compactor: Callable[[Any], Any] = lambda state: state) -> None:
        """Write the state as a new beginning, mark it, and delete what is before the old mark.

        ``compactor`` returns an equal state to write, by default the state itself. One generation
        of updates stays for processes that are behind. Raises IllegalState before
        :meth:`initialize`, and HeldBySubscriber.
        """
        self._guard.check()
        with self._lock:
            for _ in range(COMMIT_ATTEMPTS):
                local = self._known()
                value = encode_initial(self._bytes(compactor(local.state)))
                if self._write(local, value) is not None:
                    break
                self.fetch_updates()
            else:
                raise TooBusy(
                    f"a compaction of the state of {self._name} lost {COMMIT_ATTEMPTS} races; "
                    "nothing was written. Try again."
                )
        self._move_mark(local.revision)

    def _move_mark(self, mark: Revision) -> None:
        old = self._log.get_mark()
        if old is not None and old >= mark:  # another compaction was later
            return
        if self._log.compare_and_set_mark(old, mark) and old is not None:
            self._log.truncate_to_revision(old)

    # --------------------------------------------------------------------------------- inside

    def _encoded(self, updates: Iterable[Any]) -> bytes:
        return encode_updates([self._bytes(update) for update in updates])

    def _bytes(self, value: Any) -> bytes:
        data = self._encode(value)
        if not isinstance(data, bytes):
            raise InvalidInput(
                f"the serializer of the state of {self._name} must return bytes, not "
                f"{type(data).__name__}."
            )
        return data

    def _known(self) -> _Local[Any]:
        if self._local is None:
            self.fetch_updates()
        if self._local is None:
            raise IllegalState(
                f"the state of {self._name} was never initialized; call initialize first."
            )
        return self._local

    def _write(self, local: _Local[Any], value: bytes) -> Revision | None:
        """Write a value on top of what is known, and apply it; None if another was first."""
        if is_initial(value):
            written = write_state(self._log, local.revision, value)
        else:
            written = self._log.write_conditionally(local.revision, value)
        if written is not None:
            self._adopt(self._next(local, written, value))
        return written

    def _read_on(self, known: _Local[Any] | None) -> _Local[Any] | None:
        """Return what is known after the newest value; of nothing, from the mark on."""
        start = known.revision if known else self._start()
        for revision, value in self._log.read_from(start):
            if known is None and not is_initial(value):
                raise self._gone(f"begins with an update, before {revision}")
            known = self._next(known, revision, value)
        if known is None and start.offset:
            raise self._gone(f"is gone: nothing lies after {start}")
        return known

    def _gone(self, what: str) -> IllegalState:
        return IllegalState(
            f"the state of {self._name} {what}. Its last state was truncated away without a "
            "compaction. Call compact in a process that still knows it, restore the stream, or "
            "begin with a new one."
        )

    def _start(self) -> Revision:
        """Return where a process that knows nothing begins: the mark, or the oldest revision."""
        mark, oldest = self._log.get_mark(), self._log.fetch_oldest_revision()
        return oldest if mark is None else max(mark, oldest)

    def _next(self, local: _Local[Any] | None, revision: Revision, value: bytes) -> _Local[Any]:
        """Return what is known after one more value."""
        if is_initial(value):
            return _Local(revision, self._decode(decode_initial(value)), 0)
        assert local is not None, f"{revision} is an update before any state"
        state = local.state
        for update in decode_updates(value):
            state = self._apply(state, self._decode(update))
        return _Local(revision, state, local.bytes_since_initial + len(value))

    def _adopt(self, found: _Local[Any] | None) -> None:
        known = self._local
        if found is not None and (known is None or found.revision >= known.revision):
            self._local = found

    # ----------------------------------------------------------------------------------- life

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._log.is_closed

    def close(self) -> None:
        """Stop writing. A second call does nothing."""
        self._log.close()
