"""Restores one table's copy to its newest intact version, in its next life.

Dropped commits are not deleted but replaced by commits that change nothing, and a last commit
follows them. So versions never decrease, and a process that knows a dropped one notices.

A restore begins by creating the commit of the next version, by which every open refuses the table.
It holds the plan, so that the next run can finish a restore that was killed. The end is one step,
too: that commit is replaced by the last one. No commit is deleted: on an object store a request to
do that may land long after the process that sent it has ended.

Restores the folded table of a key-value table to a version that fits its change log. The change log
is restored first, and begins its next life. The folded table follows it into that life by the last
commit of its own restore. Until then the table cannot be opened, since its change log says that
there are folds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pravega_spark.backup.copy import abort_open_transactions
from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.log.actions import RESTORE, Add, Body, Commit
from pravega_spark.engine.log.commit import create_object
from pravega_spark.engine.log.files import rows_of
from pravega_spark.engine.log.reader import (
    LogReader,
    is_commit_key,
    keys_after,
    snapshot_at,
    table_at,
)
from pravega_spark.engine.log.retained import pins
from pravega_spark.engine.log.snapshot import Snapshot, closed_protocol
from pravega_spark.engine.log.stored_state import state_version
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.lifecycle import draw_life
from pravega_spark.engine.stream.records import (
    RESTORED_DOMAIN,
    RESTORED_SESSION,
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    Restoration,
    StreamState,
    WriterRecord,
    decode_stream,
    decode_subscriber,
    decode_writer,
    is_anonymous,
)
from pravega_spark.engine.stream.stream_log import StreamLog, events_path
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, InvalidStreamCut
from pravega_spark.key_value.folded_record import FOLDED_DOMAIN, FoldedRecord, completes
from pravega_spark.values.limits import COPY_PAGE_FILES
from pravega_spark.values.names import folded_path, is_group


@dataclass(slots=True)
class IntactVersion:
    """A table as of its newest intact version, and what later commits say, as far as readable."""

    snapshot: Snapshot
    newest: int
    """The newest version with a stored commit, intact or not."""
    events: int = 0
    """Events that the later commits added."""
    unreadable: int = 0
    """Later commits that are missing or damaged."""
    batches: dict[str, int] = field(default_factory=dict)
    """The last batch that the later commits added, by writer id of a query or an application."""
    life: int = 0
    """The highest life of a stream that a later commit names."""


def newest_intact_version(
    reader: LogReader, fits: Callable[[Snapshot], bool] = bool
) -> IntactVersion:
    """Return the newest version that can be rebuilt, ``fits``, and whose live files are all stored.

    Raises CorruptLog if there is none.
    """
    versions = _stored_versions(reader)
    readable = [v for v in versions if commit_if_readable(reader, v, light=True) is not None]
    files = reader.store.list(f"{reader.path}/data")
    sizes = {entry.key.removeprefix(f"{reader.path}/"): entry.size for entry in files}
    for first, last in _spans(readable):
        snapshot = _newest_intact_in(reader, sizes, first, last, fits)
        if snapshot is not None:
            return _with_later_commits(reader, IntactVersion(snapshot, max(versions)))
    raise CorruptLog(
        f"{reader.where}: no version has all of its commits and files; use another copy.",
        path=reader.where,
    )


def commit_if_readable(reader: LogReader, version: int, *, light: bool) -> Commit | None:
    """Return a commit, or None if it is missing or damaged."""
    try:
        return reader.commit(version, light=light)
    except CorruptLog:
        return None


def _stored_versions(reader: LogReader) -> list[int]:
    entries = reader.store.list(reader.folder)
    return [v for v in (state_version(entry.key) for entry in entries) if v >= 0]


def _spans(versions: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the spans without a gap, the newest first."""
    last = None
    for at in range(len(versions) - 1, -1, -1):
        last = versions[at] if last is None else last
        if at == 0 or versions[at - 1] < versions[at] - 1:
            yield versions[at], last
            last = None


def _newest_intact_in(
    reader: LogReader,
    sizes: Mapping[str, int],
    first: int,
    last: int,
    fits: Callable[[Snapshot], bool],
) -> Snapshot | None:
    """Return the newest intact version in a span of readable commits that fits, or None.

    Walks back from the last version: a version before a commit lacks the files that the commit
    adds and needs those that it removes. ``sizes`` are the stored data files by path.
    """
    try:
        snapshot, missing = _missing_at(reader, sizes, last)
    except CorruptLog:
        return None
    version = last
    while missing or not fits(snapshot):
        if version <= max(first, 0):
            return None
        commit = commit_if_readable(reader, version, light=False)
        assert commit is not None
        missing.difference_update(add.path for add in commit.adds)
        missing.update(p for p in commit.removes if p not in sizes or not _has_object(p, sizes))
        version -= 1
        if not missing:
            try:
                snapshot, missing = _missing_at(reader, sizes, version)
            except CorruptLog:
                return None
    return snapshot


def _missing_at(
    reader: LogReader, sizes: Mapping[str, int], version: int
) -> tuple[Snapshot, set[str]]:
    """Return a version's snapshot, and its live files that are not stored in full."""
    snapshot, files = table_at(reader, version)
    return snapshot, {add.path for add in files.all() if not _is_stored(add, sizes)}


def _is_stored(add: Add, sizes: Mapping[str, int]) -> bool:
    return sizes.get(add.path) == add.size and _has_object(add.path, sizes)


def _has_object(path: str, sizes: Mapping[str, int]) -> bool:
    """Return whether the object that a file names is stored in full; True if it names none."""
    attached = attached_object(path)
    return attached is None or sizes.get(attached[0]) == attached[1]


def _with_later_commits(reader: LogReader, intact: IntactVersion) -> IntactVersion:
    """Add what the commits after the intact version hold."""
    for version in range(intact.snapshot.version + 1, intact.newest + 1):
        commit = commit_if_readable(reader, version, light=False)
        if commit is None:
            intact.unreadable += 1
            continue
        intact.events += sum(rows_of(add) for add in commit.adds if add.data_change)
        for name, text in commit.domains.items():
            if name == STREAM_DOMAIN and text is not None:
                intact.life = max(intact.life, decode_stream(text).life)
            if name.startswith(WRITER_PREFIX) and text is not None:
                record = decode_writer(name.removeprefix(WRITER_PREFIX), text)
                if record.session == 0:
                    intact.batches[record.writer_id] = record.last
    return intact


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """What a restore kept of a table, and what it dropped."""

    path: str
    version: int
    """The newest intact version, which the table holds now."""
    dropped_versions: int
    dropped_events: int
    """As far as the commits of the dropped versions can be read."""
    unreadable_versions: int
    """Dropped versions whose commits cannot be read."""
    transactions: tuple[str, ...] = ()
    """Transactions that were open and are aborted."""
    life: int | None = None
    """The new life of a stream; None for other tables and for a deleted stream."""
    torn: tuple[str, ...] = ()
    """Joint transactions that were decided to commit, and of which the stream has no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What a restore writes, recorded before it changes anything."""

    version: int
    """The intact version."""
    newest: int
    """The newest stored version; the commit that closes the table, and then the last, follows."""
    token: str
    """The token of the last commit."""
    since_ms: int
    """The time before the first commit that the restore writes."""
    last: str
    """The last commit."""

    @property
    def record(self) -> dict[str, Any]:
        """The record of the plan."""
        return {
            "version": self.version,
            "newest": self.newest,
            "token": self.token,
            "since": self.since_ms,
            "last": self.last,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RestorePlan:
        """Return the plan of a record."""
        return cls(
            version=record["version"],
            newest=record["newest"],
            token=record["token"],
            since_ms=record["since"],
            last=record["last"],
        )


LastCommit = Callable[[IntactVersion, Body, int, int], "tuple[list[str], int | None]"]
"""Completes the last commit of a restore, given the intact version, the commit's body, its version
and its time in ms. Returns the ids of the transactions that it aborts, and a stream's new life."""


def restore_table(
    store: Store,
    path: str,
    runtime: Runtime,
    complete: LastCommit = lambda intact, body, version, now_ms: ([], None),
    fits: Callable[[Snapshot], bool] = bool,
    is_done: Callable[[Snapshot], bool] = bool,
) -> RestoredTable:
    """Restore a table to its newest intact version; safe to kill and to repeat, one at a time.

    Only versions that fit are taken. A table that was just restored is left as it is if it
    ``is_done``; otherwise it is completed once more, with the same report. Raises CorruptLog if no
    version is intact.
    """
    reader = LogReader(store, path)
    _finish_earlier(reader, runtime)
    while True:
        plan = _plan_of(reader, max(_stored_versions(reader), default=-1))
        if plan is not None:
            _apply(reader, runtime, plan)
        intact = newest_intact_version(reader, fits)
        is_newest = intact.snapshot.version == intact.newest
        known = _report(reader, intact.newest) if is_newest else None
        if known is not None and is_done(intact.snapshot):
            return known
        plan = _close(reader, runtime, intact, complete, known)
        if plan is not None:
            _apply(reader, runtime, plan)
            report = _report(reader, plan.newest + 1)
            assert report is not None
            return report


def restored_version(reader: LogReader, version: int) -> int | None:
    """Return the version that a restore went back to, if its last commit is ``version``."""
    commit = commit_if_readable(reader, version, light=True)
    is_last = commit is not None and "report" in commit.info["operationParameters"]
    return commit.restored_to if commit is not None and is_last else None


def _plan_of(reader: LogReader, version: int) -> RestorePlan | None:
    """Return the plan in the commit that closes a table, None for any other version."""
    commit = commit_if_readable(reader, version, light=True)
    if commit is None or commit.operation != RESTORE:
        return None
    text = commit.info["operationParameters"].get("plan")
    return None if text is None else RestorePlan.of(json.loads(text))


def _finish_earlier(reader: LogReader, runtime: Runtime) -> None:
    """Finish what a killed restore of release 0.1.0 has left, which moved version 0 away."""
    store, folder = reader.store, f"{reader.path}/_pravega"
    plan_key, first_key = f"{folder}/restore.json", f"{folder}/first.json"
    try:
        plan = RestorePlan.of(json.loads(store.get(plan_key)))
    except FileNotFoundError:
        return
    if not reader.has(0):  # else it has changed nothing yet, or has ended
        _apply(reader, runtime, plan)
        create_object(store, runtime, reader.key(0), store.get(first_key))
    store.delete([first_key, plan_key])


def _close(
    reader: LogReader,
    runtime: Runtime,
    intact: IntactVersion,
    complete: LastCommit,
    known: RestoredTable | None,
) -> RestorePlan | None:
    """Close the table by a commit that holds the plan of the restore, and return the plan.

    Returns None if another process has written the version. ``known`` is the report of the restore
    that ended in the intact version.
    """
    version, last = intact.snapshot.version, intact.newest + 1
    since_ms = max(runtime.now_ms(), intact.snapshot.timestamp_ms + 1)
    now_ms = since_ms + last - version
    body = Body(RESTORE)
    aborted, life = complete(intact, body, last, now_ms)
    dropped = intact.newest - version, intact.events, intact.unreadable
    found = known or RestoredTable(reader.path, version, *dropped, tuple(aborted))
    report = replace(found, life=life)
    stored = asdict(report)
    del stored["torn"]  # it depends on the root's decisions, and is found each time
    body.parameters = {"to": version, "report": stored}
    token = runtime.token()
    plan = RestorePlan(
        version=version,
        newest=intact.newest,
        token=token,
        since_ms=since_ms,
        last=body.encode(token, now_ms).decode(),
    )
    closing = Body(RESTORE, {"to": version, "plan": plan.record})
    closing.protocol = closed_protocol(intact.snapshot.protocol)
    data = closing.encode(runtime.token(), now_ms)
    is_ours = create_object(reader.store, runtime, reader.key(last), data)
    failpoint("restore.planned")
    return plan if is_ours else None


def _apply(reader: LogReader, runtime: Runtime, plan: RestorePlan) -> None:
    """Replace the dropped commits, and then the one that closes the table by the last one."""
    store = reader.store
    derived = (key for key in keys_after(reader, plan.version) if not is_commit_key(key))
    store.delete([reader.hint_key, *derived])
    failpoint("restore.cleared")

    def replace_commit(version: int) -> None:
        body = Body(RESTORE, {"to": plan.version, "dropped": version})
        token, time_ms = f"{plan.token}.{version}", plan.since_ms + version - plan.version
        store.put(reader.key(version), body.encode(token, time_ms))

    for first in range(plan.version + 1, plan.newest + 1, COPY_PAGE_FILES):
        page = range(first, min(first + COPY_PAGE_FILES, plan.newest + 1))
        runtime.each(replace_commit, page)
    failpoint("restore.replaced")
    store.put(reader.key(plan.newest + 1), plan.last.encode())
    failpoint("restore.last")


def _report(reader: LogReader, version: int) -> RestoredTable | None:
    """Return the report in the last commit of a restore, or None for any other version."""
    commit = commit_if_readable(reader, version, light=True)
    if commit is None or commit.operation != RESTORE:
        return None
    text = commit.info["operationParameters"].get("report")
    if text is None:
        return None
    report = json.loads(text)
    return RestoredTable(**{**report, "transactions": tuple(report["transactions"])})


REASON = "the stream was restored from a copy"


def begin_new_life(
    intact: IntactVersion,
    body: Body,
    version: int,
    now_ms: int,
    store: Store,
    runtime: Runtime,
    listed: int,
) -> tuple[list[str], int | None]:
    """Make the last commit of a restore begin a new life with the old events and offsets.

    The life is drawn above all that the stream's objects name, and above ``listed``.
    Open transactions are aborted. Subscribers keep the data that they held until their groups
    subscribe again. A query's next batch must follow the last batch in the copy. Archived records
    of writers return to the stream's state. Returns the ids of the aborted transactions and the
    new life, or None for a deleted stream, which stays deleted; a life that was drawn for it and
    has not begun is drawn again.
    """
    snapshot = intact.snapshot
    record = decode_stream(snapshot.domains[STREAM_DOMAIN])
    if record.state is StreamState.DELETED:
        if record.is_drawn:
            body.domains = {STREAM_DOMAIN: replace(record, sealed_ms=now_ms).encode()}
        return [], None
    archived = store.folders(archived_records.archive_folder(events_path(record.stream)))
    above = max(record.life, intact.life, listed, *(int(n) for n in archived if n.isdecimal()))
    renewed = replace(record, stream_id=runtime.token(), life=draw_life(runtime, above))
    returned = archived_records.read_archived_writers(
        store, events_path(record.stream), snapshot, record.life
    )
    body.domains = {
        STREAM_DOMAIN: renewed.encode(),
        RESTORED_DOMAIN: Restoration(renewed.life, now_ms).encode(),
        **dict.fromkeys(snapshot.names(archived_records.MOVED_DOMAIN)),
        **{pin.domain: None for pin in pins(snapshot)},
        **_subscribers(snapshot),
        **_writers(intact, version, returned),
    }
    return abort_open_transactions(snapshot, body, version, now_ms, REASON), renewed.life


def continued_lives(stream: StreamLog, view: StreamView) -> dict[int, int]:
    """Return the lives that a restored stream continues, with the last version of each."""
    found, reader = {view.life: view.version}, stream.log.reader
    at = view.version
    while (before := restored_version(reader, at)) is not None:
        found[StreamView(snapshot_at(reader, before)).life] = at = before
    return found


def _subscribers(snapshot: Snapshot) -> dict[str, str | None]:
    """Return the subscribers' records, those of groups at generation 0.

    So any group's next generation is newer. A plain subscriber's is recorded here alone, and stays.
    """
    domains: dict[str, str | None] = {}
    for name in snapshot.names(SUBSCRIBER_PREFIX):
        known = decode_subscriber(name.removeprefix(SUBSCRIBER_PREFIX), snapshot.domains[name])
        kept = replace(known, generation=0) if is_group(known.name) else known
        domains[name] = None if kept.removed else kept.encode()
    return domains


def _writers(
    intact: IntactVersion, version: int, returned: dict[str, str]
) -> dict[str, str | None]:
    """Return the writers' records; those with batches are marked as restored.

    A writer whose batches were all dropped gets a record, too: it must start again at batch 0.
    """
    domains: dict[str, str | None] = {
        f"{WRITER_PREFIX}{name}": WriterRecord(
            name, session=RESTORED_SESSION, last=-1, version=version
        ).encode()
        for name in intact.batches
        if not is_anonymous(name)
    }
    domains |= returned
    texts = {name: intact.snapshot.domains[name] for name in intact.snapshot.names(WRITER_PREFIX)}
    for name, text in {**texts, **returned}.items():
        if not name.startswith(WRITER_PREFIX):
            continue
        writer_id = name.removeprefix(WRITER_PREFIX)
        known = decode_writer(writer_id, text)
        if known.session == 0 and not is_anonymous(writer_id):
            domains[name] = replace(known, session=RESTORED_SESSION).encode()
    return domains


def restore_folded(
    store: Store, log_name: str, runtime: Runtime, change_log: RestoredTable
) -> RestoredTable:
    """Restore a folded table after its change log, and take it into the new life.

    Its version is the newest intact one that reflects nothing which the change log has dropped,
    and holds all that the change log was truncated by. Safe to kill and to repeat. Raises
    CorruptLog if there is none.
    """
    failpoint("restore.folded")
    path, life = folded_path(log_name), change_log.life
    if life is None:  # deleted, so its rows are of no use
        return restore_table(store, path, runtime)
    log = StreamLog(store, log_name, runtime)
    view = log.view()
    continued = continued_lives(log, view)

    def renewed(record: FoldedRecord | None) -> FoldedRecord | None:
        """Return the record in the new life; None if it tells nothing about it."""
        if record is None or record.is_ended:
            return None
        newest = continued.get(record.life, -1)
        return replace(record, life=life) if record.log_version <= newest else None

    def fits(snapshot: Snapshot) -> bool:
        try:
            return completes(renewed(FoldedRecord.of(snapshot)), view)
        except InvalidStreamCut:  # of a lost life that earlier releases gave the same number
            return False

    def is_done(snapshot: Snapshot) -> bool:
        record = FoldedRecord.of(snapshot)
        return renewed(record) in (None, record)

    def complete(
        intact: IntactVersion, body: Body, version: int, now_ms: int
    ) -> tuple[list[str], int | None]:
        record = renewed(FoldedRecord.of(intact.snapshot))
        if record is not None:
            body.domains = {FOLDED_DOMAIN: record.encode()}
        return [], None

    return restore_table(
        store, path, runtime=runtime, complete=complete, fits=fits, is_done=is_done
    )
