"""Sweeping a table of ours: raise its horizon, delete dead files, clean its log.

The same for a stream's events, its history and every table of state; a stream also lets go the
records of writers that nobody needs. Clocks decide when something may go; that it is safe does not
depend on them (``cleanup``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.clock_record import Now
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.garbage import delete_unreferenced_files
from pravega_spark.engine.log.horizon import encode_log_domain
from pravega_spark.engine.log.log_cleanup import delete_ended_log
from pravega_spark.engine.log.snapshot import LOG_DOMAIN, Snapshot
from pravega_spark.engine.log.sweep import (
    SweepResult,
    add_results,
    finish_sweep,
    prepare_sweep,
    sweep_table,
)
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.log.version_pins import is_pinned
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.history import HistoryRow, append_history, history_log
from pravega_spark.engine.stream.lifecycle import DELETION
from pravega_spark.engine.stream.records import (
    NOTE_PREFIX,
    OUTCOME_PREFIX,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    StreamState,
    decode_outcome,
    decode_subscriber,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.writer_ids import is_anonymous


def sweep_stream(
    stream: StreamLog,
    *,
    grace_ms: int,
    retain_ms: int,
    completed_ms: int,
    records_ms: int | None = None,
    life: int | None = None,
) -> SweepResult:
    """Sweep a stream once, then its history, which the counts of what was deleted include.

    The rules are those of :func:`sweep_table`. Outcomes of transactions older than
    ``completed_ms`` become rows of the history. So do records of writers with ids of their own and
    of removed subscribers that nobody changed for ``records_ms``; they are still found
    (:mod:`moved`). ``life`` is the one that the call was made for, by default the present one.
    Raises StaleIdentity, NoSuchStream.
    """
    life = stream.life_of(life)
    ages = VersionAges.read(stream.log)
    plan = prepare_sweep(stream.log, ages, grace_ms, retain_ms)
    ended_ms = ages.now_ms - completed_ms
    ended_below = min(plan.horizon, _all_older(ages, ended_ms))
    moved_below = 0
    if records_ms is not None:
        moved_below = min(plan.horizon, _all_older(ages, ages.now_ms - records_ms))

    def unneeded(snapshot: Snapshot) -> tuple[list[HistoryRow], list[HistoryRow]]:
        ended = _leaving(snapshot, plan.horizon, ended_below, ended_ms)
        return ended, _unused(snapshot, moved_below)

    rows, unused = unneeded(plan.snapshot)
    append_history(stream, [*rows, *unused])
    _move(stream, life, unused)
    failpoint("sweep.history")
    names = {(row.name, row.version) for row in (*rows, *unused)}

    def leaving(snapshot: Snapshot) -> list[str]:
        StreamView(snapshot).check_life(life)
        found = itertools.chain(*unneeded(snapshot))
        return [row.name for row in found if (row.name, row.version) in names]

    moved = {archived_records.MOVED_DOMAIN: "1"} if unused else {}
    events = finish_sweep(stream.log, plan, grace_ms, leaving, moved)
    notes = sum(row.record == "note" for row in (*rows, *unused))
    events = replace(events, records=events.records - notes)
    stream.store.discard_unfinished(f"{stream.name}/transactions", grace_ms)
    history = sweep_table(history_log(stream), grace_ms=grace_ms, retain_ms=retain_ms, now=ages.now)
    return add_results(events, history)


def sweep_deleted_stream(
    stream: StreamLog, *, grace_ms: int, retain_ms: int, now: Now
) -> SweepResult:
    """Sweep a stream that was deleted down to what the next creation of its name needs.

    That is version 0 of its log, the newest one, and a state file and a checkpoint of that. The
    deletion's own commit names writers and groups, so another commit follows it first. A stream
    that exists, or never did, is left alone. The history of its lives stays, and is swept.
    """
    log = stream.log
    folders = f"{stream.name}/transactions", archived_records.archive_folder(stream.path)
    left = [entry.key for folder in folders for entry in stream.store.list(folder)]
    snapshot = log.proved_newest()  # after the listing, so it holds only objects of ended lives
    if snapshot is None or StreamView(snapshot).record.state is not StreamState.DELETED:
        return SweepResult(0, 0, 0, 0, 0, 0)
    stream.store.delete(left)
    swept = delete_unreferenced_files(log, grace_ms=grace_ms)
    commit = log.reader.commit(snapshot.version, light=True)
    names_much = commit is not None and commit.operation == DELETION
    if names_much or snapshot.cleanup < snapshot.version:
        snapshot = log.commit(partial(_forgetting, snapshot.version)).snapshot
    commits = delete_ended_log(log, VersionAges(log, now))
    result = SweepResult(
        snapshot.horizon,
        snapshot.cleanup,
        0,
        swept.files + len(left),
        swept.size_bytes,
        commits,
    )
    history = history_log(stream)
    return add_results(
        result, sweep_table(history, grace_ms=grace_ms, retain_ms=retain_ms, now=now)
    )


def _forgetting(deleted_at: int, snapshot: Snapshot | None) -> Proposal[None]:
    """Follow the commit of a deletion by one that names nothing of what was in the stream."""
    if snapshot is None or snapshot.version != deleted_at or is_pinned(snapshot):
        return None, None
    version = deleted_at + 1
    marks = {"horizon": version, "cleanup": version}
    return Body(
        "SWEEP", marks, domains={LOG_DOMAIN: encode_log_domain(version, version, version)}
    ), None


def _leaving(snapshot: Snapshot, horizon: int, ended_below: int, ended_ms: int) -> list[HistoryRow]:
    """Return what the state can do without from the horizon on.

    Writers without an id of their own whose last commit is below it, and outcomes of transactions
    that ended in a version below ``ended_below``. Of versions that are not retained any more no
    object tells the age: there the outcome's own time counts, against ``ended_ms``.
    """
    rows = []
    for domain in snapshot.names(OUTCOME_PREFIX):
        text = snapshot.domains[domain]
        outcome = decode_outcome(domain.removeprefix(OUTCOME_PREFIX), text)
        is_undated = outcome.version < snapshot.cleanup and outcome.ended_ms < ended_ms
        if outcome.version < ended_below or is_undated:
            rows.append(HistoryRow("transaction", outcome.version, domain, text))
    for domain in snapshot.names(WRITER_PREFIX):
        if is_anonymous(domain.removeprefix(WRITER_PREFIX)):
            version = int(snapshot.get(domain)[2])  # type: ignore[index]
            if version < horizon:
                rows += _of_writer(snapshot, domain, version)
    return rows


def _all_older(ages: VersionAges, time_ms: int) -> int:
    """Return the version below which all are older than a time, 0 if that is not known of any."""
    version = ages.version_at(time_ms)
    return 1 + version if ages.written_ms(version) <= time_ms else 0


def _of_writer(snapshot: Snapshot, domain: str, version: int) -> list[HistoryRow]:
    rows = [HistoryRow("writer", version, domain, snapshot.domains[domain])]
    note = NOTE_PREFIX + domain.removeprefix(WRITER_PREFIX)
    if note in snapshot.domains:
        rows.append(HistoryRow("note", version, note, snapshot.domains[note]))
    return rows


def _unused(snapshot: Snapshot, below: int) -> list[HistoryRow]:
    """Return records of writers with ids of their own and of removed subscribers, by their age.

    A writer with an open transaction stays: the commit of that changes its record.
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
        text = snapshot.domains[domain]
        record = decode_subscriber(domain.removeprefix(SUBSCRIBER_PREFIX), text)
        if record.removed and record.since_version < below:
            rows.append(HistoryRow("subscriber", record.since_version, domain, text))
    return rows


def _move(stream: StreamLog, life: int, rows: Sequence[HistoryRow]) -> None:
    """Keep what leaves where it is found by its name; a note follows its writer."""
    notes = {row.name.removeprefix(NOTE_PREFIX): row for row in rows if row.record == "note"}
    for row in rows:
        if row.record != "note":
            note = notes.get(row.name.removeprefix(WRITER_PREFIX))
            several = [row] if note is None else [row, note]
            values = {one.name: one.value for one in several}
            archived_records.archive(stream, life, row.version, row.name, values)
