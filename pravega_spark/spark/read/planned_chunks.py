"""The chunks of a planned range, as they travel from the driver to a task."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from pravega_spark.engine.chunks.chunk import ChunkRef

_values = attrgetter(*(field.name for field in fields(ChunkRef)))


class PlannedChunks(tuple[ChunkRef, ...]):
    """Chunks in offset order. Pickled as compressed columns, once for all ranges that share them.

    So a plan of many parts, each of which reads all chunks, costs the driver no more than one.
    """

    def __reduce__(self) -> tuple[Callable[[bytes], PlannedChunks], tuple[bytes]]:
        """Return the columns; copies of the plan that are pickled later take the same bytes."""
        kept: dict[str, Any] = self.__dict__
        if "packed" not in kept:
            columns = [*zip(*map(_values, self), strict=True)]
            kept["packed"] = zlib.compress(json.dumps(columns).encode(), 1)
        return _unpacked, (kept["packed"],)


def _unpacked(packed: bytes) -> PlannedChunks:
    columns = json.loads(zlib.decompress(packed))
    return PlannedChunks(map(ChunkRef, *columns)) if columns else PlannedChunks()
