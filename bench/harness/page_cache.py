"""The page cache of the system, from which a file is read without the disk."""

from __future__ import annotations

import os
from pathlib import Path


def forget_pages(folder: Path) -> None:
    """Drop the files of a folder, and of those below it, from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # pages that are not on the disk yet would stay
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
