"""The work of one unit of a round: a stream, the tables of a scope, or the tables of the root."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from pravega_spark.engine.log.clock_record import read_now
from pravega_spark.engine.log.sweep_preview import preview_sweep
from pravega_spark.engine.log.table_sweep import SweepResult, next_due_ms
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.time_limit import run_within
from pravega_spark.engine.tables.due_hints import DueHints, basis_of
from pravega_spark.engine.tables.maintenance_table import open_maintenance
from pravega_spark.engine.tables.open_scopes import open_scope
from pravega_spark.engine.tables.settings_table import open_settings
from pravega_spark.errors import RootChanged
from pravega_spark.maintenance.scope_sweep import scope_sweeps, sweep_root, table_path
from pravega_spark.maintenance.stream_work import (
    WorkOptions,
    failed,
    maintain_stream,
)
from pravega_spark.maintenance.sweep_outcome import swept_work
from pravega_spark.maintenance.work_outcome import WorkOutcome, unit_text
from pravega_spark.model import MaintenanceKind
from pravega_spark.root_settings import SettingSources

SWEEPING = MaintenanceKind.SWEEPING


class RoundTask(NamedTuple):
    """A unit and the kinds that are due: a stream, a scope for its own tables, "" for the root."""

    unit: str
    kinds: tuple[MaintenanceKind, ...]


def do_task(
    store: Store, task: RoundTask, options: WorkOptions, runtime: Runtime = SYSTEM
) -> list[WorkOutcome]:
    """Do the work of a task; failures are outcomes. Raises RootChanged."""
    if "/" in task.unit:
        return maintain_stream(store, task.unit, task.kinds, options, runtime)
    what = f"{SWEEPING.value} of {unit_text(task.unit)}"
    work = _preview_tables if options.dry_run else _sweep_tables
    sweep = partial(work, store, task.unit, options, runtime)
    try:
        return [run_within(options.limit_seconds, sweep, what, store.url)]
    except RootChanged:
        raise
    except Exception as error:
        return [failed(task.unit, SWEEPING, unit_text(task.unit), error)]


def _sweep_tables(store: Store, scope: str, options: WorkOptions, runtime: Runtime) -> WorkOutcome:
    settings = SettingSources(options.root).of_root()
    now = read_now(store, runtime)
    if not scope:
        swept = sweep_root(store, open_settings(store, runtime), settings, now)
        return _outcome(scope, [swept], {}, now.earliest_ms)
    index = open_scope(store, scope, runtime)
    sweeps = scope_sweeps(store, index, settings, now, runtime, deleted=True)
    hints = table_hints(store, scope, sweeps, basis_of(options.root))
    found, failures = list[SweepResult](), dict[str, str]()
    now_ms = open_maintenance(store, runtime).about_now_ms()
    for name in hints.due((SWEEPING,), now_ms):
        try:
            log = sweeps[name].log
            snapshot = log.refresh()
            written_ms = -1 if snapshot is None else log.reader.written_ms(snapshot.version)
            swept = sweeps[name].run()
        except RootChanged:
            raise
        except Exception as error:
            hints.drop(name)
            table = f"table {table_path(scope, name)}"
            failures |= failed(scope, SWEEPING, table, error).failures
            continue
        found.append(swept)
        if snapshot is not None:
            idle_ms = max(0, now_ms - snapshot.timestamp_ms)
            due_ms = now_ms + (0 if swept.files or swept.commits else idle_ms)
            due_ms = next_due_ms(swept, due_ms)
            hints.note(name, SWEEPING, snapshot.version, written_ms, due_ms, now_ms)
    hints.save()
    return _outcome(scope, found, failures, now.earliest_ms)


def _preview_tables(
    store: Store, scope: str, options: WorkOptions, runtime: Runtime
) -> WorkOutcome:
    """Return what sweeps of the tables would do, as far as their logs show it; writes nothing."""
    settings = SettingSources(options.root).of_root()
    now = read_now(store, runtime, keep=False)
    logs = [open_settings(store, runtime).table.log]
    if scope:
        index = open_scope(store, scope, runtime)
        sweeps = scope_sweeps(store, index, settings, now, runtime, deleted=True)
        logs = [sweep.log for sweep in sweeps.values() if sweep.is_foreseen]
    ages = {"grace_ms": settings.grace_ms, "retain_ms": settings.retain_ms}
    found = [preview_sweep(log, **ages, now=now) for log in logs]
    return _outcome(scope, found, {}, now.earliest_ms, dry_run=True)


def _outcome(
    scope: str,
    found: Iterable[SweepResult],
    failures: Mapping[str, str],
    now_ms: int,
    *,
    dry_run: bool = False,
) -> WorkOutcome:
    did, left, figures = swept_work(found, now_ms, dry_run=dry_run)
    return WorkOutcome(scope, SWEEPING, did, left, figures, failures)


def stream_hints(store: Store, scope: str, names: Collection[str], basis: str) -> DueHints:
    """Return the due hints of a scope's streams, by their names in the scope."""
    path_of = partial(table_path, scope)
    return DueHints(store, f"{scope}/streams", names, path_of, basis)


def table_hints(store: Store, scope: str, names: Collection[str], basis: str) -> DueHints:
    """Return the due hints of a scope's own tables."""
    path_of = partial(table_path, scope)
    return DueHints(store, f"{scope}/tables", names, path_of, basis, shards=1)
