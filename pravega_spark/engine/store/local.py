"""A folder of a POSIX file system as a store: atomic files, exclusive names, durable writes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from pravega_spark.engine.store.base import Entry, PutOutcome, check_key, check_prefix
from pravega_spark.engine.store.file_objects import ObjectSink
from pravega_spark.engine.store.local_files import (
    ABSENT,
    REOPEN,
    DurableFolders,
    ExpectedFolders,
    StagedFile,
    UnknownOutcome,
    UnsyncedFiles,
    discard_old,
    file_system,
    finish_in,
    is_full,
    list_folder,
    lowest_folder,
    make_folder,
    not_durable,
    prune,
    publish,
    read_file,
    redirected,
    refusal,
    root_changed,
    supports_nameless,
    vanished,
    write_error,
)
from pravega_spark.engine.store.reserve import Reserve, may_use_reserve
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.store.store_cache import shared
from pravega_spark.errors import StoreError

_PUBLISH_ATTEMPTS = 10
"""How often a put creates its folder again while deletions prune it."""


class LocalStore:
    """A store on a local disk or any mounted file system with hard links.

    A file gets its final name by ``link(2)``, which fails if the name is taken and shows the
    complete content. An acknowledged write was fsynced, together with its folder and the folder's
    ancestors. Symbolic links in the root's path are followed once. After a failed fsync of a
    folder this store refuses the folder: repair the disk and open the root in a new process.
    """

    is_local = True
    has_clock = False
    retry_seconds = 0.0
    cache_bytes = 0
    response_date = None

    def __init__(self, path: str):
        """Take an absolute path; the folder need not exist, and nothing is created yet."""
        self._given, self._root = path, os.path.realpath(path)
        self._base = self._root if self._root.endswith("/") else self._root + "/"
        self._durable = DurableFolders(os.path.realpath(lowest_folder(path)))
        self._unsynced = UnsyncedFiles(self._durable)
        self._expected = ExpectedFolders(self._root)
        self._reserve = Reserve(self._root)
        self._nameless = hasattr(os, "O_TMPFILE")
        self._check: Callable[[], object] = bool  # allows everything: no root is known yet
        self._opened: str | None = None

    @property
    def url(self) -> str:
        """The root as a ``file://`` URL."""
        return f"file://{self._given}"

    @property
    def storage(self) -> str:
        """The kind and id of the file system: a root may move within it."""
        return file_system(self._root)

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle as the path."""
        return shared, (LocalStore, self._given)

    def time_ms(self) -> int:
        """Return the time that a new file gets: this host's, or a file server's own."""
        try:
            staged = StagedFile(self._root, nameless=self._nameless)
        except OSError:
            return time.time_ns() // 1_000_000
        try:
            return staged.modified_ms()
        finally:
            staged.discard()

    def modified_ms(self, key: str) -> int | None:
        """Return when the file was written; None if absent."""
        path = self._base + check_key(key)
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except ABSENT:
            return None
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}.", url=path) from error

    def get(self, key: str) -> bytes:
        """Return the whole file."""
        return read_file(self._base + check_key(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a part of the file."""
        return read_file(self._base + check_key(key), start, end)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the files in order, None for each absent one."""
        found: list[bytes | None] = []
        for key in keys:
            try:
                found.append(self.get(key))
            except FileNotFoundError:
                found.append(None)
        return found

    def exists(self, key: str) -> bool:
        """Return True if the file exists now."""
        return os.path.isfile(self._base + check_key(key))

    def fill_reserve(self, *, at_first: bool = False) -> None:
        """Set aside what the reserve misses (see ``reserve``), as far as there is space."""
        if not self._reserve.is_full and os.path.isfile(self._base + MARKER_KEY):
            self._reserve.fill(at_first=at_first)

    def change_token(self, key: str) -> object:
        """Return the file's device, inode and time; raise RootChanged if a link of the root did."""
        if self._given != self._root and os.path.realpath(self._given) != self._root:
            raise redirected(self._given, self._root)
        try:
            status = os.stat(self._base + key)
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def set_root_check(self, check: Callable[[], None]) -> None:
        """From now on, call ``check`` before each write, deletion and listing."""
        self._check, self._opened = check, self._root

    def expect(self, prefix: str, *, is_there: bool) -> None:
        """From now on, refuse to create the folder and those above it, if it is there."""
        self._expected.note(self._base + check_prefix(prefix), is_there=is_there)

    def put_if_absent(
        self, key: str, data: bytes, *, after: str | None = None, staged: Sequence[str] = ()
    ) -> PutOutcome:
        """Create the file unless it exists; UNKNOWN if the disk fails it, not a staged one."""
        path = self._base + check_key(key)
        self._check()
        if os.path.isfile(path):  # saves the loser of a race an fsync
            return PutOutcome.EXISTS
        if after is not None and not os.path.isfile(self._base + after):
            raise root_changed(self.url, after)
        waiting = [self._base + key for key in staged]
        syncs = self._unsynced.syncs(waiting)
        try:
            created = self._publish(path, data, durable=True, after=after, syncs=syncs)
        except UnknownOutcome:
            return PutOutcome.UNKNOWN
        except StoreError:
            if os.path.isfile(path):  # the staged files were swept after a race that we have lost
                return PutOutcome.EXISTS
            raise
        self._unsynced.forget(waiting)
        if not created and os.path.isdir(path):
            raise StoreError(f"{path} is a folder; use another key.", url=path)
        return PutOutcome.CREATED if created else PutOutcome.EXISTS

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        """Create or replace the file by one rename."""
        path = self._base + check_key(key)
        self._check()
        try:
            self._publish(path, data, replace=True, durable=durable)
        except UnknownOutcome as error:
            raise not_durable(error, path) from error

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or replace the files; their fsyncs overlap, and each folder is fsynced once."""
        files = {self._base + check_key(key): data for key, data in objects}
        self._check()
        for folder in {self._folder_of(path, durable=True) for path in files}:
            if not os.path.isdir(folder):
                self._make_folder(folder)
        try:
            for folder in publish(files, self._durable.anchor, nameless=self._nameless):
                self._durable.sync(folder)
        except UnknownOutcome as error:
            raise not_durable(error, ", ".join(files)) from error
        except OSError:  # a folder was pruned, or there are no nameless files: one by one
            for key, data in objects:
                self.put(key, data)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the files; the put that names them makes them durable."""
        self._check()
        for key, data in objects:
            self._publish(self._base + check_key(key), data, durable=True, is_staged=True)

    @contextlib.contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        """Yield a file under a hidden name, which gets its name by one rename at the end."""
        path = self._base + check_key(key)
        self._check()
        folder = self._folder_of(path, durable=True)
        staged = self._hidden_file(folder, path)
        try:
            yield ObjectSink(staged.write, lambda error: write_error(error, path)).as_arrow()
            try:
                staged.finish(durable=True)
                self._check()
                self._name(staged, folder, path, replace=True, durable=True)
            except (OSError, UnknownOutcome) as error:
                raise write_error(error, path) from error
        finally:
            staged.discard()

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the files, and folders that become empty, since object stores have no folders."""
        self._check()
        folders = set()
        for key in keys:
            path = self._base + check_key(key)
            try:
                os.unlink(path)
            except ABSENT:
                continue
            except OSError as error:
                raise refusal(error, path) from error
            folders.add(os.path.dirname(path))
        for folder in folders:
            prune(folder, self._root)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        """Delete hidden files of killed processes, and checksums of files that do not exist."""
        self._check()
        folder = self._base + check_prefix(prefix)
        found = discard_old(folder, lambda: self.time_ms() - older_ms, deep=deep)
        for folder in {os.path.dirname(entry.key) for entry in found}:
            prune(folder, self._root)
        return [replace(entry, key=entry.key[len(self._base) :]) for entry in found]

    def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly below ``prefix``."""
        self._check()
        try:
            with os.scandir(self._base + check_prefix(prefix)) as items:
                return sorted(item.name for item in items if item.is_dir())
        except ABSENT:
            return []
        except OSError as error:
            raise StoreError(
                f"{self._base}{prefix} cannot be listed: {error.strerror}.", url=self._base + prefix
            ) from error

    def open(self, key: str) -> pa.NativeFile:
        """Open the file for random reads; not mapped, so that a damaged disk causes no SIGBUS."""
        path = self._base + check_key(key)
        try:
            return pa.OSFile(path, "r")
        except OSError as error:
            if isinstance(error, ABSENT) or not os.path.isfile(path):
                raise FileNotFoundError(f"{path} does not exist.") from None
            raise StoreError(f"{path} cannot be read: {error}.", url=path) from error

    def make_durable(self, prefix: str) -> None:
        """Fsync the folder and its ancestors, so that its entries can be reached after a crash."""
        folder = (self._base + check_prefix(prefix)).rstrip("/")
        try:
            self._durable.sync(folder)
        except ABSENT:
            return  # nothing is visible in a folder that does not exist
        except UnknownOutcome as error:
            reason = f"cannot be made durable: {error}. {REOPEN}"
            raise StoreError(f"{folder} {reason}", url=folder) from error
        except OSError as error:
            raise refusal(error, folder) from error

    def _publish(
        self,
        path: str,
        data: bytes | pa.Buffer,
        *,
        replace: bool = False,
        durable: bool,
        after: str | None = None,
        syncs: Sequence[Callable[[], object]] = (),
        is_staged: bool = False,
    ) -> bool:
        """Write a new file and name it; return False if the name is taken.

        Creates a missing folder, unless ``after`` is missing. ``syncs`` are called before naming.
        """
        folder = self._folder_of(path, durable=durable)
        take: Callable[[str], bool] | None = None
        for attempt in range(_PUBLISH_ATTEMPTS):
            nameless = self._nameless and attempt < 2
            staged: StagedFile | None = None
            try:
                staged = StagedFile(folder, nameless=nameless, take=take)
                staged.write(data)
                if is_staged:
                    self._name(staged, folder, path, replace=True, durable=False)
                    file, staged = staged, None
                    self._unsynced.add(folder, path, file)
                    return True
                if durable:
                    anchor = None if folder in self._durable.anchored else self._durable.anchor
                    finish_in(folder, [staged], anchor, syncs)
                else:
                    staged.finish(durable=False)
                return self._name(staged, folder, path, replace=replace, durable=durable)
            except StoreError:
                self._check()  # a file vanished with the root: that is the error to raise
                raise
            except FileNotFoundError:
                if after is not None and not os.path.isfile(self._base + after):
                    raise root_changed(self.url, after) from None
                self._make_folder(folder)  # on the first put, or after a deletion pruned it
            except OSError as error:
                if is_full(error) and may_use_reserve():
                    if take is not None and not self._reserve.drop():
                        raise refusal(error, path) from error
                    take = partial(self._reserve.take, len(memoryview(data).cast("B")))
                    continue
                if not nameless or supports_nameless(error):
                    raise refusal(error, path) from error
                self._nameless = False
            finally:
                if staged is not None:
                    staged.discard()
        raise vanished(path, _PUBLISH_ATTEMPTS)

    def _hidden_file(self, folder: str, path: str) -> StagedFile:
        """Create an empty hidden file, which keeps its folder from being pruned."""
        for _ in range(_PUBLISH_ATTEMPTS):
            try:
                return StagedFile(folder, nameless=False)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):
                    raise refusal(error, path) from error
            self._make_folder(folder)
        raise vanished(folder, _PUBLISH_ATTEMPTS)

    def _folder_of(self, path: str, *, durable: bool) -> str:
        """Return the folder of a file that is to be written, if it can be durable."""
        folder = path[: path.rindex("/")]
        if durable:
            self._durable.check(folder, path)
        return folder

    def _name(
        self, staged: StagedFile, folder: str, path: str, *, replace: bool, durable: bool
    ) -> bool:
        """Name a finished file; return False if the name is taken."""
        if not staged.link(path):
            if not replace:
                return False
            staged.replace(path)
        staged.drop_hidden_name()
        if durable:
            try:
                self._durable.sync(folder)
            except OSError as error:  # the file has its name, so this is not a refusal
                raise UnknownOutcome(f"fsync of {folder}: {error}") from error
        return True

    def _make_folder(self, folder: str) -> None:
        self._check()
        try:
            self._expected.check(folder)
            self._durable.find_missing(folder)
            make_folder(folder, self._reserve, self._opened)
        except StoreError:
            self._check()  # the root was removed after the check above
            raise

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        """Return the files below the folder ``prefix``; skipped files cost no system call."""
        self._check()
        found: list[Entry] = []
        waiting = [check_prefix(prefix)]
        while waiting:
            folder = waiting.pop()
            try:
                waiting += list_folder(self._base, folder, after, before, found)
            except ABSENT:
                continue
            except OSError as error:
                raise StoreError(
                    f"{self._base}{folder}: {error.strerror}.", url=self._base + folder
                ) from error
        found.sort(key=lambda entry: entry.key)
        return found
