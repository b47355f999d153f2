"""The files below a folder, compared before and after an operation."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

from pravega_spark.engine.log import checkpoint


def wait_for_maintenance() -> None:
    """Wait until this process has written its state files and checkpoints in the background."""
    for worker in list(checkpoint._workers.values()):
        worker.submit(int).result()


def remove(folder: Path | str) -> None:
    """Delete a folder of a root, into which maintenance may be writing in the background."""
    wait_for_maintenance()
    shutil.rmtree(folder)


def move(folder: Path, to: Path) -> Path:
    """Rename a folder of a root, into which maintenance may be writing in the background."""
    wait_for_maintenance()
    return folder.rename(to)


def write_times(folder: Path) -> dict[Path, int]:
    """Return when each file below a folder was last written, after pending log maintenance."""
    wait_for_maintenance()
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def folder_state(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Return inode, time of the last write and digest (of files) of everything below a folder."""
    wait_for_maintenance()
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.stat()
        digest = sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = stat.st_ino, stat.st_mtime_ns, digest
    return found
