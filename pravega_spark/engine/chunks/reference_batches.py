"""Marks the batch of a large event, so that whoever hands it on knows that it holds a reference.

The mark is metadata of the batch's schema. Such a batch has one row, and is never joined.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Final

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.json_codec import to_json

_MARK: Final = b"pravega.large_event"


def marked(batch: pa.RecordBatch, ref: ChunkRef) -> pa.RecordBatch:
    """Return the batch of a chunk; marked if its event is the reference of a large one."""
    if not ref.attachment or "event" not in batch.schema.names:
        return batch
    return batch.replace_schema_metadata({_MARK: to_json(astuple(ref)).encode()})


def marked_ref(batch: pa.RecordBatch | pa.Table) -> ChunkRef | None:
    """Return the chunk whose reference a batch holds; None for a batch of events."""
    found = batch.schema.metadata
    return None if not found or _MARK not in found else ChunkRef(*json.loads(found[_MARK]))
