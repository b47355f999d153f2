"""The interface to storage: what the engine needs of a file system or an object store.

Keys are relative to the store's root and separated by ``/``. No part is empty, ``.`` or ``..``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from pravega_spark.errors import InvalidInput, StoreError

_FORBIDDEN_PARTS = frozenset({"", ".", ".."})


def check_key(key: str) -> str:
    """Return ``key`` if it may name an object; raise InvalidInput if not.

    A file name must not start with a dot: local stores stage files under such names, and listings
    hide them. A folder may start with a dot, as names of scopes and streams may.
    """
    parts = key.split("/")
    if not _FORBIDDEN_PARTS.isdisjoint(parts) or parts[-1][0] == "." or "\0" in key:
        raise InvalidInput(
            f"{key!r} is not a valid key: join names by single '/'; none may be empty, '.' or '..' "
            "or hold the character NUL, and the last may not start with a dot."
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the folder ``prefix`` with a trailing slash, or "" for the root."""
    folder = prefix.rstrip("/")
    if not folder:
        return ""
    if not _FORBIDDEN_PARTS.isdisjoint(folder.split("/")) or "\0" in folder:
        raise InvalidInput(
            f"{prefix!r} is not a valid folder: '.', '..', NUL and empty names are not allowed."
        )
    return folder + "/"


def is_visible(key: str) -> bool:
    """Return True if listings show ``key``: not a dotted file name, not a folder marker."""
    name = key[key.rfind("/") + 1 :]
    return name != "" and name[0] != "."


class StoreEnded(StoreError):
    """Whoever opened the store lets it make no call any more: for background work no news."""


class PutOutcome(enum.Enum):
    """The outcome of a ``put_if_absent``."""

    CREATED = "created"
    """The object did not exist, and now holds the bytes durably."""
    EXISTS = "exists"
    """The key exists. The object may be our own, after a lost answer: read it to find out."""
    UNKNOWN = "unknown"
    """The bytes may be stored, may never be stored, or may still arrive."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ResponseDate:
    """The date of a response of the storage, and this host's clocks when it arrived.

    ``storage_ms`` and ``wall_ms`` are in ms since 1970, ``elapsed`` in seconds of the boot clock.
    The storage's date may be rounded down to a second.
    """

    storage_ms: int
    wall_ms: int
    elapsed: float


@runtime_checkable
class Store(Protocol):
    """Storage under one root. Thread-safe, and cheap to create from ``url`` in any process.

    Errors: ``FileNotFoundError`` for a missing key on ``get`` and ``open``; ``StoreFull``,
    ``StoreReadOnly`` and ``StoreError`` of :mod:`pravega_spark.errors` for refused operations;
    ``StoreUnavailable`` if there was no answer for ``retry_seconds``, or a request to call less
    often. A lost race of ``put_if_absent`` is a return value, never an error.
    """

    @property
    def url(self) -> str:
        """The root as a URL, from which ``open_store`` makes an equal store in another process."""
        ...

    @property
    def storage(self) -> str:
        """The kind and identity of the storage, stable over reboots and remounts.

        A root that is moved within the same storage needs no new probe. The text has no secrets.
        """
        ...

    @property
    def is_local(self) -> bool:
        """Whether a call costs microseconds (disk, memory), so that frequent polling is cheap."""
        ...

    @property
    def has_clock(self) -> bool:
        """Whether the storage dates objects by a clock other than this host's."""
        ...

    @property
    def response_date(self) -> ResponseDate | None:
        """The date of the newest response, without a call; None if responses carry no date."""
        ...

    @property
    def retry_seconds(self) -> float:
        """For how long a call is repeated while the storage does not answer; 0 for a disk."""
        ...

    @property
    def cache_bytes(self) -> int:
        """How many bytes of recent chunks readers keep in memory; 0 for a disk."""
        ...

    def time_ms(self) -> int:
        """Return the time by the clock that dates objects, in ms since 1970; never ahead of it.

        Leaves no object behind. If only a write reveals the time, creates and deletes an object;
        if that is refused, returns this host's time.
        """
        ...

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was last written, by the same clock; None if absent.

        If the storage rounds to seconds, the result is up to a second late, never early.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object. Raise FileNotFoundError if absent."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of the object in one call; fewer where it ends before.

        Raise FileNotFoundError if absent.
        """
        ...

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent one; in parallel if that is faster."""
        ...

    def exists(self, key: str) -> bool:
        """Return True if the object exists now; never answers from a cache."""
        ...

    def change_token(self, key: str) -> object:
        """Return a value that changes when the object is replaced; None if it does not exist.

        Object stores, where that would cost a request, always return the same value.
        """
        ...

    def set_root_check(self, check: Callable[[], None]) -> None:
        """Call ``check`` before each write, deletion and listing; it may raise RootChanged.

        Object stores, where checking the root marker would cost a request, never call it.
        """
        ...

    def expect(self, prefix: str, *, is_there: bool) -> None:
        """Note whether the folder ``prefix`` has a table's log, as its reader has just found.

        A write into a folder that was there, and is missing, would hide that the folder is away: a
        local disk raises StoreError for that. Object stores have no folders.
        """
        ...

    def put_if_absent(
        self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
    ) -> PutOutcome:
        """Create the object with exactly these bytes, durably, unless one exists.

        An error means that nothing was done. A caller that finds its own bytes after UNKNOWN or
        EXISTS calls :meth:`make_durable` on their folder before it acknowledges them. ``after``
        names an object that is there before this one is: stores that can check it for free
        raise RootChanged if it does not exist. ``staged`` are the keys that this object names:
        those that :meth:`stage` created here are durable before this object becomes visible.
        """
        ...

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object atomically.

        ``durable=False`` may skip the fsyncs; for hints that carry a digest.
        """
        ...

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite objects of different keys, each as a durable ``put`` does.

        If it raises, any of them may exist. On a local disk this is faster than a ``put`` for
        each; on an object store the calls are made at the same time.
        """
        ...

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create objects of new names, which a later ``put_if_absent`` of this process will name.

        A local disk makes them durable then, so that the caller waits for the disk once. No other
        process may rely on them before. Raises what ``put`` raises; if it does, any of them may
        exist.
        """
        ...

    def writer(self, key: str) -> AbstractContextManager[pa.NativeFile]:
        """Return a context whose file becomes the object, durably and atomically, at its end.

        For objects too large for one buffer; creates or overwrites. If the block or the storage
        fails, the key is left as it was. Writes and the end of the block raise the errors of a
        ``put``. An unfinished file of a killed process is left to :meth:`discard_unfinished`.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects, on a local disk in the order of the keys; absent ones are ignored."""
        ...

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete unfinished files and uploads of killed processes below ``prefix``; return them.

        Listings never show them. Keeps those younger than ``older_ms`` by the storage's clock,
        since a file that is being written looks the same. Without ``deep``, skips folders
        below that one.
        """
        ...

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix`` ("" is the root), sorted."""
        ...

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return all objects below the folder ``prefix``, at any depth, sorted by key.

        ``after`` skips keys that sort at or before it, ``before`` those that sort at or after it.
        A missing folder is empty.
        """
        ...

    def open(self, key: str) -> pa.NativeFile:
        """Open the object for random reads (Parquet). Raise FileNotFoundError if absent."""
        ...

    def make_durable(self, prefix: str) -> None:
        """Make the visible objects of a folder durable before they are acknowledged.

        Local disks fsync the folder; object stores do nothing. Raise StoreError if the disk cannot
        guarantee durability.
        """
        ...


class WrappedStore:
    """A store around another one, ``inner``; a subclass adds the calls that it changes."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """The root as a URL."""
        return self.inner.url

    @property
    def storage(self) -> str:
        """The kind and identity of the storage."""
        return self.inner.storage

    @property
    def is_local(self) -> bool:
        """Whether a call costs microseconds."""
        return self.inner.is_local

    @property
    def has_clock(self) -> bool:
        """Whether the storage dates objects by its clock."""
        return self.inner.has_clock

    @property
    def response_date(self) -> ResponseDate | None:
        """The date of the newest response."""
        return self.inner.response_date

    @property
    def retry_seconds(self) -> float:
        """For how long a call is repeated."""
        return self.inner.retry_seconds

    @property
    def cache_bytes(self) -> int:
        """How many bytes of recent chunks readers keep."""
        return self.inner.cache_bytes

    def change_token(self, key: str) -> object:
        """Return the change token of an object."""
        return self.inner.change_token(key)

    def set_root_check(self, check: Callable[[], None]) -> None:
        """Pass the check on."""
        self.inner.set_root_check(check)

    def expect(self, prefix: str, *, is_there: bool) -> None:
        """Pass the folder on."""
        self.inner.expect(prefix, is_there=is_there)
