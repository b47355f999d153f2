"""Space that a local root sets aside, so that a full disk can be freed by deleting.

A deletion needs space first: for the commit of a truncation or a sweep, and records beside it. The
reserve is a few hidden files. Within :func:`freeing`, a file for which the disk has no space takes
over one of them with its blocks, so a writer that goes on cannot take them in between. Afterwards
the pieces that are missing are made again, as far as there is space.

A file system that copies on write (btrfs, ZFS) needs new blocks for that all the same.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from pravega_spark.engine.store.base import Store

_KIB = 1024
_PIECES = tuple(
    f".pravega_reserve-{size}-{number:02d}"
    for size, count in ((16 * _KIB, 16), (128 * _KIB, 2), (256 * _KIB, 1))
    for number in range(count)
)
"""The names of the pieces, with their sizes in bytes; the smallest come first."""
RESERVE_BYTES = 16 * 16 * _KIB + 2 * 128 * _KIB + 256 * _KIB
_SHARE = 4
"""A disk that has less than this many times the reserve gets none at first."""

_freeing = threading.local()


@runtime_checkable
class _KeepsReserve(Protocol):
    def fill_reserve(self, *, at_first: bool = False) -> None:
        """Set aside what is missing."""


@contextlib.contextmanager
def freeing(store: Store) -> Iterator[None]:
    """Let this thread's writes use the reserve: they are needed before anything is deleted."""
    depth = getattr(_freeing, "depth", 0)
    _freeing.depth = depth + 1
    try:
        yield
    finally:
        _freeing.depth = depth
        if not depth:
            set_aside(store)


class _HasStore(Protocol):
    @property
    def store(self) -> Store:
        """Where the writes go."""


_Of = TypeVar("_Of", bound=_HasStore)
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


def frees(
    function: Callable[Concatenate[_Of, _Rest], _Result],
) -> Callable[Concatenate[_Of, _Rest], _Result]:
    """Run a function of a log or a stream in :func:`freeing`."""

    @functools.wraps(function)
    def run(first: _Of, /, *arguments: _Rest.args, **options: _Rest.kwargs) -> _Result:
        with freeing(first.store):
            return function(first, *arguments, **options)

    return run


def set_aside(store: Store, *, at_first: bool = False) -> None:
    """Set aside what the store's reserve misses, if it keeps one and there is space."""
    kept: object = store
    while not isinstance(kept, _KeepsReserve):
        kept = getattr(kept, "inner", None)
        if kept is None:
            return
    kept.fill_reserve(at_first=at_first)


def may_use_reserve() -> bool:
    """Return whether this thread is in :func:`freeing`."""
    return getattr(_freeing, "depth", 0) > 0


class Reserve:
    """The reserve in one root's folder; processes share it, and each piece has one taker."""

    def __init__(self, folder: str) -> None:
        """Name the folder; nothing is written."""
        self._folder = folder
        self.is_full = False
        """Whether this process has seen or made it full and used none of it since."""

    def fill(self, *, at_first: bool) -> None:
        """Make the missing pieces, as far as there is space."""
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._folder)
            if at_first and disk.f_bavail * disk.f_frsize < _SHARE * RESERVE_BYTES:
                return
            present = set(os.listdir(self._folder))
            for piece in _PIECES:
                if piece not in present:
                    self._make(f"{self._folder}/{piece}", _size_of(piece))
            self.is_full = True

    def _make(self, path: str, size: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)

    def take(self, size: int, hidden_path: str) -> bool:
        """Move the smallest piece that holds ``size`` bytes to a path; return False without any.

        If none is large enough, that is the largest, and others are deleted for the rest.
        """
        fitting = [piece for piece in _PIECES if _size_of(piece) >= size]
        for piece in (*fitting, *reversed(_PIECES)):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{self._folder}/{piece}", hidden_path)
                self.is_full = False
                missing = size - _size_of(piece)
                while missing > 0 and (dropped := self.drop()):
                    missing -= dropped
                return True
        return False

    def drop(self) -> int:
        """Delete the smallest piece, for what needs a block of a folder; return its size, or 0."""
        for piece in _PIECES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._folder}/{piece}")
                self.is_full = False
                return _size_of(piece)
        return 0


def _size_of(piece: str) -> int:
    return int(piece.split("-")[1])
