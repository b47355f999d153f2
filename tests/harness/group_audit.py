"""Compares the events that readers recorded in ledgers with the history of their group.

The history has every ownership of a segment: its reader, first offset and last recorded offset. A
reader that released a segment has read exactly those events. An evicted reader has read at least
those, and only events beyond them are read again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.log.actions import REQUEST
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.reader_groups.state import GroupState, SegmentKey
from pravega_spark.reader_groups.table import GroupCodec


@dataclass(frozen=True)
class Read:
    """An event in a ledger, with the time of the machine's clock."""

    time_ns: int
    segment_id: int
    offset: int
    key: str
    writer: str
    number: int


@dataclass
class Ledger:
    """One reader's record: its events in order, its position at each marker, and how it ended."""

    events: list[Read]
    markers: dict[str, Position]
    end: str = ""

    @classmethod
    def of(cls, text: str) -> Ledger:
        """Parse a ledger; ignore a line that a kill cut off."""
        found = cls([], {})
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            kind, *rest = line.split()
            if kind == "event":
                time_ns, segment_id, offset, key, writer, number = rest
                position = int(segment_id), int(offset)
                found.events.append(Read(int(time_ns), *position, key, writer, int(number)))
            elif kind == "marker":
                found.markers[rest[1]] = Position.parse(rest[2])
            else:
                found.end = rest[0]
        return found

    def of_segment(self, segment_id: int) -> list[Read]:
        return [read for read in self.events if read.segment_id == segment_id]


@dataclass
class OwnershipSpan:
    """One reader's ownership of one segment, up to its last recorded offset (``end``)."""

    key: SegmentKey
    reader: str
    begin: int
    end: int = -1
    is_evicted: bool = False


def history(group: ReaderGroup) -> list[tuple[Collection[str], GroupState]]:
    """Return every state of the group, each with the readers that its commit expired."""
    group._lifecycle.state()
    log = group._lifecycle.sync.table.log
    snapshot = log.snapshot
    assert snapshot is not None
    found = []
    for commit in log.reader.span(-1, snapshot.version):
        if commit.operation == REQUEST:
            continue
        (add,) = commit.adds
        data = log.store.get(f"{log.path}/{add.path}")
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        state = GroupCodec().decode({row["key"]: row for row in rows})
        parameters = commit.info.get("operationParameters") or {}
        expired = json.loads(parameters.get("readers", '""')).split(",")
        found.append((expired if "TAKE OVER" in commit.operation else [], state))
    return found


def ownerships(
    states: Iterable[tuple[Collection[str], GroupState]], view: StreamView
) -> list[OwnershipSpan]:
    """Return all ownerships in the order of their numbers; the stream is read to its end.

    One commit may have the end of an ownership and the beginning of the next one.
    """
    found: dict[int, OwnershipSpan] = {}
    open_: set[int] = set()
    for expired, state in states:
        for key, owned in state.assigned.items():
            if owned.number not in found:
                found[owned.number] = OwnershipSpan(key, owned.reader, owned.offset)
                open_.add(owned.number)
        for number in open_ - {owned.number for owned in state.assigned.values()}:
            ended = found[number]
            length = view.segment(ended.key.segment_id).next_offset
            taken = state.assigned.get(ended.key)
            ended.end = state.unassigned.get(ended.key, length) if taken is None else taken.offset
            ended.is_evicted = ended.reader in expired and ended.reader not in state.readers
            open_.remove(number)
    assert not open_, "a segment is still owned"
    return [found[number] for number in sorted(found)]


def counted(ledgers: Mapping[str, Ledger], owned: Iterable[OwnershipSpan]) -> list[Read]:
    """Return the events before the recorded offsets, each once; check what each reader read.

    A reader has read exactly the segments that it owned, and an evicted one perhaps further.
    """
    found: list[Read] = []
    by_segment: dict[tuple[str, SegmentKey], list[OwnershipSpan]] = {}
    for ownership in owned:
        by_segment.setdefault((ownership.reader, ownership.key), []).append(ownership)
    for (reader, key), spans in by_segment.items():
        reads = ledgers[reader].of_segment(key.segment_id) if reader in ledgers else []
        expected = [offset for o in spans for offset in range(o.begin, o.end)]
        offsets = [read.offset for read in reads]
        assert offsets[: len(expected)] == expected, f"{reader} of {key}: {spans}, read {offsets}"
        beyond = offsets[len(expected) :]
        last = spans[-1]
        assert beyond == list(range(last.end, last.end + len(beyond)))
        assert not beyond or last.is_evicted, f"{reader} read {key} beyond {last.end}"
        found += reads[: len(expected)]
    known = {(reader, key.segment_id) for reader, key in by_segment}
    strange = {(r, read.segment_id) for r, ledger in ledgers.items() for read in ledger.events}
    assert strange <= known, "a reader read a segment that it never owned"
    return sorted(found, key=lambda read: read.time_ns)


def check_order(reads: Iterable[Read]) -> None:
    """Check that the events of a writer and key were read in the order of their numbers."""
    last: dict[tuple[str, str], int] = {}
    for read in reads:
        before = last.get((read.writer, read.key), -1)
        assert before < read.number, f"{read} after number {before}"
        last[read.writer, read.key] = read.number
