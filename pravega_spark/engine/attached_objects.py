"""Objects that are attached to a data file: its name tells their key and their size.

The bytes of a large event are a separate object, ``<name>.event``. The chunk that names it is
``<name>.event-<bytes>.parquet``, in the same folder. So code that lists, copies or deletes a chunk
knows from its path alone which object goes with it, also of a chunk that the log has removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

_MARK: Final = ".event-"
_CHUNK: Final = re.compile(r"(.+\.event)-([0-9]{1,19})\.parquet")


def object_path(folder: str, name: str) -> str:
    """Return the path of a large event's object in a staging folder, relative to the table."""
    return f"data/{folder}/{name}.event"


def chunk_path(attached: str, size_bytes: int) -> str:
    """Return the path of the chunk that names an object of that size."""
    return f"{attached}-{size_bytes}.parquet"


def attached_object(path: str) -> tuple[str, int] | None:
    """Return the path and the size of the object that a data file names, or None."""
    if _MARK not in path:
        return None
    found = _CHUNK.fullmatch(path)
    return None if found is None else (found[1], int(found[2]))


def attached_to(paths: Iterable[str]) -> set[str]:
    """Return the paths of the objects that some data files name."""
    found = (attached_object(path) for path in paths)
    return {attached[0] for attached in found if attached is not None}


def with_attached(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths of data files, each with that of its object if it has one."""
    for path in paths:
        yield path
        attached = attached_object(path)
        if attached is not None:
            yield attached[0]


def stored_bytes_of(path: str, size: int) -> int:
    """Return the bytes that a data file of ``size`` stores, its object included."""
    attached = attached_object(path)
    return size if attached is None else size + attached[1]
