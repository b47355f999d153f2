"""Recent chunks of an object store, kept in memory for all readers of this process.

Readers that ask for a chunk at the same time send one request, and those that ask soon after send
none. Files are kept as they are stored, so encrypted ones stay encrypted, and each reader checks
what it is given as if it had fetched it. Who has to know what the storage holds reads past
it (ADR 60).
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk
from pravega_spark.engine.chunks.footer import has_digest, length_of
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import StoreUnavailable
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import PREFETCH_CHUNK_BYTES

_ENTRY_BYTES = 512
"""About what a file takes beside its bytes."""

_Key = tuple[str, int, str]
"""The object of a chunk, and the size and the digest that the log records of it. No two chunks have
one name, since it holds a random token; a restore may bring the same chunk back."""


def _key(table_path: str, chunk: ChunkRef | StagedChunk) -> _Key:
    return f"{table_path}/{chunk.path}", chunk.size, chunk.footer


class _Call:
    """A request for some files, for which other readers wait."""

    __slots__ = ("ended", "files", "outage")

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.files: dict[_Key, bytes | None] = {}
        """What it has found: whole files, and None for those that do not exist."""
        self.outage: StoreUnavailable | None = None


class RecentChunks:
    """The files that were read or written last, up to a number of bytes. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        """Start with none."""
        self._most_bytes = most_bytes
        self._lock = new_lock()
        self._kept: dict[_Key, bytes] = {}
        """In the order in which they were used last."""
        self._calls: dict[_Key, _Call] = {}
        """The requests that are under way, by the files that they are for."""
        self.size_bytes = 0
        """What the kept files take."""

    def get_many(
        self, store: Store, table_path: str, refs: Sequence[ChunkRef]
    ) -> list[bytes | None]:
        """Return the files in order, None for each absent one; fetch those that nobody fetches.

        Raises what ``store.get_many`` does. The error of an outage is that of all who wait for the
        request; after any other one they ask for their files themselves.
        """
        keys = [_key(table_path, ref) for ref in refs]
        found: dict[_Key, bytes | None] = {}
        while len(found) < len(keys):
            missing = [key for key in keys if key not in found]
            others = self._fetch(store, missing, found)
            for call in others:
                while not call.ended.is_set():
                    SYSTEM.wait(call.ended, None)
                if call.outage is not None:
                    raise copy.copy(call.outage)
                found.update((key, call.files[key]) for key in missing if key in call.files)
        return [found[key] for key in keys]

    def _fetch(
        self, store: Store, keys: Sequence[_Key], found: dict[_Key, bytes | None]
    ) -> set[_Call]:
        """Find the files that are kept, and fetch the others; return the calls that fetch some."""
        mine, others, call = list[_Key](), set[_Call](), _Call()
        try:
            with self._lock:
                for key in keys:
                    data = self._kept.pop(key, None)
                    if data is not None:
                        found[key] = self._kept[key] = data
                    elif key in self._calls:
                        others.add(self._calls[key])
                    else:
                        mine.append(key)
                        self._calls[key] = call
            if mine:
                files = dict(zip(mine, store.get_many([key[0] for key in mine]), strict=True))
                found.update(files)
                call.files = {key: data for key, data in files.items() if _is_whole(key, data)}
        except StoreUnavailable as error:
            call.outage = error
            raise
        finally:
            with self._lock:
                for key in mine:
                    self._calls.pop(key, None)
                    data = call.files.get(key)
                    if data is not None:
                        self._keep(key, data)
            call.ended.set()
        return others

    def keep(self, table_path: str, chunk: StagedChunk, data: bytes | pa.Buffer) -> None:
        """Keep the file of a chunk that this process has stored, if readers fetch it complete."""
        if chunk.size <= PREFETCH_CHUNK_BYTES:
            held = data if isinstance(data, bytes) else data.to_pybytes()
            with self._lock:
                self._keep(_key(table_path, chunk), held)

    def drop(self, table_path: str, refs: Iterable[ChunkRef]) -> None:
        """Keep none of these files: one of them is damaged."""
        with self._lock:
            for ref in refs:
                self._drop(_key(table_path, ref))

    def _keep(self, key: _Key, data: bytes) -> None:
        self._drop(key)
        if len(data) + _ENTRY_BYTES > self._most_bytes:
            return
        self._kept[key] = data
        self.size_bytes += len(data) + _ENTRY_BYTES
        while self.size_bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        data = self._kept.pop(key, None)
        if data is not None:
            self.size_bytes -= len(data) + _ENTRY_BYTES


def _is_whole(key: _Key, data: bytes | None) -> bool:
    """Return whether a file is the one that the log records, as far as its footer tells."""
    _, size, footer = key
    return data is None or (
        len(data) == size
        and (not footer or has_digest(memoryview(data)[-length_of(footer) :], footer))
    )


_kept_for = WeakKeyDictionary[Store, RecentChunks]()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_kept_for.clear)


def recent_chunks(store: Store) -> RecentChunks | None:
    """Return what this process keeps of a store's chunks; None if that is nothing.

    Each handle of a store, which has its own credentials, has its own.
    """
    most_bytes = store.cache_bytes
    if not most_bytes:
        return None
    return _kept_for.get(store) or _kept_for.setdefault(store, RecentChunks(most_bytes))
