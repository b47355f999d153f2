"""Files of a local disk that have their names, and become durable just before a commit names them.

A commit waits for the disk twice, whatever it adds: its chunks, their folder and its own hidden
file are fsynced together, which shares one write of the file system's journal. Only then does the
commit get its name, and its folder is fsynced.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection

from pravega_spark.engine.store.durable_folders import DurableFolders
from pravega_spark.engine.store.local_files import StagedFile, UnknownOutcome, not_durable, refusal
from pravega_spark.errors import StoreError

_MOST_FILES = 64
"""More files are fsynced at once: they hold descriptors, and may belong to abandoned batches."""


class UnsyncedFiles:
    """The named files of one store that may not be durable yet.

    Thread-safe without a lock, because a fork would copy a locked one. A forked child forgets the
    files, which only its parent commits.
    """

    def __init__(self, durable: DurableFolders) -> None:
        """Begin without files."""
        self._durable = durable
        self._files: dict[str, UnsyncedFile] = {}
        self._process = os.getpid()

    def add(self, folder: str, path: str, staged: StagedFile) -> None:
        """Take over a file that was written and named."""
        if self._process != os.getpid():
            self._files, self._process = {}, os.getpid()
        self._files[path] = UnsyncedFile(self._durable, folder, path, staged)
        for one in list(self._files.values())[:-_MOST_FILES]:
            try:
                one.sync_file()
                one.sync_folder()
            except StoreError:
                continue  # it is kept, and raised to the commit that names it
            self.forget([one.path])

    def syncs(self, paths: Collection[str]) -> list[Callable[[], None]]:
        """Return what makes those of the files that are not durable so; each raises StoreError.

        The calls may run in any order and at once. Call :meth:`forget` after all have succeeded.
        """
        known = self._files
        found = [one for path in paths if (one := known.get(path))] if known else []
        folders = {one.folder: one.sync_folder for one in found}
        return [*(one.sync_file for one in found), *folders.values()]

    def forget(self, paths: Collection[str]) -> None:
        """Forget files that are durable, or that are no concern of this store."""
        known = self._files
        for path in paths if known else ():
            known.pop(path, None)


class UnsyncedFile:
    """A named file; of two threads that make it durable, the second one waits for the first."""

    __slots__ = ("_durable", "_failure", "_lock", "_staged", "folder", "path")

    def __init__(self, durable: DurableFolders, folder: str, path: str, staged: StagedFile) -> None:
        """Keep the open file."""
        self.folder, self.path = folder, path
        self._durable = durable
        self._lock = threading.Lock()
        self._staged: StagedFile | None = staged
        self._failure: OSError | UnknownOutcome | None = None

    def sync_file(self) -> None:
        """Make the content durable, once.

        Raises StoreError, also ever after: the kernel may report lost content as clean.
        """
        with self._lock:
            staged, self._staged = self._staged, None
            if staged is not None:
                try:
                    staged.finish(durable=True)
                except (OSError, UnknownOutcome) as error:
                    self._failure = error
                finally:
                    staged.discard()
        self._raise(self._failure)

    def sync_folder(self) -> None:
        """Make the name durable; raise StoreError, also ever after."""
        failure: OSError | UnknownOutcome | None = None
        try:
            self._durable.sync(self.folder)
        except (OSError, UnknownOutcome) as error:
            failure = error
        self._raise(failure)

    def _raise(self, failure: OSError | UnknownOutcome | None) -> None:
        if isinstance(failure, UnknownOutcome):
            raise not_durable(failure, self.path) from failure
        if failure is not None:
            raise refusal(failure, self.path) from failure
