"""The committer: one commit of the log ends all decided transactions, in commit order.

Any process may commit any decision, its own or another's, so a crashed process leaves nothing that
only it could finish. The committer itself decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.observers import observers
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.mark_changes import noted_changes
from pravega_spark.engine.stream.records import (
    OUTCOME_PREFIX,
    OpenTransaction,
    TransactionOutcome,
    WriterRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_marks import TimeNote, left_after, mark_of
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import segment_text
from pravega_spark.transactions.decision_cache import (
    DecidedTransaction,
    known_decisions,
    oldest_open,
)
from pravega_spark.transactions.manifest_codec import Manifest, ManifestKind
from pravega_spark.transactions.manifests import Manifests
from pravega_spark.transactions.rolling import RollingCommit
from pravega_spark.transactions.transaction_paths import announcement_key


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

    def decide(view: StreamView) -> Proposal[list[StagedChunk]]:
        decided = known.decided(view, own)
        chunks: list[StagedChunk] = []
        return (_body(stream, view, decided, chunks) if decided else None), chunks

    done = stream.commit(decide, life=stream.life_of(life))
    view = StreamView(done.snapshot)
    _report(stream, done.value)
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
            name,
            committed,
            opened.created_ms,
            now_ms,
            version,
            closing.token,
            sum(rows.values()),
            sum(sizes.values()),
            opened.writer_id,
            closing.reason,
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
    domains |= noted_changes(view, notes.values(), builder.open_ends)
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
    known = view.writer(writer_id) or WriterRecord(writer_id, opened.session, 0, version)
    record = replace(known, note=note, note_number=known.last, version=version)
    return view.writer_changes(record)
