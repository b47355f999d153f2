"""A group's state as rows of its Delta table.

| kind | key | what |
| --- | --- | --- |
| ``group`` | ``group`` | generation, phase (``state``), configuration, lives and ends (``value``) |
| ``reader`` | ``reader/<id>`` | number of the joining, lease in ms, alone or not (``value``) |
| ``segment`` | ``segment/<stream>/<id>`` | ``state``, reader, number and recorded offset |
| ``checkpoint`` | ``checkpoint/<number>`` | name, who owes an answer, positions (``value``) |
| ``last`` | ``last`` | the last completed checkpoint that was not silent |

``offset`` is null where there is none: a future segment, and a completed one that was read to its
end. ``number`` of an unassigned segment is its place in the order of waiting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.log.actions import to_json
from pravega_spark.engine.tables.row_files import Row, Rows
from pravega_spark.errors import CorruptLog
from pravega_spark.model import END, NOT_REACHED, StreamCut, parse_segment, segment_text
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_state import (
    Checkpoint,
    GroupState,
    Key,
    Member,
    Owned,
    Phase,
    check,
)

FORMAT = 1
_KEPT_CHECKPOINTS = 16
"""So many checkpoints that were read before are kept decoded."""
_MARKS: Final[dict[int, str]] = {END: "end", NOT_REACHED: "future"}
_MARK_OF: Final = {text: mark for mark, text in _MARKS.items()}


class GroupCodec:
    """How a group's state becomes rows, and rows a state; both are checked."""

    schema = pa.schema(
        [
            ("key", pa.string()),
            ("kind", pa.string()),
            ("name", pa.string()),
            ("stream", pa.string()),
            ("segment", pa.string()),
            ("segment_id", pa.int64()),
            ("state", pa.string()),
            ("reader", pa.string()),
            ("number", pa.int64()),
            ("offset", pa.int64()),
            ("value", pa.string()),
        ]
    )
    key = "key"

    def encode(self, state: GroupState) -> Rows:
        """Return the rows by key."""
        check(state)
        rows = [_group(state)]
        for reader, member in state.readers.items():
            value = to_json({"lease": member.lease_ms, "alone": member.alone})
            rows.append(
                _row(f"reader/{reader}", "reader", reader=reader, number=member.number, value=value)
            )
        for key, owned in state.assigned.items():
            where = {"reader": owned.reader, "number": owned.number, "offset": owned.offset}
            rows.append(_segment(key, "assigned", **where))
        for place, (key, offset) in enumerate(state.unassigned.items()):
            rows.append(_segment(key, "unassigned", number=place, offset=offset))
        for key, missing in state.future.items():
            rows.append(_segment(key, "future", value=to_json(sorted(missing))))
        for key, mark in state.completed.items():
            rows.append(_segment(key, "completed", offset=None if mark == END else mark))
        rows += [_checkpoint(f"checkpoint/{c.number}", c) for c in state.checkpoints]
        if state.last is not None:
            rows.append(_checkpoint("last", state.last))
        return {row["key"]: row for row in rows}

    def decode(self, rows: Rows) -> GroupState:
        """Return the state; raise CorruptLog for a format that this version does not know."""
        group = rows["group"]
        value = json.loads(group["value"])
        if value["format"] != FORMAT:
            raise CorruptLog(
                f"reader group {group['name']} has format {value['format']}, which this version of "
                f"pravega_spark does not know (it knows {FORMAT}); upgrade the package.",
                path=group["name"],
            )
        ordered = sorted(rows.values(), key=lambda row: row["number"] or 0)
        segments = {
            place: {_key(row): row for row in ordered if row["state"] == place}
            for place in ("assigned", "unassigned", "future", "completed")
        }
        readers = {row["reader"]: _member(row) for row in ordered if row["kind"] == "reader"}
        checkpoints = [_checkpoint_of(row) for row in ordered if row["kind"] == "checkpoint"]
        completed = {k: row["offset"] for k, row in segments["completed"].items()}
        return check(
            GroupState(
                group["name"],
                group["number"],
                Phase(group["state"]),
                ReaderGroupConfiguration.from_json(value["configuration"]),
                value["lives"],
                {stream: StreamCut.parse(cut) for stream, cut in value["ends"].items()},
                value["next"],
                readers,
                {
                    k: Owned(row["reader"], row["number"], row["offset"])
                    for k, row in segments["assigned"].items()
                },
                {k: row["offset"] for k, row in segments["unassigned"].items()},
                {k: frozenset(json.loads(row["value"])) for k, row in segments["future"].items()},
                {k: END if offset is None else offset for k, offset in completed.items()},
                tuple(checkpoints),
                _checkpoint_of(rows["last"]) if "last" in rows else None,
                _former(value["former"]),
                value["query"],
            )
        )


def _former(told: Mapping[str, int | None] | list[str]) -> dict[str, int | None]:
    """Read the former streams; an older version noted their names alone."""
    return dict(told) if isinstance(told, Mapping) else dict.fromkeys(told)


_EMPTY: Final[Row] = dict.fromkeys(GroupCodec.schema.names)


def _row(key: str, kind: str, **columns: Any) -> dict[str, Any]:
    return {**_EMPTY, "key": key, "kind": kind, **columns}


def _group(state: GroupState) -> dict[str, Any]:
    value = {
        "format": FORMAT,
        "configuration": state.configuration.to_json(),
        "lives": dict(state.lives),
        "ends": {stream: str(cut) for stream, cut in state.ends.items()},
        "next": state.next_number,
        "former": dict(state.former),
        "query": state.query,
    }
    name, phase, number = state.group, state.phase.value, state.generation
    return _row("group", "group", name=name, state=phase, number=number, value=to_json(value))


def _segment(key: Key, place: str, **columns: Any) -> dict[str, Any]:
    return _row(
        f"segment/{key}",
        "segment",
        stream=key.stream,
        segment=segment_text(key.segment_id),
        segment_id=key.segment_id,
        state=place,
        **columns,
    )


def _key(row: Row) -> Key:
    return Key(row["stream"], row["segment_id"])


def _member(row: Row) -> Member:
    value = json.loads(row["value"])
    return Member(row["number"], value["lease"], value["alone"])


def _checkpoint(key: str, found: Checkpoint) -> dict[str, Any]:
    value = {
        "silent": found.silent,
        "automatic": found.automatic,
        "owing": sorted(found.owing),
        "positions": encode_positions(found.positions),
    }
    return _row(
        key,
        "last" if key == "last" else "checkpoint",
        name=found.name,
        number=found.number,
        value=to_json(value),
    )


def _checkpoint_of(row: Row) -> Checkpoint:
    return _decoded(row["name"], row["number"], row["value"])


@lru_cache(maxsize=_KEPT_CHECKPOINTS)
def _decoded(name: str, number: int, text: str) -> Checkpoint:
    """Read a checkpoint's row; the last one stands twice, and most are as they were before."""
    value = json.loads(text)
    return Checkpoint(
        name,
        number,
        value["silent"],
        value["automatic"],
        frozenset(value["owing"]),
        decode_positions(value["positions"]),
    )


def encode_positions(positions: Mapping[Key, int]) -> dict[str, dict[str, int | str]]:
    """Return ``{"nyc/flights": {"0#0": 120, "1#0": "end"}}``."""
    found: dict[str, dict[str, int | str]] = {}
    for (stream, segment_id), mark in sorted(positions.items()):
        found.setdefault(stream, {})[segment_text(segment_id)] = _MARKS.get(mark, mark)
    return found


def decode_positions(record: Mapping[str, Mapping[str, float | str]]) -> dict[Key, int]:
    """Read what :func:`encode_positions` wrote.

    Older versions wrote an offset as a float if it had been given as one; it counts whole events.
    """
    return {
        Key(stream, parse_segment(segment)): _MARK_OF[mark] if isinstance(mark, str) else int(mark)
        for stream, cells in record.items()
        for segment, mark in cells.items()
    }
