"""Offsets of the streaming source: stream cuts with identity and origin, in one canonical form.

Spark keeps an offset as text and compares texts, so one function builds them all::

    {"v": 1, "root": "s3://bucket/streams", "group": {"name": "nyc/dashboards", "generation": 0,
     "query": 7}, "streams": {"nyc/flights": {"id": "5f..", "life": 1,
        "origin": {"0#0": 0}, "cut": {"0#0": 120}}}}

``origin`` is where the query began. A source that is asked for its first offset once more, after a
crash in the first batch, may name another place: the origin in the batch's end is what counts.
``root`` and ``group`` (of a query that is in one) are for who finds an offset in a query's progress
or checkpoint; offsets of old may lack them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.errors import InvalidInput
from pravega_spark.model import StreamCut

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a query has read one stream, and where in which life of it the query began."""

    stream_id: str
    origin: StreamCut
    cut: StreamCut

    @property
    def life(self) -> int:
        """The life of the stream's name."""
        return self.cut.life

    def begin_of(self, end: StreamOffset) -> StreamCut:
        """Return where a batch from this offset to ``end`` begins: the end's origin may differ."""
        same = (self.stream_id, self.life, self.origin) == (end.stream_id, end.life, end.origin)
        return self.cut if same else end.origin


Offsets = Mapping[str, StreamOffset]


@dataclass(frozen=True, slots=True)
class RecordedOffsets:
    """Under which root a query reads, and its reader group, if it has one.

    With the group's generation, and the number under which the query has joined.
    """

    root: str
    group: str | None = None
    generation: int = 0
    query: int = 0


def encode(offsets: Offsets, reading: RecordedOffsets | None = None) -> dict[str, Any]:
    """Return the canonical form: equal offsets have equal texts."""
    record: dict[str, Any] = {"v": FORMAT}
    if reading is not None:
        record["root"] = reading.root
        if reading.group is not None:
            record["group"] = {
                "name": reading.group,
                "generation": reading.generation,
                "query": reading.query,
            }
    record["streams"] = {
        name: {
            "id": offset.stream_id,
            "life": offset.life,
            "origin": offset.origin.to_json(),
            "cut": offset.cut.to_json(),
        }
        for name, offset in sorted(offsets.items())
    }
    return record


def ours(found: Any) -> Mapping[str, Any] | None:
    """Return an offset that :func:`encode` wrote, found as text or as JSON; None for any other."""
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return None
    if not isinstance(found, Mapping) or found.get("v") != FORMAT or "streams" not in found:
        return None
    return found


def decode(record: Mapping[str, Any]) -> dict[str, StreamOffset]:
    """Read what :func:`encode` wrote."""
    if ours(record) is None:
        raise InvalidInput(
            f"{record!r} is no offset of this version of pravega_spark (format {FORMAT}): the "
            "checkpoint is of another source or of a later version."
        )
    return {name: _decode(name, cells) for name, cells in record["streams"].items()}


def _decode(name: str, cells: Mapping[str, Any]) -> StreamOffset:
    origin = StreamCut.from_json(name, cells["life"], cells["origin"])
    return StreamOffset(cells["id"], origin, StreamCut.from_json(name, cells["life"], cells["cut"]))


def reading_of(record: Mapping[str, Any]) -> RecordedOffsets | None:
    """Return whose offset it is; None for one that does not tell."""
    if "root" not in record:
        return None
    group = record.get("group")
    if group is None:
        return RecordedOffsets(record["root"])
    return RecordedOffsets(record["root"], group["name"], group["generation"], group["query"])
