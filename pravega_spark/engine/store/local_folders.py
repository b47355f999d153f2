"""Folders of a local store: they come with their first file, and go with their last one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.local_files import delete_old, is_full, refusal, useless_once_old
from pravega_spark.engine.store.reserve import Reserve, may_use_reserve
from pravega_spark.errors import StoreError

_ATTEMPTS = 10
"""How often a folder is made again while other processes prune those above it."""
_EXPECTED_FOLDERS = 65_536
"""Of more, any one is forgotten, and made again if it is missing."""


class ExpectedFolders:
    """The folders of tables that this process has read, and those above them; thread-safe.

    A folder comes with its first file. One that has been there and is missing was moved away: who
    makes it again gets a file into it that is gone once the folder is put back.
    """

    def __init__(self, root: str) -> None:
        """Begin without folders below the root."""
        self._root = root
        self._known: set[str] = set()

    def note(self, folder: str, *, is_there: bool) -> None:
        """Note a table's folder; if it is not there, forget it and those above it that are not."""
        while len(folder) > len(self._root) and (is_there or not os.path.isdir(folder)):
            if is_there:
                if len(self._known) >= _EXPECTED_FOLDERS:
                    self._known.pop()
                self._known.add(folder)
            else:
                self._known.discard(folder)
            folder = os.path.dirname(folder)

    def check(self, folder: str) -> None:
        """Raise StoreError if a folder cannot be made without one that was there before."""
        while not os.path.isdir(folder) and len(folder) > len(self._root):
            if folder in self._known:
                raise StoreError(
                    f"{folder} does not exist any more: this process has read a table in it, and "
                    "the folder was removed, moved or unmounted since. Nothing was written. Put it "
                    "back.",
                    url=folder,
                )
            folder = os.path.dirname(folder)


def make_folder(folder: str, reserve: Reserve) -> None:
    """Create a folder and those above it; raise the error of a refused write.

    On a full disk a piece of the reserve makes room, if this thread may use that.
    """
    for attempt in range(_ATTEMPTS):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:  # perhaps another process pruned a folder above it
            if is_full(error) and may_use_reserve() and reserve.drop():
                continue
            if not isinstance(error, FileNotFoundError) or attempt == _ATTEMPTS - 1:
                raise refusal(error, folder) from error
        else:
            return


def prune(folder: str, root: str) -> None:
    """Delete a folder and those above it that are empty, below the root."""
    with contextlib.suppress(OSError):  # not empty, or another process pruned it
        while folder != root:
            os.rmdir(folder)
            folder = os.path.dirname(folder)


def discard_old(root: str, before_ms: Callable[[], int], *, deep: bool) -> list[Entry]:
    """Delete what killed processes left below a folder before a time; return it by its paths.

    The time is asked for only if there is such a file.
    """
    found: list[Entry] = []
    limit_ms: int | None = None
    for folder, below, names in os.walk(root, onerror=None):
        if not deep:
            below.clear()
        old = useless_once_old(names)
        if old:
            limit_ms = before_ms() if limit_ms is None else limit_ms
            found += delete_old(folder, old, limit_ms)
    return found
