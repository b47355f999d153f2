"""Atomic files on POSIX: the system calls, and the meaning of their failures."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.object_keys import is_visible
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
            f"{path}: {reason}; this call committed nothing. Free some space and try again.",
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

    A file that vanishes is no error: its process is alive and finished it.
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
