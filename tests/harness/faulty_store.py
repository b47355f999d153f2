"""A wrapper around any store that injects faults by a plan."""

from __future__ import annotations

import collections
import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from bench.harness.observed_store import ObservedStore
from pravega_spark.engine.store.base import Entry, PutOutcome, Store
from pravega_spark.errors import StoreError


class Fault(enum.Enum):
    """A fault of one operation."""

    REFUSE = "refuse"
    """The store raises an error and changes nothing."""
    LOSE_ANSWER = "lose answer"
    """The store makes the change, but the caller gets no answer."""
    LOSE_REQUEST = "lose request"
    """The store does not make the change, and the caller gets no answer."""
    RESEND = "resend"
    """The client resends after a lost answer, so the caller's own object answers EXISTS."""
    DELAY = "delay"
    """The caller gets no answer; :meth:`FaultyStore.deliver` makes the change later."""
    TORN = "torn"
    """The store writes half of the bytes under the key; then the answer is lost."""
    BIT_FLIP = "bit flip"
    """One bit of the written or read bytes flips."""
    SHORT_READ = "short read"
    """A read returns the first half of the bytes."""
    STALE_LIST = "stale list"
    """A listing or ``exists`` misses the newest object."""
    PARTIAL_LIST = "partial list"
    """A listing shows every second object or folder, starting with the second."""


Plan = Callable[[str, str], Fault | Exception | None]
"""Returns the fault of a call, or None, given the operation's name and its key (or prefix).

The store calls the plan before the operation in the caller's thread, so a plan may also block. If
the plan returns an exception, the store raises it instead of the operation.
"""


class FaultyStore(ObservedStore):
    """A wrapper around a store; ``plan`` chooses the fault of each call.

    ``fired`` counts each (operation, fault), so a test can require that every fault occurred.
    """

    def __init__(self, inner: Store, plan: Plan):
        """Wrap ``inner``; direct calls of ``inner`` have no faults."""
        super().__init__(inner)
        self.plan = plan
        self.fired: collections.Counter[tuple[str, Fault]] = collections.Counter()
        self._delayed: collections.deque[Callable[[], object]] = collections.deque()
        self._newest: str | None = None
        self._lock = threading.Lock()

    def time_ms(self) -> int:
        """Return the time of the wrapped store."""
        self._fault("time_ms", "")
        return self.inner.time_ms()

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written."""
        self._fault("modified_ms", key)
        return self.inner.modified_ms(key)

    @property
    def delayed(self) -> int:
        """The number of delayed changes that wait for :meth:`deliver`."""
        return len(self._delayed)

    def deliver(self) -> int:
        """Make the delayed changes, oldest first; return their number."""
        count = 0
        while self._delayed:
            self._delayed.popleft()()
            count += 1
        return count

    def get(self, key: str) -> bytes:
        """Return the object, perhaps spoiled."""
        fault = self._fault("get", key)
        return _spoil(self.inner.get(key), fault)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the object, perhaps spoiled."""
        fault = self._fault("get_range", key)
        return _spoil(self.inner.get_range(key, start, end), fault)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects; each key has its own fault."""
        faults = [self._fault("get_many", key) for key in keys]
        found = self.inner.get_many(keys)
        return [
            data if data is None else _spoil(data, fault)
            for data, fault in zip(found, faults, strict=True)
        ]

    def exists(self, key: str) -> bool:
        """Return whether the object exists, perhaps by a stale answer."""
        stale = self._fault("exists", key) is Fault.STALE_LIST
        return self.inner.exists(key) and not (stale and key == self._newest)

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        """Create the object; with a fault it may not be created, or the answer may be lost."""
        fault = self._fault("put_if_absent", key)
        if fault is None:
            return self._created(key, self.inner.put_if_absent(key, data, **options))
        if fault is Fault.DELAY:
            self._delayed.append(lambda: self.inner.put_if_absent(key, data, **options))
        elif fault is not Fault.LOSE_REQUEST:
            answer = self._created(
                key, self.inner.put_if_absent(key, _spoil(data, fault), **options)
            )
            if fault is Fault.RESEND:
                return PutOutcome.EXISTS
            if fault is Fault.BIT_FLIP:
                return answer
        return PutOutcome.UNKNOWN

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Write the object; raises StoreError if the answer is lost."""
        fault = self._fault("put", key)
        content = bytes(data)
        if fault is Fault.DELAY:
            self._delayed.append(lambda: self.inner.put(key, content, durable=durable))
        elif fault is not Fault.LOSE_REQUEST:
            self.inner.put(key, _spoil(content, fault), durable=durable)
            self._newest = key
        _no_answer("put", key, fault)

    @contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a file whose object is written at the end, as by a put of that fault."""
        fault = self._fault("writer", key)
        sink = pa.BufferOutputStream()
        yield sink
        content = sink.getvalue().to_pybytes()
        if fault is Fault.DELAY:
            self._delayed.append(lambda: _write(self.inner, key, content))
        elif fault is not Fault.LOSE_REQUEST:
            _write(self.inner, key, _spoil(content, fault))
            self._newest = key
        _no_answer("writer", key, fault)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; the first fault among the keys applies to the whole call."""
        doomed = list(keys)
        fault = next((f for f in (self._fault("delete", key) for key in doomed) if f), None)
        if fault is Fault.DELAY:
            self._delayed.append(lambda: self.inner.delete(doomed))
        elif fault is not Fault.LOSE_REQUEST:
            self.inner.delete(doomed)
        _no_answer("delete", ", ".join(doomed), fault)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete unfinished writes of killed processes."""
        self._fault("discard_unfinished", prefix)
        return self.inner.discard_unfinished(prefix, older_ms, deep=deep)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders."""
        partial = self._fault("folders", prefix) is Fault.PARTIAL_LIST
        return self.inner.folders(prefix)[1 if partial else 0 :: 2 if partial else 1]

    def open(self, key: str) -> pa.NativeFile:
        """Open the object, perhaps spoiled."""
        fault = self._fault("open", key)
        if fault is None:
            return self.inner.open(key)
        return pa.BufferReader(_spoil(self.inner.get(key), fault))

    def make_durable(self, prefix: str) -> None:
        """Make the folder durable."""
        self._fault("make_durable", prefix)
        self.inner.make_durable(prefix)

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return the objects, perhaps by a stale or partial listing."""
        fault = self._fault("list", prefix)
        entries = self.inner.list(prefix, after=after, before=before)
        if fault is Fault.PARTIAL_LIST:
            return entries[1::2]
        stale = fault is Fault.STALE_LIST
        return [entry for entry in entries if not (stale and entry.key == self._newest)]

    def _created(self, key: str, answer: PutOutcome) -> PutOutcome:
        if answer is PutOutcome.CREATED:
            self._newest = key
        return answer

    def _fault(self, operation: str, key: str) -> Fault | None:
        decided = self.plan(operation, key)
        if decided is None:
            return None
        fault = Fault.REFUSE if isinstance(decided, Exception) else decided
        with self._lock:
            self.fired[operation, fault] += 1
        if isinstance(decided, Exception):
            raise decided
        if fault is Fault.REFUSE:
            raise StoreError(f"{self.url}/{key}: {operation} refused by the plan.")
        return fault


def _write(store: Store, key: str, data: bytes) -> None:
    with store.writer(key) as file:
        file.write(data)


def _spoil(data: bytes, fault: Fault | None) -> bytes:
    middle = len(data) // 2
    if fault in (Fault.TORN, Fault.SHORT_READ):
        return data[:middle]
    if fault is Fault.BIT_FLIP and data:
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data


def _no_answer(operation: str, key: str, fault: Fault | None) -> None:
    if fault not in (None, Fault.BIT_FLIP):
        raise StoreError(f"{key}: no answer to {operation}; the change may or may not exist.")
