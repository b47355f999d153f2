"""The one seam to storage: what an engine needs of a file system or an object store.

Keys are relative to the store's root, ``/``-separated, never empty, without ``.`` or ``..``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa


class Put(enum.Enum):
    """What became of a ``put_if_absent``."""

    CREATED = "created"
    """The object did not exist and now holds the bytes, durably."""
    EXISTS = "exists"
    """An object of that key exists; it may be our own from a lost answer: read it to know."""
    UNKNOWN = "unknown"
    """Neither yes nor no: the bytes may be there, may never be, or may still arrive."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Dated:
    """The date that an answer of the storage carried, and what this host's clocks said then.

    ``storage_ms`` and ``wall_ms`` are in ms since 1970, ``elapsed`` in seconds of the boot clock.
    The storage's date may be rounded down to a second.
    """

    storage_ms: int
    wall_ms: int
    elapsed: float


@runtime_checkable
class Store(Protocol):
    """Storage under one root. Thread-safe, and cheap to create from ``url`` in any process.

    Errors: ``FileNotFoundError`` for a missing key on ``get``/``open``; ``StoreFull``,
    ``StoreReadOnly`` and ``StoreError`` of :mod:`pravega_spark.errors` for what the storage
    refuses. A lost race of ``put_if_absent`` is an answer, never an error.
    """

    @property
    def url(self) -> str:
        """The root as a URL from which ``open_store`` makes an equal store elsewhere."""
        ...

    @property
    def storage(self) -> str:
        """What kind of storage this is, and which one: the same after a reboot or a remount.

        A root that is moved within it keeps what the probe has proved. No part of it is secret.
        """
        ...

    @property
    def is_local(self) -> bool:
        """Whether a call costs microseconds (disk, memory) and polling may be frequent."""
        ...

    @property
    def has_clock(self) -> bool:
        """Whether the storage dates objects by a clock that is not this host's."""
        ...

    @property
    def dated(self) -> Dated | None:
        """The date of the newest answer, at no call; None where answers carry no date."""
        ...

    def time_ms(self) -> int:
        """Return what time it is by the clock that dates objects, in ms since 1970; never late.

        Leaves no object behind. Where only a write tells, an object is created and deleted; where
        that is refused, this host's clock answers.
        """
        ...

    def modified_ms(self, key: str) -> int | None:
        """Return when the object was written last, by the same clock; None if absent.

        Where the storage rounds to seconds, the answer is up to a second late, never early.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object. Raise FileNotFoundError if absent."""
        ...

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the objects in order, None for each absent; in parallel where it pays."""
        ...

    def exists(self, key: str) -> bool:
        """Tell whether the object exists now (never from a cache)."""
        ...

    def stamp(self, key: str) -> object:
        """Return what changes when the object is replaced, None if there is no such object.

        Only where that costs next to nothing: an object store always returns the same.
        """
        ...

    def hold_to(self, check: Callable[[], None]) -> None:
        """Call ``check`` before each write, deletion and listing: it raises RootChanged.

        Only where a look at the root's marker costs next to nothing: an object store never calls
        it.
        """
        ...

    def put_if_absent(self, key: str, data: bytes, *, after: str | None = None) -> Put:
        """Create the object with exactly these bytes, durably, unless one exists.

        An error means that nothing was done. Who finds its own bytes after UNKNOWN or EXISTS
        calls :meth:`make_durable` on their folder before it acknowledges them. ``after`` names the
        object that this one follows in its folder: where a look costs next to nothing, RootChanged
        is raised if it is gone.
        """
        ...

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or overwrite the object, visible whole or not at all.

        ``durable=False`` may skip the fsyncs: for hints that carry a digest.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects, locally in the order of the keys; absent ones are no error."""
        ...

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete what killed processes left below ``prefix`` and no listing shows; return it.

        Only what is older than ``older_ms`` by the storage's own clock: a file that is being
        written looks the same. Not ``deep`` leaves out the folders below that one.
        """
        ...

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix`` ("" is the root), sorted."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> list[Entry]:
        """Return the objects directly or deeper below the folder ``prefix``, sorted by key.

        ``after`` leaves out keys that sort at or before it. A missing folder is empty.
        """
        ...

    def open(self, key: str) -> pa.NativeFile:
        """Open the object for random reads (Parquet). Raise FileNotFoundError if absent."""
        ...

    def make_durable(self, prefix: str) -> None:
        """Make what is visible in the folder durable before it is shown to others.

        Local disks fsync the folder; object stores have nothing to do. Raise StoreError if the
        disk cannot promise it.
        """
        ...
