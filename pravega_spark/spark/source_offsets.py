"""Offsets of the streaming source: stream cuts with identity and origin, in one canonical form.

Spark stores an offset as text and compares texts, so :func:`encode` alone builds them::

    {"v": 1, "root": "s3://bucket/streams", "rootId": "81b2..",
     "group": {"name": "nyc/dashboards", "generation": 0, "query": 7},
     "streams": {"nyc/flights": {"id": "5f..", "life": 1,
        "origin": {"0#0": 0}, "cut": {"0#0": 120}, "reads": {"segments": ["0#0"]}}}}

``origin`` is the cut at which the query started. After a crash in the first batch Spark asks for
the initial offset again and may get another one, so the origin in the batch's end offset counts.
``reads`` is the part of the stream that the query reads (``Coverage``). A stream with ``"away":
true`` is one that the query has left where it is. ``root`` and ``group`` (of a query in a reader
group) identify the query to programs that find the offset in a progress report or a checkpoint.
``rootId`` is the token of the root's marker: another root may be at the same URL later.
Offsets of older versions may lack all of these.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput, StaleIdentity
from pravega_spark.values.segments import StreamCut, parse_segment, segment_text

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of a stream that a query reads.

    ``segments`` are those whose events before the cut were read; None: all. ``keys`` is a digest of
    the option routingKeys; None: all events of the segments.
    """

    segments: tuple[int, ...] | None = None
    keys: str | None = None

    def has(self, segment_id: int) -> bool:
        """Return whether a segment is read."""
        return self.segments is None or segment_id in self.segments

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form; {} for the whole stream."""
        record: dict[str, Any] = {}
        if self.segments is not None:
            record["segments"] = [segment_text(s) for s in sorted(self.segments)]
        if self.keys is not None:
            record["keys"] = self.keys
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Coverage:
        """Return the coverage of a record."""
        names = record.get("segments")
        segments = None if names is None else tuple(sorted(map(parse_segment, names)))
        return cls(segments, record.get("keys"))


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a query has read one stream: ``cut``; and where it started: ``origin``.

    ``reads`` is None in offsets of version 0.1.0, which do not say it. ``is_away`` is True for a
    stream that the query reads no more, but may read again from there.
    """

    stream_id: str
    origin: StreamCut
    cut: StreamCut
    reads: Coverage | None = None
    is_away: bool = False

    @property
    def life(self) -> int:
        """The life of the stream's name."""
        return self.cut.life

    def is_of(self, view: StreamView) -> bool:
        """Return whether a view is of this very stream and life."""
        return (self.stream_id, self.life) == (view.record.stream_id, view.life)

    def batch_start(self, end: StreamOffset) -> StreamCut:
        """Return the first cut of the batch from this offset to ``end``.

        It is ``end.origin`` if ``end`` belongs to another start of the query, or another stream.
        """
        same = (self.stream_id, self.life, self.origin) == (end.stream_id, end.life, end.origin)
        return self.cut if same else end.origin


def stale_error(cut: StreamCut, life: int) -> StaleIdentity:
    """Return the error of a query that has read another life of a stream, up to ``cut``."""
    return StaleIdentity(
        f"stream {cut.stream} was deleted and created again, or restored from a copy: the query "
        f"has read life {cut.life} up to {cut}, and the stream is now in life {life}. Start the "
        "query with a new checkpoint folder, or set failOnDataLoss to false to continue at the "
        "head.",
        name=cut.stream,
        life=cut.life,
        current_life=life,
    )


StreamOffsets = Mapping[str, StreamOffset]
"""An offset of the source, by stream."""


def present(offsets: StreamOffsets) -> dict[str, StreamOffset]:
    """Return the offsets of the streams that the query reads: those that are not away."""
    return {name: offset for name, offset in offsets.items() if not offset.is_away}


@dataclass(frozen=True, slots=True)
class OffsetOwner:
    """The query that an offset belongs to: its root, and its reader group if it has one.

    ``generation`` is that of the group, and ``query`` the query's number in it.
    """

    root: str
    group: str | None = None
    generation: int = 0
    query: int = 0


def encode(
    offsets: StreamOffsets, owner: OffsetOwner | None = None, root_id: str | None = None
) -> dict[str, Any]:
    """Return the canonical form: equal offsets have equal texts."""
    record: dict[str, Any] = {"v": FORMAT}
    if owner is not None:
        record["root"] = owner.root
        if root_id is not None:
            record["rootId"] = root_id
        if owner.group is not None:
            record["group"] = {
                "name": owner.group,
                "generation": owner.generation,
                "query": owner.query,
            }
    record["streams"] = {name: _encode(offset) for name, offset in sorted(offsets.items())}
    return record


def _encode(offset: StreamOffset) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": offset.stream_id,
        "life": offset.life,
        "origin": offset.origin.to_json(),
        "cut": offset.cut.to_json(),
    }
    if offset.reads is not None:
        fields["reads"] = offset.reads.to_json()
    if offset.is_away:
        fields["away"] = True
    return fields


def find_record(candidate: Any) -> Mapping[str, Any] | None:
    """Return the record in a text or a JSON value that :func:`encode` made; None for others.

    PySpark 4.0 and 4.1 report an offset as the text that Python prints of its JSON value.
    """
    if isinstance(candidate, str):
        parse = ast.literal_eval if candidate.startswith("{'") else json.loads
        try:
            candidate = parse(candidate)
        except (ValueError, SyntaxError):
            return None
    if not isinstance(candidate, Mapping):
        return None
    return candidate if candidate.get("v") == FORMAT and "streams" in candidate else None


def decode(record: Mapping[str, Any]) -> dict[str, StreamOffset]:
    """Return the offsets of a record; raise InvalidInput if :func:`encode` did not make it."""
    if find_record(record) is None:
        raise InvalidInput(
            f"{record!r} is not an offset of this version of pravega_spark (format {FORMAT}): the "
            "checkpoint belongs to another source or to a later version. Start the query with its "
            "own checkpoint folder, or upgrade the package."
        )
    return {name: _decode(name, fields) for name, fields in record["streams"].items()}


def _decode(name: str, fields: Mapping[str, Any]) -> StreamOffset:
    life = fields["life"]
    return StreamOffset(
        fields["id"],
        StreamCut.from_json(name, life, fields["origin"]),
        StreamCut.from_json(name, life, fields["cut"]),
        None if (reads := fields.get("reads")) is None else Coverage.from_json(reads),
        bool(fields.get("away")),
    )


def root_id_of(record: Mapping[str, Any]) -> str | None:
    """Return the token of the root that an offset is of; None if the offset does not say it."""
    return record.get("rootId")


def owner_of(record: Mapping[str, Any]) -> OffsetOwner | None:
    """Return the query that an offset belongs to; None if the offset does not name it."""
    if "root" not in record:
        return None
    group = record.get("group")
    if group is None:
        return OffsetOwner(record["root"])
    return OffsetOwner(
        record["root"], group["name"], generation=group["generation"], query=group["query"]
    )
