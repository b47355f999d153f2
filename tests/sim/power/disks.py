"""Which contents a disk may have after a power cut, by the rules of three kinds of file systems.

``ext4`` (data=ordered) and ``xfs`` keep changes of names in their order, across folders; a third
kind, ``folders``, keeps them in order in each folder alone, which POSIX allows. What nobody fsynced
may be there or not, and a file that nobody fsynced may have any part of what was written to it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.power.system_calls import SystemCall

KINDS = ("ext4", "xfs", "folders")
_BLOCK = 4096


@dataclass(eq=False)
class Inode:
    """A file or a folder, and what was written to it, by the calls' lines."""

    is_folder: bool = False
    size: int = 0
    writes: list[tuple[SystemCall, int, bytes]] = field(default_factory=list)
    fsyncs: list[SystemCall] = field(default_factory=list)


@dataclass(frozen=True)
class NameChange:
    """A name in a folder that was given to a file or folder, or taken away."""

    call: SystemCall
    folder: str
    name: str
    inode: Inode
    is_removal: bool = False
    moved_from: str = ""
    """The name, in the same folder, that it had before."""


class Record:
    """The changes below a root, and what was written to a history beside it."""

    def __init__(
        self,
        calls: Iterable[SystemCall],
        root: str,
        history: str,
        lost: Callable[[SystemCall, str], bool] = lambda call, path: False,
    ) -> None:
        """Take the calls; those for which ``lost`` is true, an fsync and its path, did nothing."""
        self.root, self._lost = root, lost
        self.changes: list[NameChange] = []
        self.inodes: list[Inode] = []
        self.told: list[tuple[SystemCall, bytes]] = []
        self.lines: list[int] = []
        """The lines at which something ended that matters."""
        self.dropped = 0
        self._names: dict[str, Inode] = {}
        self._nameless: dict[str, Inode] = {}
        for call in calls:
            if self._note(call, history):
                self.lines.append(call.ended)

    def _note(self, call: SystemCall, history: str) -> bool:
        files, name = call.files(), call.name
        if name in ("openat", "open", "creat"):
            return self._open(call)
        if name in ("write", "pwrite64", "fallocate", "ftruncate"):
            if files[0] == history:
                self.told.append((call, call.texts()[0]))
                return True
            return self._is_below(files[0]) and self._write(call, files[0])
        if name in ("fsync", "fdatasync"):
            return self._is_below(files[0]) and self._fsync(call, files[0])
        texts = [text.decode(errors="replace") for text in call.texts()]
        if name in ("mkdir", "mkdirat") and self._is_below(texts[0]):
            return self._name(call, texts[0], Inode(is_folder=True))
        if name in ("unlink", "unlinkat", "rmdir") and self._is_below(texts[0]):
            return self._remove(call, texts[0])
        if name in ("link", "linkat") and self._is_below(texts[1]):
            is_nameless = texts[0].startswith("/proc/self/fd/")
            source = self._nameless[files[0]] if is_nameless else self._names[texts[0]]
            return self._name(call, texts[1], source)
        if name in ("rename", "renameat", "renameat2") and self._is_below(texts[1]):
            return self._rename(call, texts[0], texts[1])
        if any(map(self._is_below, [*files, *texts])):
            raise NotImplementedError(f"a call that the disks do not know: {call}")
        return False

    def _is_below(self, path: str) -> bool:
        return path == self.root or path.startswith(f"{self.root}/")

    def _open(self, call: SystemCall) -> bool:
        if not self._is_below(call.opened):
            return False
        if "O_TMPFILE" in call.arguments:
            self._nameless[call.opened] = self._new(Inode())
            return False
        if "O_CREAT" in call.arguments and call.opened not in self._names:
            return self._name(call, call.opened, Inode())
        if "O_TRUNC" in call.arguments:
            raise NotImplementedError(f"a file is written over: {call}")
        return False

    def _new(self, inode: Inode) -> Inode:
        if inode not in self.inodes:
            self.inodes.append(inode)
        return inode

    def _name(self, call: SystemCall, path: str, inode: Inode) -> bool:
        self._names[path] = self._new(inode)
        folder, _, name = path.rpartition("/")
        self.changes.append(NameChange(call, folder, name, inode))
        return True

    def _remove(self, call: SystemCall, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        self.changes.append(NameChange(call, folder, name, self._names.pop(path), is_removal=True))
        return True

    def _rename(self, call: SystemCall, source: str, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        before, _, old = source.rpartition("/")
        if before != folder:
            raise NotImplementedError(f"a file moves between folders: {call}")
        inode = self._names[path] = self._names.pop(source)
        self.changes.append(NameChange(call, folder, name, inode, moved_from=old))
        return True

    def _inode(self, path: str) -> Inode:
        return self._names[path] if path in self._names else self._nameless[path]

    def _write(self, call: SystemCall, path: str) -> bool:
        inode = self._inode(path)
        numbers = [n for n in call.arguments.split(", ") if n.isdigit()]
        if call.name == "ftruncate":
            raise NotImplementedError(f"a file is cut: {call}")
        if call.name == "fallocate":
            data, at = bytes(int(numbers[-1])), int(numbers[-2])
        else:
            data = call.texts()[0][: call.result]
            at = int(numbers[-1]) if call.name == "pwrite64" else inode.size
        inode.writes.append((call, at, data))
        inode.size = max(inode.size, at + len(data))
        return True

    def _fsync(self, call: SystemCall, path: str) -> bool:
        if self._lost(call, path):
            self.dropped += 1
            return False
        if path == self.root and path not in self._names:
            return False
        self._inode(path).fsyncs.append(call)
        return True

    # ------------------------------------------------------------------------------- after a cut

    def history(self, line: int) -> bytes:
        """Return what was told before a line."""
        return b"".join(data for call, data in self.told if call.ended <= line)

    def cut(self, source: random.Random) -> int:
        """Draw a line at which the power fails: half of them just when something was told."""
        told = [call.ended for call, _ in self.told]
        return source.choice(told if source.random() < 0.5 else self.lines)

    def write_disk(self, kind: str, line: int, source: random.Random, folder: Path) -> None:
        """Write to a folder what the root may have after a power cut at a line, as drawn."""
        done = [change for change in self.changes if change.call.began <= line]
        kept = _kept_by_folder if kind == "folders" else _kept_in_order
        contents: dict[Inode, bytes] = {}
        tree: dict[str, Inode] = {}
        for change in kept(self, kind, done, line, source):
            path = f"{change.folder}/{change.name}"
            tree.pop(f"{change.folder}/{change.moved_from}", None)
            if change.is_removal:
                tree.pop(path, None)
                tree = {p: inode for p, inode in tree.items() if not p.startswith(f"{path}/")}
            else:
                tree[path] = change.inode
        if kind != "folders" or self.root in tree:
            folder.mkdir(parents=True)
        for path, inode in sorted(tree.items(), key=lambda item: item[0].count("/")):
            target = folder / path[len(self.root) + 1 :]
            if path == self.root or not target.parent.is_dir():
                continue  # a folder that nothing leads to is lost with all in it
            if inode.is_folder:
                target.mkdir()
                continue
            if inode not in contents:
                contents[inode] = content(inode, kind, line, source)
            target.write_bytes(contents[inode])


def _last_durable(changes: Sequence[NameChange], fsync: SystemCall) -> int:
    """How many changes of names, in their order, had ended before an fsync began."""
    return sum(change.call.ended < fsync.began for change in changes)


def _kept_in_order(
    record: Record, kind: str, done: Sequence[NameChange], line: int, source: random.Random
) -> list[NameChange]:
    """A beginning of all changes: the journal is written in order.

    On ext4 any fsync writes all of the journal. On xfs it writes the journal as far as the last
    change of what was fsynced.
    """
    paths = _paths(record)
    least = 0
    for inode in record.inodes:
        for fsync in inode.fsyncs:
            if fsync.ended > line:
                continue
            if kind == "ext4":
                least = max(least, _last_durable(done, fsync))
                continue
            touching = [
                number
                for number, change in enumerate(done, 1)
                if change.call.ended < fsync.began
                and (change.inode is inode or change.folder == paths.get(inode))
            ]
            least = max(least, *touching[-1:], 0)
    return list(done[: source.randint(least, len(done))])


def _kept_by_folder(
    record: Record, kind: str, done: Sequence[NameChange], line: int, source: random.Random
) -> list[NameChange]:
    """A beginning of the changes in each folder: its own fsync makes names durable, no other."""
    paths = _paths(record)
    kept: list[NameChange] = []
    for folder in sorted({change.folder for change in done}):
        mine = [change for change in done if change.folder == folder]
        here = [inode for inode, path in paths.items() if path == folder]  # one after the other
        ended = [f for inode in here for f in inode.fsyncs if f.ended <= line]
        least = max((_last_durable(mine, fsync) for fsync in ended), default=0)
        above = folder == os.path.dirname(record.root)
        kept += mine if above else mine[: source.randint(least, len(mine))]
    return sorted(kept, key=lambda change: change.call.ended)


def _paths(record: Record) -> dict[Inode, str]:
    changes = (change for change in record.changes if change.inode.is_folder)
    return {c.inode: f"{c.folder}/{c.name}" for c in changes if not c.is_removal}


def content(inode: Inode, kind: str, line: int, source: random.Random) -> bytes:
    """Return what a file may have: all that was fsynced, and any blocks behind that.

    A file has a length up to which it was written back. On xfs, and where names have no order, a
    block before that may not have been: it reads as zeros.
    """
    written, durable = bytearray(), 0
    synced = [fsync for fsync in inode.fsyncs if fsync.ended <= line]
    for call, at, data in inode.writes:
        if call.began > line:
            break
        written.extend(bytes(max(0, at + len(data) - len(written))))
        written[at : at + len(data)] = data
        if any(call.ended < fsync.began for fsync in synced):
            durable = len(written)
    if durable == len(written):
        return bytes(written)
    blocks = list(range(-(-durable // _BLOCK) * _BLOCK, len(written), _BLOCK))
    end = source.choice([durable, len(written), *blocks])
    found = written[:end]
    if kind != "ext4":
        for block in blocks:
            if block < end and source.random() < 0.3:
                found[block : block + _BLOCK] = bytes(len(found[block : block + _BLOCK]))
    return bytes(found)
