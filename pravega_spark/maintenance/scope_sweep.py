"""Sweeps the tables that belong to no stream: of scopes, of reader groups, of deleted streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pravega_spark.engine.log.clock_record import Now
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.table_sweep import SweepResult, add_results, sweep_table
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import stream_sweep
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.stream_log import StreamLog, events_path
from pravega_spark.engine.tables.scopes import GROUPS_FOLDER, TABLE, Scope
from pravega_spark.engine.tables.settings_table import SettingsTable
from pravega_spark.errors import NoSuchScope
from pravega_spark.maintenance import table_folding
from pravega_spark.names import TABLES_FOLDER, is_name, table_log
from pravega_spark.reader_groups.group_table import check_has_log
from pravega_spark.reader_groups.position_settlement import GroupPositions
from pravega_spark.root_settings import EffectiveSettings
from pravega_spark.transactions.decision_log import open_decisions
from pravega_spark.transactions.joint_sweep import sweep_joint_transactions


class TableSweep(NamedTuple):
    """A table that belongs to no stream, and its sweep."""

    log: Log
    run: Callable[[], SweepResult]
    is_foreseen: bool = True
    """Whether a preview of the log shows what the sweep would do; not for a deleted stream, whose
    files only a listing finds."""


def table_path(scope: str, name: str) -> str:
    """Return the key of a table by its name in :func:`scope_sweeps`."""
    is_log = name.startswith(f"{TABLES_FOLDER}/") and name.count("/") == 1
    is_own = name.startswith("_") and not is_log
    return f"{scope}/{name}" if is_own else events_path(f"{scope}/{name}")


def scope_sweeps(
    store: Store,
    index: Scope,
    settings: EffectiveSettings,
    now: Now,
    runtime: Runtime,
    *,
    deleted: bool = False,
) -> dict[str, TableSweep]:
    """Return the sweeps of a scope's own tables, by the name of each table in the scope.

    These are the index first, the reader groups, deleted ones included, and the remains of deleted
    streams. Raises NoSuchScope, unless a ``deleted`` scope is swept as well.
    """
    scope, ages = index.name, (settings.grace_ms, settings.retain_ms)
    rows: Mapping[str, object] = {}
    with contextlib.suppress(*((NoSuchScope,) if deleted else ())):
        rows = index.rows()
    own = index.table.log
    sweeps = {"_scope": TableSweep(own, partial(_sweep_log, own, *ages, now))}
    for group in store.folders(f"{scope}/{GROUPS_FOLDER}"):
        log = Log(store, f"{scope}/{GROUPS_FOLDER}/{group}", runtime)
        sweep = TableSweep(log, partial(_sweep_group, log, f"{scope}/{group}", *ages, now))
        sweeps[f"{GROUPS_FOLDER}/{group}"] = sweep
    for name in store.folders(scope):
        if is_name(name) and name not in rows:
            stream = open_stream(store, f"{scope}/{name}", runtime)
            sweep = TableSweep(stream.log, partial(_sweep_deleted, stream, *ages, now), False)
            sweeps[name] = sweep
    tables: Mapping[str, object] = {}
    with contextlib.suppress(*((NoSuchScope,) if deleted else ())):
        tables = index.rows(TABLE)
    for name in store.folders(f"{scope}/{TABLES_FOLDER}"):
        if is_name(name) and name not in tables:
            stream = open_stream(store, table_log(scope, name), runtime)
            sweep = TableSweep(stream.log, partial(_sweep_deleted_table, stream, *ages, now), False)
            sweeps[f"{TABLES_FOLDER}/{name}"] = sweep
    return sweeps


def _sweep_deleted_table(stream: StreamLog, grace_ms: int, retain_ms: int, now: Now) -> SweepResult:
    """Sweep the log of a deleted table, and the folded table, of which no row is left."""
    swept = _sweep_deleted(stream, grace_ms, retain_ms, now)
    return add_results(swept, table_folding.sweep_deleted_folded(stream, grace_ms, retain_ms, now))


def _sweep_group(log: Log, group: str, grace_ms: int, retain_ms: int, now: Now) -> SweepResult:
    """Sweep a group's log; raise CorruptLog if it is lost, and not the group's other objects."""
    swept = _sweep_log(log, grace_ms, retain_ms, now)
    if log.snapshot is None and is_name(group.rpartition("/")[2]):
        check_has_log(log, group)
    return swept


def _sweep_log(log: Log, grace_ms: int, retain_ms: int, now: Now) -> SweepResult:
    return sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)


def _sweep_deleted(stream: StreamLog, grace_ms: int, retain_ms: int, now: Now) -> SweepResult:
    return stream_sweep.sweep_deleted_stream(
        stream, grace_ms=grace_ms, retain_ms=retain_ms, now=now
    )


def sweep_root(
    store: Store, table: SettingsTable, settings: EffectiveSettings, now: Now
) -> SweepResult:
    """Sweep the root's settings and joint transactions, and delete its unfinished files."""
    store.discard_unfinished("", settings.grace_ms, deep=False)
    ages, runtime = (settings.grace_ms, settings.retain_ms), table.table.log.runtime
    decisions = open_decisions(store, runtime)
    streams = partial(open_stream, store, runtime=runtime)
    sweep_joint_transactions(decisions, streams, now, GroupPositions(store, runtime))
    result = _sweep_log(table.table.log, *ages, now)
    return add_results(result, _sweep_log(decisions.log, *ages, now))
