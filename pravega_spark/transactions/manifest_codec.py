"""One manifest of a transaction: its fields, and its bytes."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Final

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.delta_stats import ColumnBounds
from pravega_spark.engine.json_codec import DECODE_ERRORS, digested_line, to_digested_line
from pravega_spark.errors import CorruptLog

_COLUMNS: Final = 10
"""The place of the bounds among the cells of a chunk."""


class ManifestKind(enum.Enum):
    """What a manifest records."""

    WRITE = "write"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"

    @property
    def is_closing(self) -> bool:
        """Whether it decides the transaction: no manifest follows it."""
        return self in (ManifestKind.COMMITTING, ManifestKind.ABORTING)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One manifest of a transaction.

    ``writer`` and ``number`` identify a numbered write (a batch of a query), which enters once. A
    closing manifest may hold a last write; its ``order`` is the commit order among the decisions
    of the stream (``committer.next_commit_order``), ``reason`` the cause of an abort. ``note`` and
    ``timestamp_us`` are the user's. ``token`` is unique to this manifest.
    """

    kind: ManifestKind
    chunks: tuple[StagedChunk, ...] = ()
    writer: str | None = None
    number: int = 0
    order: int = 0
    note: str | None = None
    timestamp_us: int | None = None
    reason: str | None = None
    token: str = ""
    origin: str | None = None
    """Where a numbered write comes from; None also if an earlier version wrote it."""

    def encode(self) -> bytes:
        """Return the bytes: a line of JSON, and its digest on the next line."""
        record = {
            "kind": self.kind.value,
            "token": self.token,
            "order": self.order or None,
            "writer": self.writer,
            "number": self.number or None,
            "origin": self.origin,
            "note": self.note,
            "timestamp": self.timestamp_us,
            "reason": self.reason,
            "chunks": [_cells(chunk) for chunk in self.chunks] or None,
        }
        given = {name: value for name, value in record.items() if value is not None}
        return to_digested_line(given)


PLAIN_WRITE = Manifest(ManifestKind.WRITE)
"""A write without a number."""


def _cells(chunk: StagedChunk) -> list[Any]:
    return [
        chunk.path,
        chunk.segment_id,
        chunk.rows,
        chunk.size,
        chunk.event_bytes,
        chunk.min_timestamp_us,
        chunk.max_timestamp_us,
        chunk.null_keys,
        *_optional(chunk),
    ]


def _optional(chunk: StagedChunk) -> list[Any]:
    """Return the cells that not every chunk has, up to the last one that this chunk has."""
    cells = [chunk.footer, chunk.attachment, chunk.columns]
    while cells and not cells[-1]:
        del cells[-1]
    return cells


def _chunk(cells: list[Any]) -> StagedChunk:
    given, columns = cells[:_COLUMNS], cells[_COLUMNS:]
    return StagedChunk(*given, *(ColumnBounds(*bounds) for bounds in columns))


def decode_manifest(data: bytes, where: str, path: str | None = None) -> Manifest:
    """Return the manifest that ``Manifest.encode`` wrote; raise CorruptLog for other bytes."""
    line = digested_line(data)
    if line is None:
        raise CorruptLog(f"{where} is torn or was modified; restore it from a copy.", path=path)
    try:
        record = json.loads(line)
        return Manifest(
            ManifestKind(record["kind"]),
            tuple(_chunk(cells) for cells in record.get("chunks", ())),
            record.get("writer"),
            record.get("number", 0),
            record.get("order", 0),
            record.get("note"),
            record.get("timestamp"),
            record.get("reason"),
            record["token"],
            record.get("origin"),
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{where} is damaged ({error!r}); restore it from a copy.", path=path
        ) from error
