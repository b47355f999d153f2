"""A reader group in storage: its Delta table, its state as rows, and its streams.

| kind | key | content |
| --- | --- | --- |
| ``group`` | ``group`` | generation, phase (``state``), configuration, lives and ends (``value``) |
| ``reader`` | ``reader/<id>`` | number of the joining, lease in ms, exclusive or not (``value``) |
| ``segment`` | ``segment/<stream>/<id>`` | ``state``, reader, number and recorded offset |
| ``checkpoint`` | ``checkpoint/<number>`` | name, pending readers, positions (``value``) |
| ``last`` | ``last`` | the last complete checkpoint that was not silent |
| ``prepared`` | ``prepared/<id>`` | transaction (``name``), ``number``, offsets (``value``) |
| ``find`` | ``find/<number>`` | reader, stream; of a loss segment, ``offset``, ``value`` |
| ``finished`` | ``finished/<stream>/<id>`` | the last owners of a finished segment (``value``) |

The ``value`` of other segments than future ones is the record of their last owners. ``offset`` is
for a future segment and for a completed one that was read to its end. The ``number`` of an
unassigned segment is its turn: waiting segments have ascending ones.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.log.commit import Log, check_not_lost
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.state_table import Row, Rows
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CorruptLog
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.reader_groups.configuration import GroupAcknowledgement, ReaderGroupConfiguration
from pravega_spark.reader_groups.owners import Owner, Owners
from pravega_spark.reader_groups.state import (
    Checkpoint,
    Find,
    GroupState,
    Ownership,
    Phase,
    PreparedPositions,
    ReaderEntry,
    SegmentKey,
    check_state,
)
from pravega_spark.values.names import GROUPS_FOLDER, split_group
from pravega_spark.values.segments import (
    END,
    NOT_REACHED,
    SegmentRange,
    StreamCut,
    parse_segment,
    segment_text,
)

FORMATS: Final = {
    GroupAcknowledgement.NEXT: 1,
    GroupAcknowledgement.CHECKPOINT: 2,
    GroupAcknowledgement.TRANSACTION: 3,
}
"""The format by what acknowledges events: versions that do not know it must refuse such a group,
since their readers would acknowledge more."""
_CACHED_CHECKPOINTS = 16
"""Number of decoded checkpoints to cache."""
_segment_id: Final = lru_cache(maxsize=1 << 14)(parse_segment)
"""Parses a segment; cached, since each answer of a checkpoint has all of them."""
_SENTINEL_TEXTS: Final[dict[int, str]] = {END: "end", NOT_REACHED: "future"}
_SENTINELS: Final = {text: sentinel for sentinel, text in _SENTINEL_TEXTS.items()}


class GroupCodec:
    """Encodes a group's state as rows and decodes it; checks the state both times."""

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

    def __init__(self) -> None:
        self._rows: dict[SegmentKey, _Known] = {}
        """The rows of owned, waiting and finished segments, each with what it says, as they were
        last encoded or decoded: a change leaves most of them as they are."""

    def encode(self, state: GroupState) -> Rows:
        """Return the rows by key."""
        check_state(state)
        rows: list[Row] = [_group(state)]
        for reader, entry in state.readers.items():
            value = to_json({"lease": entry.lease_ms, "alone": entry.exclusive})
            rows.append(
                _row(f"reader/{reader}", "reader", reader=reader, number=entry.number, value=value)
            )
        known, owners = self._rows, state.owners
        segments = {
            k: _assigned(k, owned, owners.get(k), known.get(k))
            for k, owned in state.assigned.items()
        }
        turn = -1
        for key, offset in state.unassigned.items():
            segments[key] = found = _waiting(key, offset, turn, owners.get(key), known.get(key))
            turn = found.row["number"]
        for key in owners.keys() - segments.keys() - state.completed.keys():
            segments[key] = _finished(key, owners[key], known.get(key))
        rows += [found.row for found in segments.values()]
        self._rows = segments
        for key, missing in state.future.items():
            rows.append(_segment(key, "future", value=to_json(sorted(missing))))
        for key, offset in state.completed.items():
            columns = {
                "offset": None if offset == END else offset,
                "value": _owners_text(owners.get(key)),
            }
            rows.append(_segment(key, "completed", **columns))
        rows += [_checkpoint(f"checkpoint/{c.number}", c) for c in state.checkpoints]
        if state.last_checkpoint is not None:
            rows.append(_checkpoint("last", state.last_checkpoint))
        rows += [_prepared(reader, found) for reader, found in state.prepared.items()]
        rows += [_find(number, found) for number, found in state.finds.items()]
        return {row["key"]: row for row in rows}

    def decode(self, rows: Rows) -> GroupState:
        """Return the state; raise CorruptLog for an unknown format."""
        group = rows["group"]
        value = json.loads(group["value"])
        if value["format"] not in FORMATS.values():
            raise CorruptLog(
                f"reader group {group['name']} has format {value['format']}, which this version of "
                f"pravega_spark does not know (it knows {sorted(FORMATS.values())}); "
                "upgrade the package.",
                path=group["name"],
            )
        ordered = sorted(rows.values(), key=lambda row: row["number"] or 0)
        segments = {
            kind: {_key(row): row for row in ordered if row["state"] == kind}
            for kind in ("assigned", "unassigned", "future", "completed")
        }
        assigned = {
            k: Ownership(row["reader"], row["number"], row["offset"])
            for k, row in segments["assigned"].items()
        }
        unassigned = {k: row["offset"] for k, row in segments["unassigned"].items()}
        finished = {_key(row): row for row in ordered if row["kind"] == "finished"}
        recorded = {
            **finished,
            **segments["completed"],
            **segments["unassigned"],
            **segments["assigned"],
        }
        owners = {k: _owners_of(row["value"]) for k, row in recorded.items() if row["value"]}
        in_reach = (*segments["assigned"].items(), *segments["unassigned"].items())
        self._rows = {
            **{k: _Known(None, owners[k], row) for k, row in finished.items()},
            **{
                k: _Known(assigned.get(k, row["offset"]), owners.get(k), row) for k, row in in_reach
            },
        }
        readers = {row["reader"]: _reader_entry(row) for row in ordered if row["kind"] == "reader"}
        checkpoints = [_checkpoint_of(row) for row in ordered if row["kind"] == "checkpoint"]
        completed = {k: row["offset"] for k, row in segments["completed"].items()}
        return check_state(
            GroupState(
                group=group["name"],
                generation=group["number"],
                phase=Phase(group["state"]),
                configuration=ReaderGroupConfiguration.from_json(value["configuration"]),
                lives=value["lives"],
                ends={stream: StreamCut.parse(cut) for stream, cut in value["ends"].items()},
                next_number=value["next"],
                readers=readers,
                assigned=assigned,
                unassigned=unassigned,
                future={
                    k: frozenset(json.loads(row["value"])) for k, row in segments["future"].items()
                },
                completed={k: END if offset is None else offset for k, offset in completed.items()},
                checkpoints=tuple(checkpoints),
                last_checkpoint=_checkpoint_of(rows["last"]) if "last" in rows else None,
                former_streams=_former(value["former"]),
                query_number=value["query"],
                began=value.get("began", dict.fromkeys(value["lives"], group["number"])),
                renewed_streams=frozenset(value.get("renewed", ())),
                prepared={
                    row["reader"]: _prepared_of(row) for row in ordered if row["kind"] == "prepared"
                },
                finds={row["number"]: _find_of(row) for row in ordered if row["kind"] == "find"},
                owners=owners,
                finished_since=value.get("finished", dict.fromkeys(value["lives"], value["next"])),
            )
        )


def _former(record: Mapping[str, int | None] | list[str]) -> dict[str, int | None]:
    """Decode the former streams; older versions recorded only their names."""
    return dict(record) if isinstance(record, Mapping) else dict.fromkeys(record)


_EMPTY: Final[Row] = dict.fromkeys(GroupCodec.schema.names)


def _row(key: str, kind: str, **columns: Any) -> dict[str, Any]:
    return {**_EMPTY, "key": key, "kind": kind, **columns}


def _group(state: GroupState) -> dict[str, Any]:
    value = {
        "format": FORMATS[state.configuration.acknowledge],
        "configuration": state.configuration.to_json(),
        "lives": dict(state.lives),
        "ends": {stream: str(cut) for stream, cut in state.ends.items()},
        "next": state.next_number,
        "former": dict(state.former_streams),
        "query": state.query_number,
        "began": dict(state.began),
        "renewed": sorted(state.renewed_streams),
        "finished": dict(state.finished_since),
    }
    name, phase, number = state.group, state.phase.value, state.generation
    return _row("group", "group", name=name, state=phase, number=number, value=to_json(value))


def _segment(key: SegmentKey, kind: str, **columns: Any) -> dict[str, Any]:
    return _row(
        f"segment/{key}",
        "segment",
        stream=key.stream,
        segment=segment_text(key.segment_id),
        segment_id=key.segment_id,
        state=kind,
        **columns,
    )


class _Known(NamedTuple):
    """A segment's row, and what it says: where it is, and who owned it last."""

    place: Ownership | int | None
    owners: Owners | None
    row: Row

    def says(self, place: Ownership | int | None, owners: Owners | None) -> bool:
        """Return whether the row says this."""
        is_same = self.place is place or self.place == place
        return is_same and (self.owners is owners or self.owners == owners)


def _assigned(
    key: SegmentKey, owned: Ownership, owners: Owners | None, known: _Known | None
) -> _Known:
    if known is not None and known.says(owned, owners):
        return known
    columns = {"reader": owned.reader, "number": owned.number, "offset": owned.offset}
    row = _segment(key, "assigned", **columns, value=_owners_text(owners))
    return _Known(owned, owners, row)


def _waiting(
    key: SegmentKey, offset: int, before: int, owners: Owners | None, known: _Known | None
) -> _Known:
    """Return the row of a waiting segment; it keeps its number unless its turn has changed."""
    if known is not None and known.says(offset, owners) and known.row["number"] > before:
        return known
    columns = {"number": before + 1, "offset": offset, "value": _owners_text(owners)}
    return _Known(offset, owners, _segment(key, "unassigned", **columns))


def _finished(key: SegmentKey, owners: Owners, known: _Known | None) -> _Known:
    if known is not None and known.says(None, owners):
        return known
    columns = {"segment": segment_text(key.segment_id), "segment_id": key.segment_id}
    value = _owners_text(owners)
    row = _row(f"finished/{key}", "finished", stream=key.stream, **columns, value=value)
    return _Known(None, owners, row)


def _owners_text(owners: Owners | None) -> str | None:
    if owners is None:
        return None
    last = [list(owner) for owner in owners.last]
    return to_json({"owners": last, "since": owners.since} if owners.since else {"owners": last})


@lru_cache(maxsize=1 << 14)
def _owners_of(text: str) -> Owners:
    record = json.loads(text)
    return Owners(tuple(Owner(*owner) for owner in record["owners"]), record.get("since", 0))


def _key(row: Row) -> SegmentKey:
    return SegmentKey(row["stream"], row["segment_id"])


def _reader_entry(row: Row) -> ReaderEntry:
    value = json.loads(row["value"])
    return ReaderEntry(row["number"], value["lease"], value["alone"])


def _prepared(reader: str, found: PreparedPositions) -> dict[str, Any]:
    value = to_json(encode_positions(found.offsets))
    columns = {"name": found.transaction, "number": found.number, "value": value}
    return _row(f"prepared/{reader}", "prepared", reader=reader, **columns)


def _prepared_of(row: Row) -> PreparedPositions:
    return PreparedPositions(row["name"], row["number"], decode_positions(json.loads(row["value"])))


def _find(number: int, found: Find) -> dict[str, Any]:
    columns: dict[str, Any] = {"reader": found.reader, "number": number, "stream": found.stream}
    value, lost = {"joining": found.joining}, found.lost
    if lost is not None:
        value |= {"life": lost.life, "end": lost.end}
        columns |= {"segment": segment_text(lost.segment_id), "segment_id": lost.segment_id}
        columns["offset"] = lost.start
    return _row(f"find/{number}", "find", **columns, value=to_json(value))


def _find_of(row: Row) -> Find:
    value, lost = json.loads(row["value"]), None
    if row["segment_id"] is not None:
        bounds = row["segment_id"], row["offset"], value["end"]
        lost = SegmentRange(row["stream"], value["life"], *bounds)
    return Find(row["reader"], value["joining"], row["stream"], lost)


def _checkpoint(key: str, found: Checkpoint) -> dict[str, Any]:
    value = {
        "silent": found.silent,
        "automatic": found.automatic,
        "owing": sorted(found.pending_readers),
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


@lru_cache(maxsize=_CACHED_CHECKPOINTS)
def _decoded(name: str, number: int, text: str) -> Checkpoint:
    """Decode a checkpoint, cached: the last one has two rows, and most rows do not change."""
    value = json.loads(text)
    return Checkpoint(
        name=name,
        number=number,
        silent=value["silent"],
        automatic=value["automatic"],
        pending_readers=frozenset(value["owing"]),
        positions=decode_positions(value["positions"]),
    )


def encode_positions(positions: Mapping[SegmentKey, int]) -> dict[str, dict[str, int | str]]:
    """Return ``{"nyc/flights": {"0#0": 120, "1#0": "end"}}``."""
    found: dict[str, dict[str, int | str]] = {}
    for (stream, segment_id), offset in sorted(positions.items()):
        found.setdefault(stream, {})[segment_text(segment_id)] = _SENTINEL_TEXTS.get(offset, offset)
    return found


def decode_positions(record: Mapping[str, Mapping[str, float | str]]) -> dict[SegmentKey, int]:
    """Decode the result of :func:`encode_positions`.

    Older versions could write an offset as a float; its value is a whole number.
    """
    return {
        SegmentKey(stream, _segment_id(segment)): (
            _SENTINELS[offset] if isinstance(offset, str) else int(offset)
        )
        for stream, cells in record.items()
        for segment, offset in cells.items()
    }


logger = own_logger(__name__)

Streams = Callable[[str], StreamLog]
"""Opens a stream by its name; the stream need not exist."""


def group_path(group: str) -> str:
    """Return the path of a group's table; raise InvalidName for an invalid group name."""
    scope, name = split_group(group)
    return f"{scope}/{GROUPS_FOLDER}/{name}"


def check_has_log(log: Log, group: str) -> None:
    """Raise CorruptLog if a group has lost its log: parts exist that only a group has.

    A creation stages nothing but rows for version 0 before its first commit.
    """
    path = group_path(group)
    check_not_lost(
        log,
        path,
        f"reader group {group}",
        f"Restore {path} from a copy; or delete that folder, and the group begins again at its "
        "configured start.",
        counts=lambda entry: not entry.key.startswith(f"{path}/data/{version_folder(0)}/"),
    )


class _OpenStates:
    """The states of groups that this process uses, by store and path; a forked child has none.

    All readers of a group in a process share one copy. It is kept while anybody uses it.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        self._used = WeakValueDictionary[tuple[Store, str], Synchronizer[GroupState]]()

    def get(self, store: Store, path: str) -> Synchronizer[GroupState]:
        """Return the open state, or open it; also if the open one's folder was lost or replaced."""
        key = store, path
        known = self._used.get(key)
        if known is not None and not known.table.log.is_lost():
            return known
        with self._lock:
            found = self._used.get(key)
            if found is known or found is None:
                found = self._used[key] = _open(store, path, SYSTEM)
            return found


_open_states = _OpenStates()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_states.reset)


def open_group_state(
    store: Store, group: str, runtime: Runtime = SYSTEM
) -> Synchronizer[GroupState]:
    """Return this process's copy of the state of a group, which need not exist.

    With another runtime than the system's, a new one.
    """
    path = group_path(group)
    return _open_states.get(store, path) if runtime is SYSTEM else _open(store, path, runtime)


def _open(store: Store, path: str, runtime: Runtime) -> Synchronizer[GroupState]:
    sync = Synchronizer(store, path, GroupCodec(), runtime, _log_checkpoint)
    sync.table.log.watch_identity()
    return sync


def _log_checkpoint(before: GroupState, after: GroupState) -> None:
    """Log the checkpoint that a change completed; the many automatic ones at DEBUG."""
    last, known = after.last_checkpoint, before.last_checkpoint
    if last is None or (known is not None and known.number >= last.number):
        return
    level = logging.DEBUG if last.automatic else logging.INFO
    logger.log(
        level,
        "completed checkpoint %s of reader group %s, generation %d",
        last.name,
        after.group,
        after.generation,
        extra=log_fields("checkpoint", group=after.group, checkpoint=last.name),
    )


_Found = TypeVar("_Found")


def of_each(
    streams: Streams, names: Collection[str], function: Callable[[StreamLog], _Found]
) -> dict[str, _Found]:
    """Return what a function finds of each stream, in the order of their names.

    After an error no further call begins, and the error of the first stream that failed is raised.
    """
    logs = [streams(name) for name in sorted(names)]
    found = in_rounds(logs[0].store, function, logs) if logs else []
    return {log.name: one for log, one in zip(logs, found, strict=True)}
