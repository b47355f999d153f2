"""Any store with faults put in: what may go wrong at the seam, on purpose and by plan."""

from __future__ import annotations

import collections
import enum
import threading
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from pravega_spark.engine.store.base import Dated, Entry, Put, Store
from pravega_spark.errors import StoreError


class Fault(enum.Enum):
    """What goes wrong with one operation."""

    REFUSE = "refuse"
    """The store refuses with an error; nothing is done."""
    LOSE_ANSWER = "lose answer"
    """The change is made, and nobody tells."""
    LOSE_REQUEST = "lose request"
    """The change is not made, and nobody tells."""
    RESEND = "resend"
    """A client sends the request again after its answer was lost: our own object EXISTS."""
    DELAY = "delay"
    """Nobody tells, and the change is made later, by :meth:`FaultyStore.deliver`."""
    TORN = "torn"
    """Half of the bytes are written under the name, then the answer is lost."""
    BIT_FLIP = "bit flip"
    """One bit of what is written or read is another one."""
    SHORT_READ = "short read"
    """A read gives the first half of the bytes."""
    STALE_LIST = "stale list"
    """A listing or ``exists`` misses what was created last."""
    PARTIAL_LIST = "partial list"
    """A listing shows every second object or folder, beginning with the second."""


Plan = Callable[[str, str], Fault | Exception | None]
"""Given an operation's name and its key (or prefix): what goes wrong with this call, if anything.

It is called before the operation, in the caller's thread, so a plan may also block there. An
exception is raised instead of the operation.
"""


class FaultyStore:
    """A store around another whose calls go wrong as ``plan`` says.

    ``fired`` counts each (operation, fault), so that a test can demand that every fault was met.
    """

    def __init__(self, inner: Store, plan: Plan):
        """Wrap ``inner``, which stays usable beside and knows nothing of the faults."""
        self.inner = inner
        self.plan = plan
        self.fired: collections.Counter[tuple[str, Fault]] = collections.Counter()
        self._delayed: collections.deque[Callable[[], object]] = collections.deque()
        self._newest: str | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The URL of the wrapped store."""
        return self.inner.url

    @property
    def is_local(self) -> bool:
        """As the wrapped store."""
        return self.inner.is_local

    @property
    def has_clock(self) -> bool:
        """As the wrapped store."""
        return self.inner.has_clock

    @property
    def dated(self) -> Dated | None:
        """As the wrapped store."""
        return self.inner.dated

    def time_ms(self) -> int:
        """Return the time of the wrapped store."""
        self._fault("time_ms", "")
        return self.inner.time_ms()

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was written last."""
        self._fault("modified_ms", key)
        return self.inner.modified_ms(key)

    @property
    def storage(self) -> str:
        """As the wrapped store."""
        return self.inner.storage

    def stamp(self, key: str) -> object:
        """As the wrapped store."""
        return self.inner.stamp(key)

    def hold_to(self, check: Callable[[], None]) -> None:
        """As the wrapped store."""
        self.inner.hold_to(check)

    @property
    def delayed(self) -> int:
        """How many delayed changes wait for :meth:`deliver`."""
        return len(self._delayed)

    def deliver(self) -> int:
        """Make the delayed changes, oldest first; return how many there were."""
        count = 0
        while self._delayed:
            self._delayed.popleft()()
            count += 1
        return count

    def get(self, key: str) -> bytes:
        """Return the object, or what is left of it."""
        fault = self._fault("get", key)
        return _spoil(self.inner.get(key), fault)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects, each with a fault of its own."""
        faults = [self._fault("get_many", key) for key in keys]
        found = self.inner.get_many(keys)
        return [
            data if data is None else _spoil(data, fault)
            for data, fault in zip(found, faults, strict=True)
        ]

    def exists(self, key: str) -> bool:
        """Tell whether the object exists, or did a moment ago."""
        stale = self._fault("exists", key) is Fault.STALE_LIST
        return self.inner.exists(key) and not (stale and key == self._newest)

    def put_if_absent(self, key: str, data: bytes, *, after: str | None = None) -> Put:
        """Create the object, or not, or say nothing of it."""
        fault = self._fault("put_if_absent", key)
        if fault is None:
            return self._created(key, self.inner.put_if_absent(key, data, after=after))
        if fault is Fault.DELAY:
            self._delayed.append(lambda: self.inner.put_if_absent(key, data, after=after))
        elif fault is not Fault.LOSE_REQUEST:
            answer = self._created(
                key, self.inner.put_if_absent(key, _spoil(data, fault), after=after)
            )
            if fault is Fault.RESEND:
                return Put.EXISTS
            if fault is Fault.BIT_FLIP:
                return answer
        return Put.UNKNOWN

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Write the object, or not, or raise StoreError for an answer that never came."""
        fault = self._fault("put", key)
        content = bytes(data)
        if fault is Fault.DELAY:
            self._delayed.append(lambda: self.inner.put(key, content, durable=durable))
        elif fault is not Fault.LOSE_REQUEST:
            self.inner.put(key, _spoil(content, fault), durable=durable)
            self._newest = key
        _no_answer("put", key, fault)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; the first fault among them stands for the whole call."""
        doomed = list(keys)
        fault = next((f for f in (self._fault("delete", key) for key in doomed) if f), None)
        if fault is Fault.DELAY:
            self._delayed.append(lambda: self.inner.delete(doomed))
        elif fault is not Fault.LOSE_REQUEST:
            self.inner.delete(doomed)
        _no_answer("delete", ", ".join(doomed), fault)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete what killed processes left."""
        self._fault("discard_unfinished", prefix)
        return self.inner.discard_unfinished(prefix, older_ms, deep=deep)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders."""
        partial = self._fault("folders", prefix) is Fault.PARTIAL_LIST
        return self.inner.folders(prefix)[1 if partial else 0 :: 2 if partial else 1]

    def open(self, key: str) -> pa.NativeFile:
        """Open the object, or what is left of it."""
        fault = self._fault("open", key)
        if fault is None:
            return self.inner.open(key)
        return pa.BufferReader(_spoil(self.inner.get(key), fault))

    def make_durable(self, prefix: str) -> None:
        """Settle the folder."""
        self._fault("make_durable", prefix)
        self.inner.make_durable(prefix)

    def list(self, prefix: str, *, after: str | None = None) -> list[Entry]:
        """Return the objects, or those of a moment ago."""
        fault = self._fault("list", prefix)
        entries = self.inner.list(prefix, after=after)
        if fault is Fault.PARTIAL_LIST:
            return entries[1::2]
        stale = fault is Fault.STALE_LIST
        return [entry for entry in entries if not (stale and entry.key == self._newest)]

    def _created(self, key: str, answer: Put) -> Put:
        if answer is Put.CREATED:
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
            raise StoreError(f"{self.url}/{key}: {operation} refused on purpose.")
        return fault


def _spoil(data: bytes, fault: Fault | None) -> bytes:
    middle = len(data) // 2
    if fault in (Fault.TORN, Fault.SHORT_READ):
        return data[:middle]
    if fault is Fault.BIT_FLIP and data:
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return data


def _no_answer(operation: str, key: str, fault: Fault | None) -> None:
    if fault not in (None, Fault.BIT_FLIP):
        raise StoreError(f"{key}: no answer to {operation}, it may or may not have been done.")
