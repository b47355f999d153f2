"""A ledger of a stream with transactions, compared with the stream's log version by version.

The tests report to the ledger the events that they tried to write and the answers that they got.
The ledger reads the log commit by commit, and the events with the package's reader from cut to
cut. It never reads an event twice. An event that appears before an already read one is therefore
missed, and a check reports it as missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.log.snapshot import OPEN_PREFIX, Snapshot, first_snapshot
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    OUTCOME_PREFIX,
    SEGMENT_PREFIX,
    OpenTransaction,
    StreamState,
    TransactionOutcome,
    decode_open,
    decode_outcome,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.event_reader import EventReader
from pravega_spark.values.events import Event
from pravega_spark.values.segments import KeyRange, StreamCut

Written = tuple[str | None, bytes]


@dataclass
class Write:
    """Events that one process flushed to a transaction together: all of them exist, or none.

    ``answered``: a call of the handle succeeded, so all of them must exist. ``refused``: the call
    reported that none exists.
    """

    handle: object
    events: list[Written]
    answered: bool = False
    refused: bool = False


@dataclass
class Book:
    """The ledger's record of one transaction."""

    writes: list[Write] = field(default_factory=list)
    asked: int | None = None
    """Tick of the first call of commit."""
    closed: int | None = None
    """Tick of the first successful commit; from then on the commit is promised."""
    aborted: bool = False
    """Whether an abort succeeded."""
    abort_called: bool = False
    """Whether a process called abort."""
    opened: OpenTransaction | None = None
    seen: list[Event] = field(default_factory=list)
    outcome: TransactionOutcome | None = None

    def answer(self, handle: object) -> None:
        """Record that a flush or commit of the handle succeeded: its earlier events are durable."""
        for write in self.writes:
            if write.handle is handle and not write.refused:
                write.answered = True


class Ledger:
    """The ledger of one life of a stream."""

    def __init__(self, stream: StreamLog) -> None:
        """Start at version 0, with no event read."""
        self.stream = stream
        self.books: dict[str, Book] = {}
        self.homes: dict[bytes, tuple[str | None, str | None]] = {}
        """The key and transaction of each tried event."""
        self.order: list[str] = []
        """Committed transactions in the order of the log."""
        self.by_key: dict[str | None, list[bytes]] = {}
        self._snapshot: Snapshot | None = None
        self._cut: StreamCut | str = StreamCut.EARLIEST
        self._ends: dict[int, int] = {}
        self._owners: dict[int, list[str | None]] = {}
        self._ranges: dict[int, KeyRange] = {}
        self._read: set[bytes] = set()
        self._acked: set[bytes] = set()

    def book(self, name: str) -> Book:
        """Return the record of a transaction; it is empty for a new one."""
        return self.books.setdefault(name, Book())

    def has_ended(self, name: str) -> bool:
        """Return whether the transaction had an outcome at the last check."""
        return self.books[name].outcome is not None

    def acked(self, events: list[Written]) -> None:
        """Record that plain events were acknowledged."""
        self._acked.update(data for _, data in events)

    def tried(self, events: list[Written], transaction: str | None) -> None:
        """Record events before the call that may make them durable."""
        self.homes.update({data: (key, transaction) for key, data in events})

    def check_new_versions(self) -> StreamView:
        """Check the new versions and events; return the newest view."""
        view = self.stream.view()
        ended: list[str] = []
        start = -1 if self._snapshot is None else self._snapshot.version
        for commit in self.stream.log.reader.span(start, view.version):
            ended += self._commit(commit)
        for event in EventReader(self.stream).events(self._cut, view.tail):
            self._event(event)
        self._cut = view.tail
        assert self._acked <= self._read, "an acknowledged event is missing"
        for name in ended:
            self._ended(self.books[name])
        return view

    # ------------------------------------------------------------------------------ one version

    def _commit(self, commit: Commit) -> list[str]:
        before = self._snapshot
        if before is None:
            self._snapshot = first_snapshot(commit, self.stream.name)
        else:
            self._snapshot = before.apply(commit)
        view = StreamView(self._snapshot)
        self._layout(None if before is None else StreamView(before), view, commit)
        self._adds(commit)
        self._lengths(view)
        return self._outcomes(commit)

    def _layout(self, before: StreamView | None, view: StreamView, commit: Commit) -> None:
        for number in range(view.oldest_epoch, view.active.number + 1):
            for segment in view.epoch(number).segments:
                known = self._ranges.setdefault(segment.segment_id, segment.key_range)
                assert known == segment.key_range, f"segment {segment} changed its keys"
        if before is None or commit.operation != "COMMIT TRANSACTION":
            return
        old, new = before.active, view.active
        shapes = [[(s.number, s.key_range) for s in epoch.segments] for epoch in (old, new)]
        assert shapes[0] == shapes[1], "a commit of transactions changed the layout"
        assert old.reference == new.reference
        rolled = json.loads(commit.info["operationParameters"]["rolled"])
        assert rolled is (old.number != new.number)
        names = [name for name in commit.domains if name.startswith(EPOCH_PREFIX)]
        assert len(names) == new.number - old.number

    def _adds(self, commit: Commit) -> None:
        for add in commit.adds:
            segment_id = int(add.partition["segment_id"])
            end = self._ends.get(segment_id, 0)
            assert int(add.partition["base_offset"]) == end, "offsets have a gap or an overlap"
            self._ends[segment_id] = end + int((add.tags or {})["rows"])
            folder = add.path.split("/")[1]
            owner = folder.removeprefix("t-") if folder.startswith("t-") else None
            owners = self._owners.setdefault(segment_id, [])
            if owner is None or owners[-1:] != [owner]:
                assert owner is None or owner not in owners, "transactions interleave"
                owners.append(owner)

    def _lengths(self, view: StreamView) -> None:
        active = set(view.active.segment_ids)
        for name in view.snapshot.names(SEGMENT_PREFIX):
            record = view.segment(int(name.removeprefix(SEGMENT_PREFIX)))
            end = self._ends.get(record.segment_id, 0)
            assert record.next_offset == end, "a segment's length is not that of its chunks"
            if view.record.state is not StreamState.SEALED:
                assert record.is_sealed is (record.segment_id not in active)

    def _outcomes(self, commit: Commit) -> list[str]:
        for name, text in commit.domains.items():
            if name.startswith(OPEN_PREFIX) and text is not None:
                opened = decode_open(name.removeprefix(OPEN_PREFIX), text)
                self.book(opened.transaction_id).opened = opened
        ended = {
            name.removeprefix(OUTCOME_PREFIX): decode_outcome(name, text)
            for name, text in commit.domains.items()
            if name.startswith(OUTCOME_PREFIX) and text is not None
        }
        rows: dict[str, int] = {}
        for add in commit.adds:
            name = add.path.split("/")[1].removeprefix("t-")
            rows[name] = rows.get(name, 0) + int((add.tags or {})["rows"])
        for name, outcome in ended.items():
            book = self.books[name]
            assert book.outcome is None, "an outcome is not final"
            assert outcome.version == commit.version
            assert commit.domains[f"{OPEN_PREFIX}{name}"] is None
            assert outcome.events == rows.pop(name, 0)
            book.outcome = outcome
        assert not any(name in self.books for name in rows), (
            "a commit has events of a transaction without its outcome"
        )
        if commit.operation == "COMMIT TRANSACTION":
            story = json.loads(commit.info["operationParameters"]["transactions"])
            self.order += [item["id"] for item in story]
            assert set(self.order[-len(story) :]) == {n for n, o in ended.items() if o.committed}
        return list(ended)

    # ---------------------------------------------------------------------------- the events

    def _event(self, event: Event) -> None:
        key, transaction = self.homes[event.data]
        assert event.routing_key == key
        assert event.data not in self._read, "an event exists twice"
        self._read.add(event.data)
        if key is not None:
            keys = self._ranges[event.segment_id]
            assert keys.low <= position(key) < keys.high, "an event is in a segment of other keys"
        self.by_key.setdefault(key, []).append(event.data)
        if transaction is not None:
            self.books[transaction].seen.append(event)

    def _ended(self, book: Book) -> None:
        assert book.outcome is not None
        seen = [event.data for event in book.seen]
        if not book.outcome.committed:
            assert not seen, "events of an aborted transaction are visible"
            assert book.closed is None, "a transaction was aborted after a successful commit"
            self._check_reason(book, book.outcome)
            return
        assert not book.aborted, "a transaction was committed after a successful abort"
        for write in book.writes:
            found = [data for _, data in write.events if data in seen]
            complete = len(found) == len(write.events)
            assert complete or not found, "a part of a write exists"
            assert complete or not write.answered, "an acknowledged write is missing"
            assert not found or not write.refused, "a refused write exists"
        assert len({e.segment_id for e in book.seen if e.routing_key is None}) <= 1
        for handle in {id(write.handle) for write in book.writes}:
            mine = [e for w in book.writes if id(w.handle) == handle for e in w.events]
            for key in {key for key, _ in mine}:
                written = [data for k, data in mine if k == key and data in seen]
                assert written == [data for data in seen if (key, data) in mine]

    def _check_reason(self, book: Book, outcome: TransactionOutcome) -> None:
        """Check the reason of an abort: a call, an expired lease, or a fenced writer."""
        opened = book.opened
        assert opened is not None
        fenced = False
        if opened.writer_id is not None and self._snapshot is not None:
            known = StreamView(self._snapshot).writer(opened.writer_id)
            fenced = known is not None and known.session > opened.session
        late = outcome.ended_ms - opened.created_ms > opened.lease_ms
        assert book.abort_called or late or fenced, f"aborted for no reason: {outcome.reason}"

    def check_orders(self) -> None:
        """Check that all segments have the transactions in one order: that of their commits."""
        rank = {name: number for number, name in enumerate(self.order)}
        for owners in self._owners.values():
            ranks = [rank[owner] for owner in owners if owner is not None]
            assert ranks == sorted(ranks), "segments have transactions in different orders"
        committed = [self.books[name] for name in self.order]
        for number, later in enumerate(committed):
            for earlier in committed[:number]:
                assert not (
                    later.closed is not None
                    and earlier.asked is not None
                    and later.closed < earlier.asked
                ), "a transaction precedes one that was committed before its own commit call"

    def check_all(self) -> None:
        """Read all events again: each key has the same events in the same order."""
        again: dict[str | None, list[bytes]] = {}
        for event in EventReader(self.stream).events():
            again.setdefault(event.routing_key, []).append(event.data)
        loose = sorted(again.pop(None, []))
        assert loose == sorted(self.by_key.get(None, []))
        assert again == {key: data for key, data in self.by_key.items() if key is not None}
