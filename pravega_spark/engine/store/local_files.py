"""Files and folders of a local disk: atomic, exclusive, and durable in time.

A staged file has its name at once, and becomes durable just before a commit names it. A commit
waits for the disk twice, at any size: its chunks, their folder and its own hidden file are fsynced
together, which shares one write of the file system's journal. Only then does the commit get its
name, and its folder is fsynced.
"""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import pyarrow as pa

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.base import Entry, is_visible
from pravega_spark.engine.store.reserve import Reserve, may_use_reserve
from pravega_spark.errors import RootChanged, StoreError, StoreFull, StoreReadOnly, StoreRefused

ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_NO_LINKS = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
)
# Errors of opening or linking a nameless file where that is not supported (NFS, no /proc).
_NAMELESS_UNSUPPORTED = _NO_LINKS | {errno.EISDIR, errno.EINVAL, errno.EACCES, errno.ELOOP}
_O_TMPFILE = getattr(os, "O_TMPFILE", 0)
_REDATE_SECONDS = 1.0


class _HiddenNames:
    """Names that no other process or call uses, even after a fork."""

    def __init__(self) -> None:
        self._counter = itertools.count()
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._process = f"{os.getpid()}-{os.urandom(8).hex()}"

    def __next__(self) -> str:
        return f".{self._process}-{next(self._counter)}.tmp"


_hidden_names = _HiddenNames()
_HIDDEN_NAME = re.compile(r"\.\d+-[0-9a-f]{16}-\d+\.tmp")
_CHECKSUM_NAME = re.compile(r"\.(part-.+)\.crc")


def read_file(path: str, start: int = 0, end: int | None = None) -> bytes:
    """Return bytes [start, end) of a file; all by default. Raise FileNotFoundError, StoreError."""
    try:
        with open(path, "rb", buffering=0) as file:
            if start:
                file.seek(start)
            return file.readall() if end is None else _read_up_to(file, end - start)
    except ABSENT:
        raise FileNotFoundError(f"{path} does not exist.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.", url=path) from error


def _read_up_to(file: io.FileIO, size: int) -> bytes:
    data = file.read(size) if size > 0 else b""
    while data and len(data) < size and (more := file.read(size - len(data))):
        data += more  # a read may return less than is there, above 2 GiB and on some mounts
    return data


def is_hidden_name(name: str) -> bool:
    """Return True for the name of a staged file of ours that has no final name yet."""
    return _HIDDEN_NAME.fullmatch(name) is not None


def checked_name(name: str) -> str | None:
    """Return the file whose Hadoop checksum is in the hidden file ``name``, or None.

    Spark writes such a file next to each ``part-*`` file on a local disk.
    """
    found = _CHECKSUM_NAME.fullmatch(name)
    return None if found is None else found[1]


class UnknownOutcome(Exception):
    """A system call failed, and may or may not have had its effect."""


class LinkRefused(OSError):
    """The file system has no hard links, and so no atomic exclusive create."""


class StagedFile:
    """A written file without its final name: nameless (O_TMPFILE), or under a hidden name.

    Nameless files are a fifth faster, and a killed process leaves none behind.
    """

    def __init__(self, folder: str, *, nameless: bool, take: Callable[[str], bool] | None = None):
        """Create an empty file in ``folder``.

        ``take`` moves a file to a path, whose blocks this one takes over, and returns False if it
        has none; then the disk is full.
        """
        self._folder = folder
        self._written = time.monotonic()
        self._hidden_path: str | None = None
        self._has_blocks = take is not None
        if take is not None:
            self._hidden_path = self._new_hidden_path()
            if not take(self._hidden_path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._descriptor = os.open(self._hidden_path, os.O_WRONLY | os.O_CLOEXEC)
        elif nameless:
            self._descriptor = os.open(folder, os.O_WRONLY | _O_TMPFILE | os.O_CLOEXEC, 0o666)
        else:
            self._hidden_path = self._new_hidden_path()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._descriptor = os.open(self._hidden_path, flags, 0o666)

    def _new_hidden_path(self) -> str:
        return f"{self._folder}/{next(_hidden_names)}"

    def write(self, data: bytes | pa.Buffer) -> None:
        """Append ``data``."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def finish(self, *, durable: bool) -> None:
        """End the file's content; fsync it if ``durable``."""
        if self._has_blocks:
            os.ftruncate(self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_CUR))
        if durable:
            _sync(self._descriptor)
        if self._hidden_path is not None:  # NFS reports a failed write only here
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def modified_ms(self) -> int:
        """Return when the file was written, by the clock of its file system."""
        found = os.stat(self._hidden_path or self._descriptor)
        return found.st_mtime_ns // 1_000_000

    def link(self, path: str) -> bool:
        """Give the file its name; return False if the name is taken.

        A file that waited long for its name gets a new date: the date is the time of naming.
        """
        try:
            self._link(path)
            if time.monotonic() - self._written > _REDATE_SECONDS:
                os.utime(path)
        except FileExistsError:
            # A network file system may have linked the file, lost the answer, and tried again.
            return self._was_linked()
        except OSError as error:
            if self._was_linked():
                return True
            if error.errno in _NO_LINKS:
                raise LinkRefused(error.errno, error.strerror) from error
            if error.errno in (errno.EIO, errno.ETIMEDOUT, errno.ESTALE):
                raise UnknownOutcome(f"link to {path}: {error}") from error
            raise
        return True

    def replace(self, path: str) -> None:
        """Give the file its name, and replace a file that has it."""
        if self._hidden_path is None:
            hidden_path = self._new_hidden_path()
            self._link(hidden_path)
            self._hidden_path = hidden_path
        os.rename(self._hidden_path, path)
        self._hidden_path = None

    def _link(self, path: str) -> None:
        if self._hidden_path is not None:
            os.link(self._hidden_path, path)
        else:
            source = f"/proc/self/fd/{self._descriptor}"
            # A folder descriptor, although useless for this path, makes Python call linkat(2).
            os.link(source, path, src_dir_fd=self._descriptor, follow_symlinks=True)

    def _was_linked(self) -> bool:
        if self._hidden_path is None:
            return os.fstat(self._descriptor).st_nlink == 1
        try:
            return os.stat(self._hidden_path).st_nlink == 2
        except OSError:
            return False

    def drop_hidden_name(self) -> None:
        """Delete the hidden name, if there is one; the file stays open."""
        if self._hidden_path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._hidden_path)
            self._hidden_path = None

    def discard(self) -> None:
        """Delete the staged file; a final name that it got stays."""
        self.drop_hidden_name()
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def is_full(error: OSError) -> bool:
    """Return True if the disk, or the user's quota of it, has no space left."""
    return error.errno in _FULL


def supports_nameless(error: OSError) -> bool:
    """Return True if nameless files may work although one failed with ``error``."""
    return error.errno not in _NAMELESS_UNSUPPORTED


def file_system(path: str) -> str:
    """Return the kind and the id of the file system that holds ``path``.

    The id is the file system's own if it has one, so that it is stable over remounts.
    """
    while True:
        try:
            device, number = os.stat(path).st_dev, os.statvfs(path).f_fsid
            break
        except (FileNotFoundError, NotADirectoryError):  # a folder may go at any moment
            if path == "/":
                raise
            path = os.path.dirname(path)
    kind, wanted = "", f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == wanted:
                kind = fields[fields.index("-") + 1]
    return f"{kind or os.name} {number:x}"


def lowest_folder(path: str) -> str:
    """Return ``path`` or its lowest ancestor that exists; raise StoreRefused if that is a file."""
    top = path
    while not os.path.isdir(top):
        if os.path.lexists(top):
            raise StoreRefused(
                f"{top} is a file, not a folder: give another root than {path}.", url=path
            )
        top = os.path.dirname(top)
    return top


def sync_folder(folder: str) -> None:
    """Fsync the folder's entries. Raise UnknownOutcome if the disk fails."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise UnknownOutcome(f"fsync of {folder}: {error}") from error
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if (
            error.errno in _FULL
        ):  # NFS and delayed allocation: reported before the file has its name
            raise
        raise UnknownOutcome(f"fsync: {error}") from error


def refusal(error: OSError, path: str) -> StoreError:
    """Return the error to raise for a failed system call on ``path``."""
    reason = error.strerror or str(error)
    if isinstance(error, LinkRefused):
        return StoreRefused(
            f"{path}: its file system has no hard links ({reason}), so creates would not be "
            "exclusive. Use a POSIX file system such as ext4, xfs or NFS, or an object store.",
            url=path,
        )
    if error.errno in _FULL:
        return StoreFull(
            f"{path}: {reason}. It was not written, and nothing that needs it is committed. Free "
            "some space and try again.",
            url=path,
        )
    if error.errno in _READ_ONLY:
        return StoreReadOnly(
            f"{path}: {reason}. Give this user the right to write there, or use another root.",
            url=path,
        )
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return StoreError(
            f"{path}: {reason}. A file exists where a folder is needed, or the reverse.", url=path
        )
    return StoreError(f"{path}: {reason}.", url=path)


def write_error(error: Exception, path: str) -> Exception:
    """Return the error to raise for a failure while a file is written."""
    if isinstance(error, UnknownOutcome):
        return not_durable(error, path)
    if isinstance(error, OSError) and not isinstance(error, StoreError):
        return refusal(error, path)
    return error


def not_durable(error: UnknownOutcome, path: str) -> StoreError:
    """Return the error for a file that was named, but may vanish in a crash."""
    return StoreError(
        f"{path} may not be durable: {error}. Check the disk, then write it again.", url=path
    )


def vanished(path: str, attempts: int) -> StoreError:
    """Return the error for a folder that deletions pruned again and again."""
    return StoreError(
        f"{path}: the folder vanished {attempts} times while a file was written.", url=path
    )


def root_changed(url: str, before: str) -> RootChanged:
    """Return the error for a write whose predecessor ``before`` does not exist."""
    return RootChanged(
        f"{url}: {before}, the version before this write, does not exist: the root was "
        "removed, moved, unmounted or restored while it was open, or this process paused until "
        "the log was cleaned past the version that it knew. Nothing was written. Restore or "
        "mount a missing root, then open the object through a new StreamManager; if an older copy "
        "of the root was put in its place, in a new process."
    )


def redirected(path: str, root: str) -> RootChanged:
    """Return the error for a root whose path leads to another folder than ``root`` now."""
    return RootChanged(
        f"file://{path} led to {root} when it was opened, and leads to {os.path.realpath(path)} "
        "now: a symbolic link was changed. Change it back, or use the present "
        "root through a new StreamManager."
    )


def useless_once_old(names: Sequence[str]) -> list[str]:
    """Return the files of a folder that are useless once they are old."""
    present = set(names)
    checked = {name: checked_name(name) for name in names}
    return [n for n, of in checked.items() if is_hidden_name(n) or (of and of not in present)]


def list_folder(
    base: str, folder: str, after: str | None, before: str | None, found: list[Entry]
) -> list[str]:
    """Add the files in one folder to ``found``; return its folders that may hold more."""
    inside = []
    with os.scandir(base + folder) as items:
        for item in items:
            key = folder + item.name
            if before is not None and key >= before:
                continue
            if item.is_dir():
                key += "/"
                if after is None or key > after or after.startswith(key):
                    inside.append(key)
            elif is_visible(key) and (after is None or key > after):
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    status = item.stat()
                    found.append(Entry(key, status.st_size, status.st_mtime_ns // 1_000_000))
    return inside


def delete_old(folder: str, names: Sequence[str], before_ms: int) -> list[Entry]:
    """Delete those files of a folder that were written before a time; return them by their paths.

    A file may vanish: then its process is alive and has finished it.
    """
    found: list[Entry] = []
    for name in names:
        path = f"{folder.rstrip('/')}/{name}"
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            modified_ms = status.st_mtime_ns // 1_000_000
            if modified_ms < before_ms:
                os.unlink(path)
                found.append(Entry(path, status.st_size, modified_ms))
    return found


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


def make_folder(folder: str, reserve: Reserve, root: str | None) -> None:
    """Create a folder and those above it; raise the error of a refused write.

    Never create ``root``, an opened root: whoever removed it would find it there again. On a full
    disk a piece of the reserve makes room, if this thread may use that.
    """
    for attempt in range(_ATTEMPTS):
        try:
            _make_below(root, folder)
        except OSError as error:  # perhaps another process pruned a folder above it
            if is_full(error) and may_use_reserve() and reserve.drop():
                continue
            if not isinstance(error, FileNotFoundError) or attempt == _ATTEMPTS - 1:
                raise refusal(error, folder) from error
        else:
            return


def _make_below(root: str | None, folder: str) -> None:
    if os.path.isdir(folder):
        return
    if folder == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    _make_below(root, os.path.dirname(folder))
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


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


_MOST_FILES = 64
"""More files are fsynced at once: they hold descriptors, and may belong to abandoned batches."""


class UnsyncedFiles:
    """The named files of one store that may not be durable yet.

    Thread-safe without a lock, because a fork would copy a locked one. A forked child forgets the
    files, which only its parent commits.
    """

    def __init__(self, durable: DurableFolders) -> None:
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
        """Forget files that are durable, or that do not concern this store."""
        known = self._files
        for path in paths if known else ():
            known.pop(path, None)


class UnsyncedFile:
    """A named file; of two threads that make it durable, the second one waits for the first."""

    __slots__ = ("_durable", "_failure", "_lock", "_staged", "folder", "path")

    def __init__(self, durable: DurableFolders, folder: str, path: str, staged: StagedFile) -> None:
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


Anchor = Callable[[str], object]
"""Makes a folder reachable after a crash."""


def publish(files: Mapping[str, bytes | pa.Buffer], anchor: Anchor, *, nameless: bool) -> set[str]:
    """Write new files durably, name them by their paths, and return their folders.

    The caller fsyncs the folders, which must exist.
    """
    folders: dict[str, list[StagedFile]] = {}
    with ExitStack() as discarded:
        written: dict[str, StagedFile] = {}
        for path, data in files.items():
            folder = os.path.dirname(path)
            file = written[path] = StagedFile(folder, nameless=nameless)
            discarded.callback(file.discard)
            folders.setdefault(folder, []).append(file)
            file.write(data)
        for folder, staged in folders.items():
            finish_in(folder, staged, anchor)
        for path, file in written.items():
            if not file.link(path):
                file.replace(path)
    return set(folders)


def finish_in(
    folder: str,
    staged: Iterable[StagedFile],
    anchor: Anchor | None,
    others: Sequence[Callable[[], object]] = (),
) -> None:
    """Finish written files durably while their folder is anchored and ``others`` run.

    The fsyncs run in parallel: concurrent ones share one write of the file system's journal. An
    error of the others counts most.
    """
    work = [*others[1:]]
    if anchor is not None:
        work.append(partial(anchor, folder))
    work += [partial(file.finish, durable=True) for file in staged]
    work += others[:1]  # the last one runs in this thread, and its error is raised
    SYSTEM.each(lambda call: call(), work)
