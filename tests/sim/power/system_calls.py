"""What processes asked of the file system, recorded by strace, in the order of the ends."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_TRACED = (
    "open,openat,creat,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,fallocate,"
    "link,linkat,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,symlink,symlinkat,"
    "fsync,fdatasync,sync,syncfs,copy_file_range,sendfile,splice"
)
_LINE = re.compile(r"(\d+) +(.*)")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)(.*)", re.DOTALL)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE = re.compile(r"<((?:\\x[0-9a-f]{2})+)>")


@dataclass(frozen=True)
class SystemCall:
    """A call that succeeded: the lines of the record at which it began and ended."""

    began: int
    ended: int
    process: int
    """The thread."""
    name: str
    arguments: str
    """As strace has it, with texts in hex."""
    result: int
    opened: str
    """The path of the file that it opened."""

    def texts(self) -> list[bytes]:
        """Return its texts: paths, and what is written."""
        return [_bytes(found) for found in _TEXT.findall(self.arguments)]

    def files(self) -> list[str]:
        """Return the paths of its descriptors, of folders that paths are relative to as well."""
        return [_bytes(found).decode() for found in _FILE.findall(self.arguments)]


def recorded(command: Sequence[str], record: Path, **options: object) -> list[SystemCall]:
    """Run a command, with its children, and return their calls on files."""
    strace = ["strace", "-f", "-y", "-xx", "-s", str(1 << 28), "--seccomp-bpf", "-o", str(record)]
    strace += ["-e", f"trace={_TRACED}", "-e", "signal=none"]
    subprocess.run([*strace, *command], check=True, **options)  # type: ignore[call-overload]
    with record.open() as lines:
        return list(parsed(lines))


def parsed(lines: Iterator[str]) -> Iterator[SystemCall]:
    """Yield the calls of a record that succeeded."""
    begun: dict[int, tuple[int, str]] = {}
    for at, line in enumerate(lines):
        found = _LINE.match(line)
        if found is None:
            continue
        process, said = int(found[1]), found[2]
        began = at
        if said.endswith("<unfinished ...>"):
            begun[process] = (at, said.removesuffix("<unfinished ...>"))
            continue
        resumed = _RESUMED.match(said)
        if resumed is not None:
            began, first = begun.pop(process)
            said = first + resumed[1]
        call = _CALL.match(said)
        if call is None or int(call[3]) < 0:
            continue
        opened = _FILE.search(call[4])
        path = "" if opened is None else _bytes(opened[1]).decode()
        yield SystemCall(began, at, process, call[1], call[2], int(call[3]), path)


def _bytes(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal.replace("\\x", ""))
