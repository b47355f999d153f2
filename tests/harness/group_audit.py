"""What the readers of a group handed out, by their ledgers, held against the group's history.

The history tells every ownership of a segment: by whom, from which offset, to which recorded one.
Who handed a segment over has read exactly that; who was taken over at least that, and only what it
read beyond is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.stream.view import StreamView
from pravega_spark.reader_groups.group_codec import GroupCodec
from pravega_spark.reader_groups.group_state import GroupState, SegmentKey
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.reader_group import ReaderGroup


@dataclass(frozen=True)
class Read:
    """An event as a reader noted it, with the time of the machine's clock."""

    time_ns: int
    segment_id: int
    offset: int
    key: str
    writer: str
    number: int


@dataclass
class Ledger:
    """What one reader noted: its events in order, where it was at each marker, and its end."""

    events: list[Read]
    markers: dict[str, Position]
    end: str = ""

    @classmethod
    def of(cls, text: str) -> Ledger:
        """Read a ledger; a line that a kill cut off was not asked to be counted."""
        found = cls([], {})
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            kind, *rest = line.split()
            if kind == "event":
                time_ns, segment_id, offset, key, writer, number = rest
                where = int(segment_id), int(offset)
                found.events.append(Read(int(time_ns), *where, key, writer, int(number)))
            elif kind == "marker":
                found.markers[rest[1]] = Position.parse(rest[2])
            else:
                found.end = rest[0]
        return found

    def of_segment(self, segment_id: int) -> list[Read]:
        return [read for read in self.events if read.segment_id == segment_id]


@dataclass
class Ownership:
    """One reader's time with one segment: ``end`` is the offset that was recorded last."""

    key: SegmentKey
    reader: str
    begin: int
    end: int = -1
    is_taken_over: bool = False


def history(group: ReaderGroup) -> list[tuple[str, GroupState]]:
    """Return every state of the group with the operation that led to it."""
    group._lifecycle.state()
    log = group._lifecycle.sync.table.log
    snapshot = log.snapshot
    assert snapshot is not None
    found = []
    for commit in log.reader.span(-1, snapshot.version):
        (add,) = commit.adds
        data = log.store.get(f"{log.path}/{add.path}")
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        state = GroupCodec().decode({row["key"]: row for row in rows})
        found.append((commit.operation, state))
    return found


def ownerships(states: Iterable[tuple[str, GroupState]], view: StreamView) -> list[Ownership]:
    """Return all ownerships in the order of their beginning; the stream is read to its end."""
    found: dict[int, Ownership] = {}
    open_: set[int] = set()
    for operation, state in states:
        for key, owned in state.assigned.items():
            if owned.number not in found:
                found[owned.number] = Ownership(key, owned.reader, owned.offset)
                open_.add(owned.number)
        for number in open_ - {owned.number for owned in state.assigned.values()}:
            ended = found[number]
            length = view.segment(ended.key.segment_id).next_offset
            ended.end = state.unassigned.get(ended.key, length)
            ended.is_taken_over = operation == "TAKE OVER" and ended.reader not in state.readers
            open_.remove(number)
    assert not open_, "somebody has a segment for ever"
    return [found[number] for number in sorted(found)]


def counted(ledgers: Mapping[str, Ledger], owned: Iterable[Ownership]) -> list[Read]:
    """Return the events that the recorded positions cover, each once; check what each reader read.

    It is exactly what it had, and after that, if it was taken over, a part that did not count.
    """
    found: list[Read] = []
    by_segment: dict[tuple[str, SegmentKey], list[Ownership]] = {}
    for ownership in owned:
        by_segment.setdefault((ownership.reader, ownership.key), []).append(ownership)
    for (reader, key), all_of_it in by_segment.items():
        reads = ledgers[reader].of_segment(key.segment_id) if reader in ledgers else []
        had = [offset for o in all_of_it for offset in range(o.begin, o.end)]
        offsets = [read.offset for read in reads]
        assert offsets[: len(had)] == had, f"{reader} of {key}: {all_of_it}, read {offsets}"
        beyond = offsets[len(had) :]
        last = all_of_it[-1]
        assert beyond == list(range(last.end, last.end + len(beyond)))
        assert not beyond or last.is_taken_over, f"{reader} read {key} beyond {last.end}"
        found += reads[: len(had)]
    told = {(reader, key.segment_id) for reader, key in by_segment}
    strange = {(r, read.segment_id) for r, ledger in ledgers.items() for read in ledger.events}
    assert strange <= told, "a reader read what it never had"
    return sorted(found, key=lambda read: read.time_ns)


def check_order(reads: Iterable[Read]) -> None:
    """Check that events of a writer and key were handed out in the order of their numbers."""
    last: dict[tuple[str, str], int] = {}
    for read in reads:
        before = last.get((read.writer, read.key), -1)
        assert before < read.number, f"{read} after number {before}"
        last[read.writer, read.key] = read.number
