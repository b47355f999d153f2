"""Counting and bounding what a benchmark asks of a storage."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.base import Entry, PutOutcome, Store, StoreEnded, WrappedStore
from pravega_spark.primitives.process_locks import new_rlock

PUT, GET, LIST, DELETE = KINDS = ("PUT", "GET", "LIST", "DELETE")
"""Kinds of requests, by which object stores bill: GET includes HEAD, PUT every write."""
_LISTED: Final = 1_000
"""Objects in one answer of S3 to a LIST, and in one request to delete."""
_KEPT_BACK: Final = 24
"""Calls that are kept for the clean-up, besides one for each object."""
_KEPT_TO_PROVE: Final = 100
"""Calls that are kept for the proof and the clean-up, besides three for each object."""
_BYTES_OF_OBJECTS: Final = 3
"""Of each object that is written, a reader of the tail and the proof may each read the bytes."""

_CALLS_OF_APPENDS: Final = 8
"""Two objects, each with one call that puts it and three that are kept back."""


class BoundReached(StoreEnded):
    """A call that the bounds of the benchmark leave no room for, or after its end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a run may take: seconds, calls, and bytes that are written and read."""

    seconds: float
    calls: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Use:
    """Calls by their kinds, and bytes."""

    calls: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    written_bytes: int = 0

    def since(self, before: Use) -> Use:
        """Return what came after an earlier moment."""
        calls = Counter(self.calls)
        calls.subtract(before.calls)
        return Use(
            calls,
            self.read_bytes - before.read_bytes,
            self.written_bytes - before.written_bytes,
        )


@dataclass(slots=True)
class Share:
    """A part of a run's bounds: it ends at a time, or where no more calls or bytes are free."""

    meter: Meter
    until_seconds: float
    calls_left: int
    bytes_left: int
    ended_by: str | None = None

    def is_left(self, coming_bytes: int = 0, appends: int = 1) -> bool:
        """Return whether there is room for appends that may begin before the next look.

        ``coming_bytes`` are their bytes, and those of earlier ones that are still to be written.
        """
        self.ended_by = self.meter.over(self, coming_bytes, appends)
        return self.ended_by is None


class Meter:
    """The calls of all stores of one run, and its bounds. Thread-safe.

    For each object that is put, a call is kept back that deletes it, and until :meth:`prove` two
    that read it: so the run can prove and remove what it wrote within its bounds.
    """

    def __init__(self, bounds: Bounds, runtime: Runtime = SYSTEM) -> None:
        """Start the clock."""
        self._runtime, self._bounds = runtime, bounds
        self._began = runtime.monotonic()
        self._lock = threading.Condition(new_rlock())
        self._calls: Counter[str] = Counter()
        self._read_bytes = self._written_bytes = 0
        self._objects = set[str]()
        """The keys that were put and not deleted since: the clean-up will delete each."""
        self._is_proving = False
        self._under_way = 0
        self._ended: str | None = None
        self.stopped_by: str | None = None
        """The bound that the run has reached: ``seconds``, ``calls`` or ``bytes``."""

    @property
    def seconds(self) -> float:
        """The seconds since the run began."""
        return self._runtime.monotonic() - self._began

    def use(self) -> Use:
        """Return what was used so far."""
        with self._lock:
            return Use(Counter(self._calls), self._read_bytes, self._written_bytes)

    def share(self, parts: int, seconds: float) -> Share:
        """Return one of so many equal parts of what is left; they have ``seconds`` together."""
        with self._lock:
            calls, size = self._free_calls(), self._free_bytes()
        until = self.seconds + max(0.0, seconds - self.seconds) / parts
        return Share(self, until, calls - calls // parts, size - size // parts)

    def over(self, share: Share, coming_bytes: int, appends: int) -> str | None:
        """Return the bound that ends a share, None while it is not used up."""
        with self._lock:
            if self._ended is not None:
                return self._ended
            if self.seconds >= share.until_seconds:
                return "seconds"
            if self._free_calls() - _CALLS_OF_APPENDS * appends < share.calls_left:
                return "calls"
            size = self._free_bytes() - _BYTES_OF_OBJECTS * coming_bytes
            return "bytes" if size < share.bytes_left else None

    def _free_calls(self) -> int:
        """Return the calls that are left beside those that the objects so far will need."""
        kept = _KEPT_BACK if self._is_proving else 2 * len(self._objects) + _KEPT_TO_PROVE
        return self._bounds.calls - self._calls.total() - self._cleaning() - kept

    def _cleaning(self) -> int:
        """Return the calls that will list and delete all objects."""
        return len(self._objects) + 2 * (len(self._objects) // _LISTED)

    def _free_bytes(self) -> int:
        read = 0 if self._is_proving else (_BYTES_OF_OBJECTS - 1) * self._written_bytes
        return self._bounds.size_bytes - max(self._read_bytes, read) - self._written_bytes

    def prove(self) -> None:
        """Let reads take what was kept back for them."""
        with self._lock:
            self._is_proving = True

    def end(self, why: str = "the run has ended") -> None:
        """Refuse every further call but those of the clean-up, and wait for those under way."""
        with self._lock:
            self._ended = self._ended or why
            while self._under_way:
                self._lock.wait()

    @contextlib.contextmanager
    def call(
        self,
        kind: str,
        count: int = 1,
        *,
        keys: Sequence[str] = (),
        written: int = 0,
        is_free: bool = False,
    ) -> Iterator[None]:
        """Count calls that begin now; raise BoundReached instead if a bound would be passed.

        ``keys`` are those that a PUT or a DELETE names. Calls that are free, of the clean-up, are
        counted and never refused.
        """
        with self._lock:
            if not is_free:
                coming = count + len(keys) if kind == PUT else count
                self._check(coming, written)
            self._calls[kind] += count
            self._written_bytes += written
            if kind == PUT:
                self._objects.update(keys)
            elif kind == DELETE:
                self._objects.difference_update(keys)
            self._under_way += not is_free
        try:
            yield
        finally:
            if not is_free:
                with self._lock:
                    self._under_way -= 1
                    self._lock.notify_all()

    def _check(self, coming: int, written: int) -> None:
        if self._ended is not None:
            raise BoundReached(f"{self._ended}: the benchmark makes no call any more.", url="")
        calls = self._calls.total() + coming + self._cleaning() + _KEPT_BACK
        size = self._read_bytes + self._written_bytes + written
        reached = {
            "seconds": self.seconds >= self._bounds.seconds,
            "calls": calls > self._bounds.calls,
            "bytes": size > self._bounds.size_bytes,
        }
        for bound, is_reached in reached.items():
            if is_reached:
                self.stopped_by = self.stopped_by or bound
                raise BoundReached(f"the bound of {bound} is reached.", url="")

    def listed(self, entries: int) -> None:
        """Count the further requests of a LIST, of which one answers so many objects."""
        with self._lock:
            self._calls[LIST] += max(0, entries - 1) // _LISTED

    def read(self, size: int) -> None:
        """Count bytes that were read."""
        with self._lock:
            self._read_bytes += size


class MeteredStore(WrappedStore):
    """Passes every call on to another store, and counts it by a meter.

    A call that the client repeats in an outage counts once. A root in it sets no space aside.
    """

    def __init__(
        self, inner: Store, meter: Meter, *, is_cached: bool = True, is_free: bool = False
    ) -> None:
        """Wrap a store; without a cache readers fetch each chunk, whoever had it before."""
        super().__init__(inner)
        self._meter, self._is_cached, self._is_free = meter, is_cached, is_free

    @property
    def cache_bytes(self) -> int:
        """How many bytes of recent chunks readers keep."""
        return self.inner.cache_bytes if self._is_cached else 0

    def fill_reserve(self, *, at_first: bool = False) -> None:
        """Do nothing: what is set aside for deletions, this root does not need."""

    def _call(
        self, kind: str, count: int = 1, *, keys: Sequence[str] = (), written: int = 0
    ) -> contextlib.AbstractContextManager[None]:
        return self._meter.call(kind, count, keys=keys, written=written, is_free=self._is_free)

    def _many(
        self, objects: Sequence[tuple[str, bytes | pa.Buffer]]
    ) -> contextlib.AbstractContextManager[None]:
        size = sum(len(data) for _, data in objects)
        return self._call(PUT, len(objects), keys=[key for key, _ in objects], written=size)

    def time_ms(self) -> int:
        """Return the storage's time; a call where it has a clock of its own."""
        if not self.inner.has_clock:
            return self.inner.time_ms()
        with self._call(GET):
            return self.inner.time_ms()

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written; None if absent."""
        with self._call(GET):
            return self.inner.modified_ms(key)

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        with self._call(GET):
            found = self.inner.get(key)
        self._meter.read(len(found))
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the object."""
        with self._call(GET):
            found = self.inner.get_range(key, start, end)
        self._meter.read(len(found))
        return found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent one."""
        with self._call(GET, len(keys)):
            found = self.inner.get_many(keys)
        self._meter.read(sum(len(data) for data in found if data is not None))
        return found

    def exists(self, key: str) -> bool:
        """Return True if the object exists now."""
        with self._call(GET):
            return self.inner.exists(key)

    def put_if_absent(
        self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
    ) -> PutOutcome:
        """Create the object unless it exists."""
        with self._call(PUT, keys=[key], written=len(data)):
            return self.inner.put_if_absent(key, data, after=after, staged=staged)

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object."""
        with self._call(PUT, keys=[key], written=len(data)):
            self.inner.put(key, data, durable=durable)

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects."""
        with self._many(objects):
            self.inner.put_many(objects)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects as the store does."""
        with self._many(objects):
            self.inner.stage(objects)

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a file that becomes the object; its bytes are counted at the end."""
        with self._call(PUT, keys=[key]), self.inner.writer(key) as file:
            yield file
            size = file.tell()
        with self._call(PUT, 0, written=size):
            pass

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects, of which each counts as a call."""
        named = list(keys)
        with self._call(DELETE, len(named), keys=named):
            self.inner.delete(named)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete unfinished files and uploads."""
        with self._call(LIST):
            return self.inner.discard_unfinished(prefix, older_ms, deep=deep)

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        with self._call(LIST):
            found = self.inner.folders(prefix)
        self._meter.listed(len(found))
        return found

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return the objects below ``prefix``."""
        with self._call(LIST):
            found = self.inner.list(prefix, after=after, before=before)
        self._meter.listed(len(found))
        return found

    def open(self, key: str) -> pa.NativeFile:
        """Open the object; its whole size counts as read, by one call."""
        with self._call(GET):
            file = self.inner.open(key)
        self._meter.read(file.size())
        return file

    def make_durable(self, prefix: str) -> None:
        """Make the objects of a folder durable: no request."""
        self.inner.make_durable(prefix)
