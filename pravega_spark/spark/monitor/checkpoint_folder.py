"""What Spark noted of a streaming query in its checkpoint folder, read without Spark.

``offsets/N`` is written before batch N: a line with the format's version, a line of JSON about the
query, and a line for each source. In format v1 that is its offset, ``-`` if it has none yet; in
v2 the source's number or name and a colon come before it. ``commits/N`` is written when the batch
is done, the sink's commit included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.engine.store import Store, open_store
from pravega_spark.errors import InvalidInput
from pravega_spark.names import is_number
from pravega_spark.spark.source_offsets import find_record


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch that is done, and where it left each source of ours, as ``offsets`` encodes it."""

    number: int
    offsets: tuple[Mapping[str, Any], ...]


def last_finished(checkpoint: str) -> FinishedBatch | None:
    """Return the last batch that is done; None if none is.

    ``checkpoint`` is the query's ``checkpointLocation``: a path or a URL. Raises InvalidInput for
    a folder that is none, or of a Spark that is not known here.
    """
    store = open_store(checkpoint)
    planned = _batches(store, "offsets")
    if not planned:
        raise InvalidInput(
            f"{checkpoint} is no checkpoint of a streaming query: it has no offsets. Name the "
            "folder that was given as checkpointLocation."
        )
    done = planned & _batches(store, "commits")
    if not done:
        return None
    number = max(done)
    lines = store.get(f"offsets/{number}").decode().splitlines()
    return FinishedBatch(number, tuple(_offsets(f"{checkpoint}/offsets/{number}", lines)))


def _batches(store: Store, folder: str) -> set[int]:
    names = (entry.key.rpartition("/")[2] for entry in store.list(folder))
    return {int(name) for name in names if is_number(name)}


def _offsets(file: str, lines: list[str]) -> Iterator[Mapping[str, Any]]:
    version = lines[0] if lines else ""
    if version not in ("v1", "v2"):
        raise InvalidInput(
            f"{file} has format {version!r}, and this version of pravega_spark knows v1 and v2; "
            "upgrade the package."
        )
    for line in lines[2:]:
        text = line.partition(":")[2] if version == "v2" else line
        record = find_record(text)  # other lines are of other sources, or "-"
        if record is not None:
            yield record
