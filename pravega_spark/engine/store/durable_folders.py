"""Which folders of a local disk are durable, so that each ancestor is fsynced only once."""

from __future__ import annotations

import os

from pravega_spark.engine.store.local_files import UnknownOutcome, sync_folder
from pravega_spark.errors import StoreError

_ANCHORED_FOLDERS = 65_536
"""Folders that are known to be durably reachable, three for each open stream; of more, any one is
forgotten, and its ancestors are fsynced again."""
REOPEN = "Check the disk, then open the root in a new process."


class DurableFolders:
    """The folders of one store in this process; thread-safe.

    After a failed fsync of a folder, the kernel may report its lost entries as clean, so the
    folder is refused from then on.
    """

    def __init__(self, top: str) -> None:
        """Take ``top``, the lowest folder that exists: it needs no fsync."""
        self.top = top
        self.anchored = {top}
        """Folders that are reachable after a crash."""
        self._failed: set[str] = set()

    def check(self, folder: str, path: str) -> None:
        """Raise StoreError for a durable file in a folder whose fsync failed."""
        if folder in self._failed:
            reason = "an earlier fsync of its folder failed, so nothing here is durable"
            raise StoreError(f"{path}: {reason}. {REOPEN}", url=path)

    def find_missing(self, folder: str) -> None:
        """Forget what is known of a folder and its ancestors that do not exist."""
        while not os.path.isdir(folder) and folder != "/":
            self.anchored.discard(folder)
            folder = os.path.dirname(folder)
        if len(folder) < len(self.top):  # the root itself was deleted after it was opened
            self.top = folder

    def sync(self, folder: str) -> None:
        """Fsync the entries of a folder and, the first time, anchor it."""
        if folder in self._failed:
            raise UnknownOutcome(f"an earlier fsync of {folder} failed")
        try:
            sync_folder(folder)
        except UnknownOutcome:
            self._failed.add(folder)
            raise
        self.anchor(folder)

    def anchor(self, folder: str) -> None:
        """Fsync the ancestors of a folder, so that it can be reached after a crash."""
        below = folder
        try:
            while below not in self.anchored and len(below) > len(self.top):
                parent = os.path.dirname(below)
                sync_folder(parent)
                if len(self.anchored) >= _ANCHORED_FOLDERS:
                    self.anchored.pop()
                self.anchored.add(below)
                below = parent
        except UnknownOutcome:
            self._failed |= {folder, below}
            raise
