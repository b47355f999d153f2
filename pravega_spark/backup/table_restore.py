"""Restores one table's copy to its newest intact version, and reports what it dropped.

Dropped commits are not deleted but replaced by commits that change nothing, and a last commit
follows them. So versions never decrease, and a process that knows a dropped one notices. Until
the restore is complete, the log's version 0 is moved away, so that every open refuses the table.
The restore first writes a plan, so that the next run can finish one that was killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from pravega_spark.backup.restore_point import (
    IntactVersion,
    commit_if_readable,
    newest_intact_version,
)
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log.actions import RESTORE, Body
from pravega_spark.engine.log.create_once import create_object
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.table_at_version import is_commit_key, keys_after
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.limits import COPY_PAGE_FILES


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


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore writes, recorded before it changes anything."""

    version: int
    """The intact version."""
    newest: int
    """The newest stored version; the last commit of the restore follows it."""
    token: str
    """The token of the last commit."""
    since_ms: int
    """The time before the first commit that the restore writes."""
    last: str
    """The last commit."""

    def encode(self) -> bytes:
        """Return the bytes of the plan's object."""
        record = {
            "version": self.version,
            "newest": self.newest,
            "token": self.token,
            "since": self.since_ms,
            "last": self.last,
        }
        return to_json(record).encode()

    @classmethod
    def decode(cls, data: bytes) -> RestorePlan:
        """Read the bytes that :meth:`encode` returned."""
        record = json.loads(data)
        return cls(
            record["version"], record["newest"], record["token"], record["since"], record["last"]
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
    plan = _read_plan(reader)
    if plan is not None:
        _finish(reader, runtime, plan)
    intact = newest_intact_version(reader, fits)
    is_newest = intact.snapshot.version == intact.newest
    known = _report(reader, intact.newest) if is_newest else None
    if known is not None and is_done(intact.snapshot):
        return known
    return _finish(reader, runtime, _write_plan(reader, runtime, intact, complete, known))


def has_plan(store: Store, path: str) -> bool:
    """Return whether a killed restore has planned what the next commits of a table are."""
    return store.exists(_plan_key(LogReader(store, path)))


def restored_version(reader: LogReader, version: int) -> int | None:
    """Return the version that a restore went back to, if its last commit is ``version``."""
    commit = commit_if_readable(reader, version, light=True)
    is_last = commit is not None and "report" in commit.info["operationParameters"]
    return commit.restored_to if commit is not None and is_last else None


def _finish(reader: LogReader, runtime: Runtime, plan: RestorePlan) -> RestoredTable:
    """Carry out a plan as far as no run has done that yet, and forget it; return its report."""
    last = plan.newest + 1
    report = _report(reader, last)
    if report is None or not reader.has(0) or _token(reader, last) != plan.token:
        _apply(reader, runtime, plan)
        report = _report(reader, last)
    assert report is not None
    reader.store.delete([_first_commit_key(reader), _plan_key(reader)])
    return report


def _first_commit_key(reader: LogReader) -> str:
    """Return the key to which version 0 of the log is moved."""
    return f"{reader.path}/_pravega/first.json"


def _plan_key(reader: LogReader) -> str:
    return f"{reader.path}/_pravega/restore.json"


def _read_plan(reader: LogReader) -> RestorePlan | None:
    try:
        return RestorePlan.decode(reader.store.get(_plan_key(reader)))
    except FileNotFoundError:
        return None


def _write_plan(
    reader: LogReader,
    runtime: Runtime,
    intact: IntactVersion,
    complete: LastCommit,
    known: RestoredTable | None,
) -> RestorePlan:
    """Write the plan of a restore, and return it, or the plan that another run wrote before.

    ``known`` is the report of the restore that ended in the intact version.
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
    last_commit = body.encode(token, now_ms).decode()
    plan = RestorePlan(version, intact.newest, token, since_ms, last_commit)
    create_object(reader.store, runtime, _plan_key(reader), plan.encode())
    written = _read_plan(reader)
    assert written is not None
    failpoint("restore.planned")
    return written


def _apply(reader: LogReader, runtime: Runtime, plan: RestorePlan) -> None:
    """Replace the dropped commits, add the last one, and bring version 0 back."""
    store = reader.store
    if reader.has(0):
        store.put(_first_commit_key(reader), store.get(reader.key(0)))
        failpoint("restore.aside")
        store.delete([reader.hint_key, reader.key(0)])
    failpoint("restore.closed")
    store.delete(key for key in keys_after(reader, plan.version) if not is_commit_key(key))
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
    store.put(reader.key(0), store.get(_first_commit_key(reader)))
    failpoint("restore.opened")


def _token(reader: LogReader, version: int) -> str | None:
    commit = commit_if_readable(reader, version, light=True)
    return None if commit is None else commit.token


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
