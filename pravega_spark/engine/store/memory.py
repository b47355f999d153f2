"""A store in this process's memory: for tests, simulations and short examples."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pravega_spark.engine.store.base import Entry, PutOutcome, check_key, check_prefix
from pravega_spark.engine.store.root_marker import is_same
from pravega_spark.primitives.process_locks import new_rlock

_NAMED: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()
_private = itertools.count(1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class _Object:
    data: bytes
    modified_ms: int


class _Folders:
    """The keys of a store by folder, so that a listing costs what it returns."""

    def __init__(self) -> None:
        self._children: dict[str, dict[str, None]] = {}
        """Full paths of the keys and folders (with a trailing slash) directly in each folder."""

    def add(self, key: str) -> None:
        """Add a key, and the folders that it is the first key of."""
        path = key
        while True:
            folder = _folder_of(path)
            known = self._children.get(folder)
            if known is not None:
                known[path] = None
                return
            self._children[folder] = {path: None}
            if not folder:
                return
            path = folder

    def remove(self, key: str) -> None:
        """Remove a key, and the folders that are empty without it."""
        path = key
        while True:
            folder = _folder_of(path)
            known = self._children[folder]
            del known[path]
            if known or not folder:
                return
            del self._children[folder]
            path = folder

    def rebuild(self, keys: Iterable[str]) -> None:
        """Hold these keys alone: a forked child may have a change that was half made."""
        self._children.clear()
        for key in keys:
            self.add(key)

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the folders directly in a folder."""
        children = self._children.get(folder, ())
        return sorted(path[len(folder) : -1] for path in children if path.endswith("/"))

    def keys(self, folder: str, after: str) -> list[str]:
        """Return the sorted keys below a folder that sort after ``after``."""
        found: list[str] = []
        ahead = [folder]
        while ahead:
            for path in self._children.get(ahead.pop(), ()):
                if not path.endswith("/"):
                    if path > after:
                        found.append(path)
                elif path > after or after.startswith(path):
                    ahead.append(path)
        return sorted(found)


def _folder_of(path: str) -> str:
    return path[: path.rfind("/", 0, -1) + 1]


class MemoryStore:
    """A dict with the semantics of an object store; deterministic, and lost with the process.

    The default clock counts writes, so that the same calls give the same listing. A named store,
    which several parts of a process share by its URL, uses the time of day. Reads are one operation
    on a dict; a lock keeps the folders in step with it. A forked child has a copy of the objects.
    """

    is_local = True
    has_clock = True
    retry_seconds = 0.0
    cache_bytes = 0
    response_date = None

    def __init__(self, name: str | None = None, *, clock_ms: Callable[[], int] | None = None):
        """Create an empty store; without ``name`` it gets a unique one."""
        self._name = f"private-{next(_private)}" if name is None else name
        self._objects: dict[str, _Object] = {}
        self._folders = _Folders()
        self._lock = new_rlock()
        self._clock_ms = clock_ms or itertools.count(1).__next__
        _NAMED[self._name] = self

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return this process's store of that name; create it if necessary."""
        store = _NAMED.get(name)
        if store is None:
            return cls(name, clock_ms=_now_ms)
        if is_same(store):
            return store
        made = cls(name, clock_ms=store._clock_ms)
        made._objects, made._folders, made._lock = store._objects, store._folders, store._lock
        return made

    @property
    def url(self) -> str:
        """The URL of this store in this process; in another process it names an empty store."""
        return f"memory://{self._name}"

    @property
    def storage(self) -> str:
        """``memory`` for all: nothing survives the process."""
        return "memory"

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle as the name."""
        return MemoryStore.named, (self._name,)

    def time_ms(self) -> int:
        """Return the time of the next object."""
        return self._clock_ms()

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written; None if absent."""
        found = self._objects.get(check_key(key))
        return None if found is None else found.modified_ms

    def get(self, key: str) -> bytes:
        """Return the object."""
        found = self._objects.get(check_key(key))
        if found is None:
            raise FileNotFoundError(f"{self.url}/{key} does not exist.")
        return found.data

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the object."""
        return self.get(key)[start:end]

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent one."""
        found = [self._objects.get(check_key(key)) for key in keys]
        return [None if entry is None else entry.data for entry in found]

    def exists(self, key: str) -> bool:
        """Return True if the object exists."""
        return check_key(key) in self._objects

    def change_token(self, key: str) -> object:
        """Return the stored object, which is a new one after each write."""
        return self._objects.get(check_key(key))

    def set_root_check(self, check: Callable[[], None]) -> None:
        """Do nothing, as object stores do."""

    def expect(self, prefix: str, *, is_there: bool) -> None:
        """Do nothing, as object stores do."""

    def put_if_absent(
        self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
    ) -> PutOutcome:
        """Create the object unless it exists; ignore ``after``, as object stores do."""
        made = _Object(bytes(data), self._clock_ms())
        with self._lock:
            kept = self._objects.setdefault(check_key(key), made)
            if kept is not made:
                return PutOutcome.EXISTS
            self._folders.add(key)
        return PutOutcome.CREATED

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or replace the object."""
        made = _Object(bytes(data), self._clock_ms())
        with self._lock:
            if check_key(key) not in self._objects:
                self._folders.add(key)
            self._objects[key] = made

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects, one after the other."""
        for key, data in objects:
            self.put(key, data)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects, durably at once."""
        self.put_many(objects)

    @contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a buffer, whose bytes become the object at the end."""
        check_key(key)
        sink = pa.BufferOutputStream()
        yield sink
        self.put(key, sink.getvalue())

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects."""
        for key in keys:
            with self._lock:
                if self._objects.pop(check_key(key), None) is not None:
                    self._folders.remove(key)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Do nothing: writes are atomic."""
        return []

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        with self._lock:
            return self._folders.names(check_prefix(prefix))

    def open(self, key: str) -> pa.NativeFile:
        """Open the object for random reads."""
        return pa.BufferReader(self.get(key))

    def make_durable(self, prefix: str) -> None:
        """Do nothing: objects live as long as the process."""

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return the objects below the folder ``prefix``."""
        with self._lock:
            keys = self._folders.keys(check_prefix(prefix), after or "")
            found = [(key, self._objects[key]) for key in keys]
        shown = (item for item in found if before is None or item[0] < before)
        return [Entry(key, len(entry.data), entry.modified_ms) for key, entry in shown]


def _rebuild_folders() -> None:
    for store in list(_NAMED.values()):
        store._folders.rebuild(store._objects)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_rebuild_folders)
