"""Reads the checkpoint folder of a streaming query without Spark.

Spark writes ``offsets/N`` before batch N: a line with the format version, a line of JSON about the
query, and a line for each source. In format v1 the line is the source's offset, or ``-`` without
one; in v2 the source's number or name and a colon precede it. Spark writes ``commits/N`` after
the batch, including the sink's commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.engine.store import Store, open_store
from pravega_spark.errors import InvalidInput
from pravega_spark.spark.source_offsets import find_record
from pravega_spark.values.names import is_number


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A committed batch, and the encoded end offsets of its sources of this package."""

    number: int
    offsets: tuple[Mapping[str, Any], ...]


def last_committed_batch(checkpoint: str) -> CommittedBatch | None:
    """Return the last committed batch; None if no batch is committed.

    ``checkpoint`` is the query's ``checkpointLocation``: a path or a URL. Raises InvalidInput if
    the folder is not a checkpoint, or has a format that this version does not know.
    """
    store = open_store(checkpoint)
    planned = _batches(store, "offsets")
    if not planned:
        raise InvalidInput(
            f"{checkpoint} is not the checkpoint of a streaming query: it has no offsets. Name the "
            "folder that the query has as checkpointLocation."
        )
    committed = planned & _batches(store, "commits")
    if not committed:
        return None
    number = max(committed)
    lines = store.get(f"offsets/{number}").decode().splitlines()
    return CommittedBatch(number, tuple(_offsets(f"{checkpoint}/offsets/{number}", lines)))


def _batches(store: Store, folder: str) -> set[int]:
    names = (entry.key.rpartition("/")[2] for entry in store.list(folder))
    return {int(name) for name in names if is_number(name)}


def _offsets(file: str, lines: list[str]) -> Iterator[Mapping[str, Any]]:
    version = lines[0] if lines else ""
    if version not in ("v1", "v2"):
        raise InvalidInput(
            f"{file} has format {version!r}, but this version of pravega_spark knows only v1 and "
            "v2; upgrade the package."
        )
    for line in lines[2:]:
        text = line.partition(":")[2] if version == "v2" else line
        record = find_record(text)  # None for "-" and for other sources
        if record is not None:
            yield record
