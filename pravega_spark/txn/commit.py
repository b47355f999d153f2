"""The commit of transactions: one commit of the log ends all decided ones, in commit order.

Any process may commit any decision, its own or another's, so a crashed process leaves nothing that
only it could finish. The committer itself decides nothing.

Rolling commit: append a transaction's chunks after scales, by metadata alone. The epoch in which a
transaction began routed its chunks. If one active segment covers each of their segments, the chunks
move to it unchanged. Otherwise the commit *rolls*, as in Pravega: it duplicates the old epoch,
appends the late events to it, and duplicates the epoch that was active. So for every key they come
after all earlier events and before all later ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.layout import epoch_changes
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.observers import observers
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.layout_rows import note_layout_later
from pravega_spark.engine.stream.records import (
    OUTCOME_PREFIX,
    OpenTransaction,
    TransactionOutcome,
    WriterRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import (
    TimeNote,
    left_after,
    mark_of,
    noted_changes,
    pace_of,
)
from pravega_spark.engine.writing.append import targets
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.txn.manifests import (
    Manifest,
    ManifestKind,
    Manifests,
    announced_transactions,
    announcement_key,
    read_new,
)
from pravega_spark.values.segments import Epoch, segment_text

ALWAYS_READ = 16
"""Every commit reads this many of the oldest open transactions; younger ones are announced."""


@dataclass(frozen=True, slots=True)
class DecidedTransaction:
    """An open transaction with its closing manifest."""

    opened: OpenTransaction
    closing: Manifest
    chunks: list[StagedChunk]

    @property
    def order(self) -> tuple[int, str]:
        """The position in the commit order; concurrent decisions are ordered by id."""
        return self.closing.order, self.opened.transaction_id


class KnownDecisions:
    """The manifests of one stream's open transactions; thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._version = -1
        self._manifests: dict[str, Manifests] = {}
        self._closed: dict[str, Manifests] = {}
        """The decided ones; with each, it holds all that were decided before."""

    def read(
        self,
        stream: StreamLog,
        view: StreamView,
        *,
        names: Collection[str] = (),
        apart_from: str | None = None,
    ) -> None:
        """Read new manifests of transactions that may be decided, until no decision is new.

        These are the oldest open ones, the announced ones, and ``names``. The writer of a
        closing manifest had read all earlier decisions, some of which may be newer than our last
        read; so after each new closing manifest all of them are read again.
        """
        always = {*oldest_open(view), *names} - {apart_from}
        with self._lock:
            decided = set(self._closed)
        # Announcements are listed only if one of them could tell this process something new.
        others = set(view.snapshot.open) - always - decided - {apart_from}
        several: dict[str, Manifests] = {}
        is_new = True
        while is_new:
            wanted = always | (announced_transactions(stream) & others) if others else always
            several |= self._undecided(stream, view, wanted - several.keys())
            behind = [manifests for manifests in several.values() if not manifests.is_closed]
            read_new(behind)
            is_new = any(manifests.is_closed for manifests in behind)
        with self._lock:
            self._manifests |= several
            self._closed |= {name: m for name, m in several.items() if m.is_closed}

    def _undecided(
        self, stream: StreamLog, view: StreamView, names: Iterable[str]
    ) -> dict[str, Manifests]:
        """Return copies of the manifests of those not known as decided, to read on from."""
        with self._lock:
            self._forget_ended(view)
            return {
                name: self._manifests[name].copy()
                if name in self._manifests
                else Manifests(stream, name)
                for name in sorted(names)
                if name not in self._closed
            }

    def _forget_ended(self, view: StreamView) -> None:
        if view.version >= self._version:
            self._version = view.version
            for known in (self._manifests, self._closed):
                for name in [name for name in known if name not in view.snapshot.open]:
                    del known[name]

    def add(self, manifests: Manifests) -> None:
        """Add a decision of this process, so that its other threads need not read it."""
        with self._lock:
            self._manifests[manifests.transaction_id] = manifests
            self._closed[manifests.transaction_id] = manifests

    def last_order(self) -> int:
        """Return the commit order of the last known decision."""
        with self._lock:
            return max((m.entries[-1].order for m in self._closed.values()), default=0)

    def decided(self, view: StreamView, own: Iterable[Manifests]) -> list[DecidedTransaction]:
        """Return the decided transactions that the log holds as open, in commit order."""
        with self._lock:
            closed = dict(self._closed)
        for manifests in own:  # a thread with an older view may have forgotten them
            closed[manifests.transaction_id] = manifests
        found = [
            DecidedTransaction(opened, manifests.entries[-1], manifests.chunks)
            for name, manifests in closed.items()
            if (opened := view.transaction(name)) is not None
        ]
        return sorted(found, key=lambda decided: decided.order)


def known_decisions(stream: StreamLog) -> KnownDecisions:
    """Return what this process knows of a stream's decisions."""
    return stream.kept(KnownDecisions, KnownDecisions)


def oldest_open(view: StreamView) -> set[str]:
    """Return the open transactions whose manifests every commit reads.

    A transaction stays among them until it ends, so every commit finds a decision that was made
    while it was one of them. Transactions of the first versions of this package have no version
    and are not announced, so all of them are read.
    """
    opened = view.transactions.values()
    dated = (one for one in opened if one.version)
    oldest = heapq.nsmallest(ALWAYS_READ, dated, key=lambda one: one.version)
    return {one.transaction_id for one in oldest} | {
        one.transaction_id for one in opened if not one.version
    }


class RollingCommit:
    """Appends transactions to a commit, one after the other."""

    def __init__(self, builder: CommitBuilder, now_ms: int) -> None:
        self._builder = builder
        self._now_ms = now_ms
        self._interrupted: Epoch | None = None
        """The epoch that was active when the commit began to roll."""
        self._covers: dict[int, int | None] = {}

    @property
    def rolled(self) -> bool:
        """Whether the commit duplicated an older epoch."""
        return self._interrupted is not None

    def append(self, epoch: int, chunks: Iterable[StagedChunk]) -> list[StagedChunk]:
        """Append the chunks of a transaction of an epoch; return them with their new segments."""
        chunks = list(chunks)
        moved = self._moved(chunks)
        if moved is None:
            if self._interrupted is None:
                self._interrupted = self._builder.active
            self._duplicate(self._builder.epoch(epoch))
            moved = self._moved(chunks)
            assert moved is not None, f"epoch {epoch} does not hold its own segments"
        self._builder.append_chunks(moved)
        return moved

    def finish(self) -> None:
        """After the last transaction, return to the layout that was active."""
        interrupted = self._interrupted
        if interrupted is not None and self._builder.active.reference != interrupted.reference:
            self._duplicate(interrupted)

    def _moved(self, chunks: Iterable[StagedChunk]) -> list[StagedChunk] | None:
        """Return the chunks in the active segments that cover theirs, or None."""
        moved = []
        for chunk in chunks:
            segment_id = self._cover(chunk.segment_id)
            if segment_id is None:
                return None
            same = segment_id == chunk.segment_id
            moved.append(chunk if same else replace(chunk, segment_id=segment_id))
        return moved

    def _cover(self, segment_id: int) -> int | None:
        """Return the one active segment that covers a segment's keys, or None."""
        if segment_id not in self._covers:
            found = targets(self._builder, segment_id)
            self._covers[segment_id] = found[0].segment_id if len(found) == 1 else None
        return self._covers[segment_id]

    def _duplicate(self, source: Epoch) -> None:
        before = self._builder.active
        created_ms = max(self._now_ms, before.created_ms + 1)
        self._builder.switch(epoch_changes.duplicate(source, before.number + 1, created_ms))
        self._covers.clear()


def next_commit_order(stream: StreamLog, view: StreamView, transaction_id: str) -> int:
    """Return the commit order of a decision that follows: after all earlier decisions.

    ``view`` is no older than the caller's call. Each earlier decision has either reached the log,
    or its transaction is open in the view and its closing manifest is read here; so the order of
    two commits depends on no clock. Later decisions find this transaction among the oldest, or by
    an announcement that is put before its closing manifest; so the cost does not depend on the
    number of open transactions.
    """
    known = known_decisions(stream)
    known.read(stream, view, apart_from=transaction_id)
    if transaction_id not in oldest_open(view):
        stream.store.put(announcement_key(stream, transaction_id), b"{}\n")
    return known.last_order() + 1


def find_and_commit_decided(
    stream: StreamLog, view: StreamView, names: Collection[str]
) -> StreamView:
    """Read the manifests of open transactions, commit the decided ones, and return the new view."""
    known_decisions(stream).read(stream, view, names=names)
    return commit_decided(stream, life=view.life)


def commit_decided(stream: StreamLog, *own: Manifests, life: int | None = None) -> StreamView:
    """Commit every known decision that the log does not hold yet; return the new view.

    ``own`` are decisions of this process; ``next_commit_order`` has read the earlier ones. A lost
    race reads no manifests again, since a busy log would not wait for that. ``life`` is the life
    of the stream that the call is for, by default the present one.
    """
    known = known_decisions(stream)
    for manifests in own:
        known.add(manifests)  # a concurrent commit of this process can then include it

    def decide(view: StreamView) -> Proposal[tuple[list[StagedChunk], bool]]:
        decided = known.decided(view, own)
        chunks: list[StagedChunk] = []
        body = _body(stream, view, decided, chunks) if decided else None
        return body, (chunks, body is not None and bool(body.parameters["rolled"]))

    done = stream.commit(decide, life=stream.life_of(life))
    view = StreamView(done.snapshot)
    committed, rolled = done.value
    if rolled:
        note_layout_later(stream, view.life)
    _report(stream, committed)
    watch_of(stream.store).answered(stream.runtime)
    failpoint("txn.committed")
    return view


def _report(stream: StreamLog, chunks: Sequence[StagedChunk]) -> None:
    if chunks:
        events = sum(chunk.rows for chunk in chunks)
        size_bytes = sum(chunk.event_bytes for chunk in chunks)
        for observer in observers:
            observer.transactions_committed(stream.name, events, size_bytes)


def _body(
    stream: StreamLog,
    view: StreamView,
    decided: Sequence[DecidedTransaction],
    committed_chunks: list[StagedChunk],
) -> Body:
    """Return the commit that ends these transactions, in their order; add what it appends."""
    now_ms, version = stream.now_ms(), view.version + 1
    builder = CommitBuilder(view, now_ms)
    rolling = RollingCommit(builder, now_ms)
    domains: dict[str, str | None] = {}
    history: list[dict[str, object]] = []
    aborted: list[str] = []
    notes: dict[str, TimeNote] = {}
    for item in decided:
        opened, closing, name = item.opened, item.closing, item.opened.transaction_id
        committed = closing.kind is ManifestKind.COMMITTING
        appended = rolling.append(opened.epoch, item.chunks) if committed else []
        rows, sizes = _amounts(appended)
        committed_chunks += appended
        outcome = TransactionOutcome(
            transaction_id=name,
            committed=committed,
            created_ms=opened.created_ms,
            ended_ms=now_ms,
            version=version,
            decision=closing.token,
            events=sum(rows.values()),
            size_bytes=sum(sizes.values()),
            writer_id=opened.writer_id,
            reason=closing.reason,
        )
        domains[f"{OPEN_PREFIX}{name}"] = None
        domains[f"{OUTCOME_PREFIX}{name}"] = outcome.encode()
        if not committed:
            aborted.append(name)
            continue
        history.append(_history_entry(opened, closing, rows, sizes))
        if closing.note is not None and opened.writer_id is not None:
            domains |= _note_changes(view, opened, closing.note, version)
        if opened.writer_id is not None and _moves_mark(view, opened, closing):
            note = TimeNote(opened.writer_id, closing.timestamp_us, began=opened.version)
            notes[opened.writer_id] = note.after(notes.get(opened.writer_id))
    rolling.finish()
    domains |= noted_changes(view, notes.values(), builder.open_ends, pace_of(stream))
    operation = "COMMIT TRANSACTION" if history else "ABORT TRANSACTION"
    parameters = {"transactions": history, "aborted": aborted, "rolled": rolling.rolled}
    body = builder.body(operation, parameters)
    body.domains = {**body.domains, **domains}
    return body


def _amounts(appended: Sequence[StagedChunk]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the events and the bytes of chunks by segment."""
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for chunk in appended:
        segment = segment_text(chunk.segment_id)
        rows[segment] = rows.get(segment, 0) + chunk.rows
        sizes[segment] = sizes.get(segment, 0) + chunk.event_bytes
    return rows, sizes


def _history_entry(
    opened: OpenTransaction, closing: Manifest, rows: dict[str, int], sizes: dict[str, int]
) -> dict[str, object]:
    """Return what the log's history records of a committed transaction."""
    entry: dict[str, object] = {"id": opened.transaction_id, "created": opened.created_ms}
    if closing.timestamp_us is not None:
        entry["timestamp"] = closing.timestamp_us
    return {**entry, "rowsBySegment": rows, "bytesBySegment": sizes}


def _moves_mark(view: StreamView, opened: OpenTransaction, closing: Manifest) -> bool:
    """Return whether a commit notes a time, or has events of a writer that has left meanwhile."""
    if closing.timestamp_us is not None:
        return True
    return left_after(mark_of(view, str(opened.writer_id)), opened.version)


def _note_changes(
    view: StreamView, opened: OpenTransaction, note: str, version: int
) -> dict[str, str]:
    """Return the changes of the writer's record that store the note of a commit."""
    writer_id = str(opened.writer_id)
    known = view.writer(writer_id) or WriterRecord(
        writer_id, session=opened.session, last=0, version=version
    )
    record = replace(known, note=note, note_number=known.last, version=version)
    return view.writer_changes(record)
