"""The sweep of a stream: its events table, its history, and records that it no longer needs.

Clocks decide when to delete; that a deletion is safe does not depend on them (see ``garbage``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.clock import ClockReading, read_clock
from pravega_spark.engine.log.commit import Log, Proposal
from pravega_spark.engine.log.retained import VersionAges, encode_log_domain, is_pinned
from pravega_spark.engine.log.snapshot import LOG_DOMAIN, Snapshot
from pravega_spark.engine.log.sweep import (
    NOTHING_SWEPT,
    SweepResult,
    add_results,
    delete_ended_log,
    delete_unreferenced_files,
    finish_sweep,
    prepare_sweep,
    preview_sweep,
    sweep_table,
)
from pravega_spark.engine.log.sweep_record import add_swept, delete_swept
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.store.reserve import frees
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.history import (
    HistoryRow,
    history_log,
    merge_history,
)
from pravega_spark.engine.stream.layout_rows import append_rows, note_layout
from pravega_spark.engine.stream.lifecycle import DELETION
from pravega_spark.engine.stream.records import (
    NOTE_PREFIX,
    OUTCOME_PREFIX,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    StreamState,
    is_anonymous,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView


@frees
def sweep_stream(
    stream: StreamLog,
    *,
    grace_ms: int,
    retain_ms: int,
    completed_ms: int,
    records_ms: int | None = None,
    life: int | None = None,
) -> SweepResult:
    """Sweep a stream once, then its history; the result counts both.

    The rules are those of :func:`sweep_table`. Outcomes of transactions older than
    ``completed_ms`` become rows of the history. So do the records of writers with users' ids and
    of removed subscribers that did not change for ``records_ms``; look-ups still find them (see
    ``archived_records``). The history's rows of the layout are compared with the log. ``life`` is
    the life that the call is made for, by default the present one. Raises StaleIdentity,
    NoSuchStream.
    """
    life = stream.life_of(life)
    ages = VersionAges.read(stream.log)
    plan = prepare_sweep(stream.log, ages, grace_ms, retain_ms)
    ended_ms = ages.now_ms - completed_ms
    ended_below = min(plan.horizon, _all_older(ages, ended_ms))
    archived_below = 0
    if records_ms is not None:
        archived_below = min(plan.horizon, _all_older(ages, ages.now_ms - records_ms))

    def unneeded(snapshot: Snapshot) -> tuple[list[HistoryRow], list[HistoryRow]]:
        ended = _ended_records(snapshot, plan.horizon, ended_below, ended_ms)
        return ended, _unused_records(snapshot, archived_below)

    rows, unused = unneeded(plan.snapshot)
    view, history = stream.view_of(plan.snapshot), history_log(stream)
    if rows or unused:
        append_rows(stream, view, [*rows, *unused], history)
    else:
        note_layout(stream, view, history)
    _archive(stream, life, unused)
    failpoint("sweep.history")
    names = {(row.name, row.version) for row in (*rows, *unused)}

    def removed_names(snapshot: Snapshot) -> list[str]:
        StreamView(snapshot).check_life(life)
        found = itertools.chain(*unneeded(snapshot))
        return [row.name for row in found if (row.name, row.version) in names]

    domains = {archived_records.MOVED_DOMAIN: "1"} if unused else {}
    events = finish_sweep(stream.log, plan, removed_names, domains)
    if archived_records.MOVED_DOMAIN in plan.snapshot.domains:  # else all were archived just now
        failpoint("sweep.archived")
        again = [row.name for row in unused if row.record != "note"]
        archived_records.delete_replaced(stream, life, again, events.retention_mark)
    notes = sum(row.record == "note" for row in (*rows, *unused))
    events = replace(events, records=events.records - notes)
    add_swept(stream.log, FileTotals(events.files, events.size_bytes))
    stream.store.discard_unfinished(f"{stream.name}/transactions", grace_ms)
    return add_results(events, _sweep_history(history, grace_ms, retain_ms, ages.now))


def preview_stream_sweep(
    stream: StreamLog, grace_ms: int, retain_ms: int, *, life: int | None = None
) -> SweepResult:
    """Return what a sweep of the stream and its history would do, as :func:`preview_sweep` does.

    Writes nothing. Raises StaleIdentity, NoSuchStream.
    """
    stream.view(life=life)
    now = read_clock(stream.store, stream.runtime, keep=False)
    logs = stream.log, history_log(stream)
    found = [preview_sweep(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now) for log in logs]
    return add_results(*found)


@frees
def sweep_deleted_stream(
    stream: StreamLog, *, grace_ms: int, retain_ms: int, now: ClockReading
) -> SweepResult:
    """Sweep a deleted stream down to the files that the next creation of its name needs.

    These are version 0 and the newest version of its log, and a state file and a checkpoint of the
    latter. The commit of the deletion names writers and groups, so another commit is made first. A
    stream that exists, or never existed, is not changed. Its history is kept and swept.
    """
    log = stream.log
    folders = f"{stream.name}/transactions", archived_records.archive_folder(stream.path)
    remains = [entry.key for folder in folders for entry in stream.store.list(folder)]
    # Read after the listing: if the stream is deleted now, every listed file is of an ended life.
    snapshot = log.proved_newest()
    if snapshot is None or StreamView(snapshot).record.state is not StreamState.DELETED:
        return NOTHING_SWEPT
    stream.store.delete(remains)
    delete_swept(log)
    swept = delete_unreferenced_files(log, grace_ms=grace_ms, keep_record=False)
    commit = log.reader.commit(snapshot.version, light=True)
    is_deletion = commit is not None and commit.operation == DELETION
    if is_deletion or snapshot.commit_deletion_mark < snapshot.version:
        snapshot = log.commit(partial(_forgetting, snapshot.version)).snapshot
    commits = delete_ended_log(log, VersionAges(log, now))
    result = SweepResult(
        horizon=snapshot.horizon,
        retention_mark=snapshot.retention_mark,
        commit_deletion_mark=snapshot.commit_deletion_mark,
        records=0,
        files=swept.files + len(remains),
        size_bytes=swept.size_bytes,
        commits=commits,
    )
    return add_results(result, _sweep_history(history_log(stream), grace_ms, retain_ms, now))


def _sweep_history(log: Log, grace_ms: int, retain_ms: int, now: ClockReading) -> SweepResult:
    result = sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)
    merge_history(log)
    return result


def _forgetting(deleted_at: int, snapshot: Snapshot | None) -> Proposal[None]:
    """Follow the commit of a deletion by one that names nothing of the deleted life."""
    if snapshot is None or snapshot.version != deleted_at or is_pinned(snapshot):
        return None, None
    version = deleted_at + 1
    marks = {"horizon": version, "retained": version, "cleanup": version}
    return Body(
        "SWEEP", marks, domains={LOG_DOMAIN: encode_log_domain(version, version, version, version)}
    ), None


def _ended_records(
    snapshot: Snapshot, horizon: int, ended_below: int, ended_ms: int
) -> list[HistoryRow]:
    """Return the records that the state does not need from the horizon on.

    These are anonymous writers whose last commit is below the horizon, and outcomes of transactions
    that ended in a version below ``ended_below``. The commits below the commit-deletion mark may be
    deleted, so no object shows their age: there the outcome's own time counts, against
    ``ended_ms``.
    """
    view, rows = StreamView(snapshot), []
    for domain in snapshot.names(OUTCOME_PREFIX):
        outcome = view.outcome(domain.removeprefix(OUTCOME_PREFIX))
        assert outcome is not None
        is_undated = outcome.version < snapshot.commit_deletion_mark and outcome.ended_ms < ended_ms
        if outcome.version < ended_below or is_undated:
            rows.append(
                HistoryRow("transaction", outcome.version, domain, snapshot.domains[domain])
            )
    for domain in snapshot.names(WRITER_PREFIX):
        if is_anonymous(domain.removeprefix(WRITER_PREFIX)):
            version = int(snapshot.get(domain)[2])  # type: ignore[index]
            if version < horizon:
                rows += _of_writer(snapshot, domain, version)
    return rows


def _all_older(ages: VersionAges, time_ms: int) -> int:
    """Return the version below which all are older than a time; 0 if none is known to be."""
    version = ages.version_at(time_ms)
    return 1 + version if ages.written_ms(version) <= time_ms else 0


def _of_writer(snapshot: Snapshot, domain: str, version: int) -> list[HistoryRow]:
    rows = [HistoryRow("writer", version, domain, snapshot.domains[domain])]
    note = NOTE_PREFIX + domain.removeprefix(WRITER_PREFIX)
    if note in snapshot.domains:
        rows.append(HistoryRow("note", version, note, snapshot.domains[note]))
    return rows


def _unused_records(snapshot: Snapshot, below: int) -> list[HistoryRow]:
    """Return old records of writers with users' ids and of removed subscribers.

    A writer with an open transaction is kept: the transaction's commit changes its record.
    """
    if below == 0:
        return []
    view, rows = StreamView(snapshot), []
    busy = {opened.writer_id for opened in view.transactions.values()}
    for domain in snapshot.names(WRITER_PREFIX):
        writer_id = domain.removeprefix(WRITER_PREFIX)
        version = int(snapshot.get(domain)[2])  # type: ignore[index]
        if version < below and writer_id not in busy and not is_anonymous(writer_id):
            rows += _of_writer(snapshot, domain, version)
    for domain in snapshot.names(SUBSCRIBER_PREFIX):
        record = view.subscriber(domain.removeprefix(SUBSCRIBER_PREFIX))
        assert record is not None
        if record.removed and record.since_version < below:
            text = snapshot.domains[domain]
            rows.append(HistoryRow("subscriber", record.since_version, domain, text))
    return rows


def _archive(stream: StreamLog, life: int, rows: Sequence[HistoryRow]) -> None:
    """Archive the records that leave the state; a note is part of its writer's archive."""
    notes = {row.name.removeprefix(NOTE_PREFIX): row for row in rows if row.record == "note"}
    for row in rows:
        if row.record != "note":
            note = notes.get(row.name.removeprefix(WRITER_PREFIX))
            rows_of_record = [row] if note is None else [row, note]
            values = {one.name: one.value for one in rows_of_record}
            archived_records.archive(stream, life, row.version, row.name, values)
