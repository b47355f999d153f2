"""A table's copy is opened although it may not be whole: what is missing is dropped, and said.

Dropped commits are not deleted but replaced, by commits that say so and change nothing, and a last
one follows them: so the log never goes back, and a process that knows a dropped version finds out.
Meanwhile the log's version 0 lies aside, without which nobody opens a log. What is to be done is
written down first, so a restore that is killed is finished by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pravega_spark.backup.intact_version import IntactVersion, newest_intact_version, readable
from pravega_spark.backup.table_at_version import beyond, is_commit
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import RESTORE, Body, to_json
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.limits import COPY_PAGE_FILES


@dataclass(frozen=True, slots=True)
class RestoredTable:
    """What a restore kept of a table, and what it dropped."""

    path: str
    version: int
    """The newest version that was whole: what the table holds now."""
    dropped_versions: int
    dropped_events: int
    """As far as the commits of these versions can be read."""
    unreadable_versions: int
    """Those of the dropped ones that cannot."""
    transactions: tuple[str, ...] = ()
    """Those that were open, and are aborted."""
    life: int | None = None
    """The life in which a stream goes on."""


Change = Callable[[IntactVersion, Body, int, int], "tuple[list[str], int | None]"]
"""Given what is whole, the last commit of the restore, its version and time: what to change with
it. Returns the transactions that it aborts, and a stream's new life."""


def restore_table(
    store: Store,
    path: str,
    runtime: Runtime,
    change: Change = lambda whole, body, version, now_ms: ([], None),
) -> RestoredTable:
    """Go back to the newest version that is whole; safe to kill and to repeat, one at a time.

    A table that was just restored is left alone. Raises CorruptLog if no version is whole.
    """
    reader = LogReader(store, path)
    plan = _plan_of(reader)
    if plan is None:
        found = newest_intact_version(reader)
        known = _report(reader, found.newest)
        if known is not None and found.snapshot.version == found.newest:
            return known
        plan = _written(reader, runtime, found, change)
    last = plan["newest"] + 1
    report = _report(reader, last)
    if report is None or not reader.has(0) or _token(reader, last) != plan["token"]:
        _carry_out(reader, runtime, plan)
        report = _report(reader, last)
    assert report is not None
    store.delete([_aside_key(reader), _plan_key(reader)])
    return report


def _aside_key(reader: LogReader) -> str:
    return f"{reader.path}/_pravega/first.json"


def _plan_key(reader: LogReader) -> str:
    return f"{reader.path}/_pravega/restore.json"


def _plan_of(reader: LogReader) -> dict[str, Any] | None:
    try:
        return dict(json.loads(reader.store.get(_plan_key(reader))))
    except FileNotFoundError:
        return None


def _written(
    reader: LogReader, runtime: Runtime, found: IntactVersion, change: Change
) -> dict[str, Any]:
    """Write down what the restore is to do; another's plan that is there already counts."""
    version, last = found.snapshot.version, found.newest + 1
    since_ms = max(runtime.now_ms(), found.snapshot.timestamp_ms + 1)
    now_ms = since_ms + last - version
    body = Body(RESTORE)
    ended, life = change(found, body, last, now_ms)
    report = RestoredTable(
        reader.path,
        version,
        found.newest - version,
        found.events,
        found.unreadable,
        tuple(ended),
        life,
    )
    body.parameters = {"to": version, "report": asdict(report)}
    token = runtime.token()
    plan = {
        "version": version,
        "newest": found.newest,
        "token": token,
        "since": since_ms,
        "last": body.encode(token, now_ms).decode(),
    }
    reader.store.put_if_absent(_plan_key(reader), to_json(plan).encode())
    written = _plan_of(reader)
    assert written is not None
    failpoint("restore.planned")
    return written


def _carry_out(reader: LogReader, runtime: Runtime, plan: dict[str, Any]) -> None:
    store, version, newest = reader.store, plan["version"], plan["newest"]
    if reader.has(0):
        store.put(_aside_key(reader), store.get(reader.key(0)))
        failpoint("restore.aside")
        store.delete([reader.hint_key, reader.key(0)])
    failpoint("restore.closed")
    store.delete(key for key in beyond(reader, version) if not is_commit(key))
    failpoint("restore.cleared")

    def replace(at: int) -> None:
        body = Body(RESTORE, {"to": version, "dropped": at})
        token, time_ms = f"{plan['token']}.{at}", plan["since"] + at - version
        store.put(reader.key(at), body.encode(token, time_ms))

    for first in range(version + 1, newest + 1, COPY_PAGE_FILES):
        runtime.each(replace, range(first, min(first + COPY_PAGE_FILES, newest + 1)))
    failpoint("restore.replaced")
    store.put(reader.key(newest + 1), plan["last"].encode())
    failpoint("restore.last")
    store.put(reader.key(0), store.get(_aside_key(reader)))
    failpoint("restore.opened")


def _token(reader: LogReader, version: int) -> str | None:
    found = readable(reader, version, light=True)
    return None if found is None else found.token


def _report(reader: LogReader, version: int) -> RestoredTable | None:
    """Return what the last commit of a restore says, if a version is one."""
    commit = readable(reader, version, light=True)
    if commit is None or commit.operation != RESTORE:
        return None
    report = commit.info["operationParameters"].get("report")
    if report is None:
        return None
    told = json.loads(report)
    return RestoredTable(**{**told, "transactions": tuple(told["transactions"])})
