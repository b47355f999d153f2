"""What each kind of maintenance does with one stream, one table or one scope.

When a kind of work is due again for a stream whose log gets no newer version. A time may be too
early, which costs a look, and should not be too late. Work that depends on ages that nobody
computed is looked at again once the stream has been idle for twice as long.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from pravega_spark.compaction.plan import CompactionOptions
from pravega_spark.compaction.result import CompactionResult
from pravega_spark.compaction.run import run_compaction
from pravega_spark.config.descriptions import MaintenanceKind, TransactionStatus
from pravega_spark.config.policies import LimitUnit, RetentionType, ScalingPace, ScalingType
from pravega_spark.config.root_settings import EffectiveSettings, GivenSettings, SettingSources
from pravega_spark.engine.kinds import KINDS, TABLE, kind_at
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.clock import ClockReading, read_clock
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.sweep import (
    SweepResult,
    add_results,
    next_due_ms,
    preview_sweep,
    sweep_table,
)
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.runtime.tracing import span
from pravega_spark.engine.state.due_hints import DueHints, basis_of
from pravega_spark.engine.state.maintenance_table import open_maintenance
from pravega_spark.engine.state.scopes import Scope, open_scope
from pravega_spark.engine.state.settings_table import SettingsTable, open_settings
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import stream_sweep
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import (
    StreamLog,
    events_path,
    known_version,
    open_stream,
)
from pravega_spark.engine.stream.time_limit import run_within, still_running
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import marks_of
from pravega_spark.errors import (
    CorruptLog,
    NoSuchScope,
    NoSuchStream,
    RootChanged,
    StoreReadOnly,
    StoreRefused,
)
from pravega_spark.event_time.update import update_watermark
from pravega_spark.key_value.fold import NEVER, ensure_subscribed, fold, fold_due
from pravega_spark.key_value.folded_table import end_folded_life, folded_log, folded_table
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.maintenance.result import WorkOutcome, swept_work, unit_text
from pravega_spark.reader_groups.repair import release_absent_groups, release_read
from pravega_spark.reader_groups.settlement import GroupPositions
from pravega_spark.reader_groups.table import check_has_log
from pravega_spark.retention.explanation import DataAmount, RetentionExplanation
from pravega_spark.retention.run import RetentionOptions, dry_run_retention, run_retention
from pravega_spark.scaling.auto import PACE, explain_scaling, run_scaling
from pravega_spark.scaling.decision import Action
from pravega_spark.txn import leases, lifecycle
from pravega_spark.txn.decision_log import open_decisions
from pravega_spark.txn.joint_sweep import sweep_joint_transactions
from pravega_spark.txn.sweeper import sweep_transactions
from pravega_spark.values.limits import STATE_FILE_COMMITS, STREAM_TIMEOUT
from pravega_spark.values.names import GROUPS_FOLDER, TABLES_FOLDER, is_name, table_log
from pravega_spark.values.units import count_text, parse_duration_ms, size_text

ALWAYS: Final = 0
"""Due in every round."""
SELDOM: Final = 1 << 62
"""Due when the log has a newer version; a hint ends earlier in any case."""


def after_idle_time(view: StreamView, now_ms: int) -> int:
    """Return the time at which the stream will have been idle for twice as long as now."""
    return now_ms + max(0, now_ms - view.timestamp_ms)


def transactions_due(view: StreamView) -> int:
    """Return ALWAYS while a transaction is open: leases and decisions are not commits."""
    return ALWAYS if view.transactions else SELDOM


def scaling_due(view: StreamView) -> int:
    """Return ALWAYS while segments may turn cold and merge."""
    policy = view.record.configuration.scaling
    is_fixed = policy.type is ScalingType.FIXED or view.record.state is not StreamState.ACTIVE
    return SELDOM if is_fixed or len(view.active.segments) <= policy.minimum else ALWAYS


def retention_due(
    view: StreamView, explained: RetentionExplanation, settings: EffectiveSettings, now_ms: int
) -> int:
    """Return when the oldest event reaches a limit, a sample is due, or a subscriber expires.

    Events that are older than the limit and stay are held, or their commits are no longer told
    apart: when the next one may go is not known, so idle time decides. Subscribers that publish
    make a version, and so do events.
    """
    policy, stays = explained.policy, explained.stays
    if policy is None or view.record.state is StreamState.SEALING or not stays.events:
        return SELDOM
    times = [SELDOM]
    if policy.unit is LimitUnit.TIME_MS:
        age_ms = int(1_000 * stays.seconds)
        limits = [policy.minimum]
        if policy.type is RetentionType.CONSUMPTION and policy.maximum is not None:
            limits.append(policy.maximum)  # a policy by time alone ignores it
        times += [
            now_ms + limit - age_ms if limit >= age_ms else after_idle_time(view, now_ms)
            for limit in limits
        ]
    newest = view.samples[-1] if view.samples else None
    if newest is None or newest.tail.positions != view.tail.positions:
        since_ms = now_ms if newest is None else newest.time_ms
        times.append(since_ms + settings.sample_every_ms)
    if settings.expire_ms is not None:
        for record in view.subscribers:
            seen_ms = max(record.since_ms, record.published_ms or 0)
            ends_ms = seen_ms + settings.expire_ms
            times.append(ends_ms if ends_ms > now_ms else after_idle_time(view, now_ms))
    return min(times)


Kinds = Sequence[MaintenanceKind]


class FoldingDone(NamedTuple):
    """What folding did at a stream, and when it is due again; None: with the next change."""

    did: str
    figures: Mapping[str, int]
    due_ms: int | None


def is_table(view: StreamView) -> bool:
    """Return whether a stream is the change log of a key-value table."""
    return view.kind is KINDS[TABLE]


def kinds_of(name: str, kinds: Kinds) -> Kinds:
    """Return the kinds of work that a stream may need, by its path in the scope."""
    if kind_at(name) is KINDS[TABLE]:
        return kinds
    return tuple(kind for kind in kinds if kind is not MaintenanceKind.FOLDING)


def by_kinds(kinds: Kinds, names: Collection[str]) -> Iterator[tuple[Kinds, list[str]]]:
    """Yield the kinds of work that streams of one kind need, each with their names."""
    for log_kind in KINDS.values():
        some = [name for name in names if kind_at(name) is log_kind]
        if some and (wanted := kinds_of(some[0], kinds)):
            yield wanted, some


def fold_if_due(stream: StreamLog, view: StreamView, *, dry_run: bool = False) -> FoldingDone:
    """Fold the table of a change log if that is due. Raises what a fold raises."""
    nothing = {"folds": 0, "keys": 0, "bytes_written": 0}
    if not is_table(view):
        return FoldingDone("", nothing, None)
    configuration = table_configuration(view)
    table, ttl_ms = folded_table(stream, configuration), configuration.ttl_ms
    due = fold_due(view, table.record(), ttl_ms, stream.now_ms())
    if not due.is_due:
        return FoldingDone("", nothing, None if due.at_ms == NEVER else due.at_ms)
    if dry_run:
        changes = count_text(due.changes, "change")
        return FoldingDone(f"folds {changes}, {size_text(due.changed_bytes)}", nothing, 0)
    done = fold(stream, table, ttl_ms=ttl_ms, life=view.life)
    merged = done.merge
    if merged is None or not merged.is_committed:
        return FoldingDone("", nothing, 0)
    figures = {"folds": 1, "keys": merged.changes, "bytes_written": merged.bytes_written}
    did = f"folded {count_text(done.events, 'change')} of {merged.changes:,} keys, wrote "
    return FoldingDone(did + size_text(merged.bytes_written), figures, 0)


def keep_unfolded(stream: StreamLog, view: StreamView) -> None:
    """Make sure that retention waits for the fold of a table, before it decides."""
    if is_table(view) and view.record.state in (StreamState.ACTIVE, StreamState.SEALED):
        ensure_subscribed(stream, view)


def sweep_folded(
    stream: StreamLog, view: StreamView, grace_ms: int, retain_ms: int
) -> list[SweepResult]:
    """Sweep the folded table of a change log; nothing for another stream."""
    if not is_table(view):
        return []
    log = folded_table(stream, table_configuration(view)).log
    return [sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms)]


def preview_folded(
    stream: StreamLog, view: StreamView, grace_ms: int, retain_ms: int
) -> list[SweepResult]:
    """Return what :func:`sweep_folded` would do; writes nothing."""
    if not is_table(view):
        return []
    log, now = folded_log(stream), read_clock(stream.store, stream.runtime, keep=False)
    if log.refresh() is None:
        return []
    return [preview_sweep(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)]


def sweep_deleted_folded(
    stream: StreamLog, grace_ms: int, retain_ms: int, now: ClockReading
) -> SweepResult:
    """Remove the rows that the deletion of a table left, if it was killed, and sweep them."""
    log = folded_log(stream)
    snapshot = stream.log.snapshot
    if snapshot is not None and StreamView(snapshot).record.state is StreamState.DELETED:
        end_folded_life(log, StreamView(snapshot).life)
    return sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)


logger = own_logger(__name__)


class ScalingHow(NamedTuple):
    """How a round scales, where no setting of the root or of a stream says it."""

    pace: ScalingPace = PACE
    use_keys: bool = False
    """Whether to split between the newest keys of a segment; see :func:`explain_scaling`."""


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How a round works; picklable."""

    root: GivenSettings = field(default_factory=dict)
    """The settings of the root, read once for the round."""
    flags: GivenSettings = field(default_factory=dict)
    """Settings that the round decides itself, before streams and root."""
    dry_run: bool = False
    limit_seconds: float = parse_duration_ms("a limit", STREAM_TIMEOUT) / 1_000
    scaling: ScalingHow = field(default_factory=ScalingHow)
    by_setting: bool = False
    """Whether only the root's setting asks for the work, so that others do what is refused."""

    @property
    def basis(self) -> str:
        """What due hints depend on: a round with other settings looks again."""
        flags = {n: value for n, value in self.flags.items() if not n.endswith("_interval")}
        return basis_of({**self.root, **flags})

    def of_root(self) -> EffectiveSettings:
        """Return the settings that hold where no stream overrides them."""
        return SettingSources(self.root, self.flags).of_root()

    def settings(self, view: StreamView) -> EffectiveSettings:
        """Return the settings that hold for a stream."""
        return SettingSources(self.root, self.flags).of_stream(view.record.configuration.settings)


class WorkDone(NamedTuple):
    """What a kind of work did with a stream, for people and as figures, and when it is due."""

    did: str
    figures: Mapping[str, int]
    due_ms: int
    failures: Mapping[str, str] = MappingProxyType({})
    """What could not be done, although the rest was."""
    left: str = ""
    """What could not be done yet, and why, for people."""


Work = Callable[[StreamLog, StreamView, WorkOptions], WorkDone]


def maintain_stream(
    store: Store,
    name: str,
    kinds: Iterable[MaintenanceKind],
    options: WorkOptions,
    runtime: Runtime = SYSTEM,
) -> list[WorkOutcome]:
    """Do the work of some kinds on a stream, in the order of WORKS; a failure stops no other kind.

    While earlier work at the stream hangs, none is begun: the rest fails, with one line of the log.
    Nothing is returned for a stream that was deleted since it was listed. Raises RootChanged.
    """
    stream, wanted = open_stream(store, name, runtime), set(kinds)
    outcomes, order = list[WorkOutcome](), [kind for kind in WORKS if kind in wanted]
    for number, kind in enumerate(order):
        hanging = still_running(stream.root_url, _unit(name))
        if hanging is not None:
            return [*outcomes, *_all_failed(name, order[number:], f"stream {name}", hanging)]
        try:
            outcomes.append(do_work(stream, kind, options))
        except NoSuchStream:
            return []
        except RootChanged:
            raise
        except Exception as error:
            if isinstance(error, CorruptLog) and stream.log.snapshot is None:  # lost to all kinds
                return [*outcomes, *_all_failed(name, order[number:], f"stream {name}", error)]
            outcomes.append(failed(name, kind, f"stream {name}", error))
    return outcomes


class Visit:
    """One look at a stream for several short kinds of work, of which only the first one asks."""

    def __init__(self, stream: StreamLog) -> None:
        """Take a stream; nothing is read yet."""
        self.stream = stream
        self._since: float | None = None
        self._dated: tuple[Snapshot, int] | None = None

    def view(self) -> tuple[StreamView, int]:
        """Return the newest view since the visit began, and when its commit was written."""
        began = self.stream.runtime.monotonic()
        view = begun_view(self.stream, self._since)
        self._since = began if self._since is None else self._since
        if self._dated is None or self._dated[0] is not view.snapshot:
            self._dated = view.snapshot, self.stream.log.reader.written_ms(view.version)
        return view, self._dated[1]


def do_work(
    stream: StreamLog,
    kind: MaintenanceKind,
    options: WorkOptions,
    work: Work | None = None,
    *,
    visit: Visit | None = None,
) -> WorkOutcome:
    """Do the work of one kind on a stream. Raises what that raises, and TooBusy at the limit.

    ``work`` is a part of it that is done instead of the whole, such as a plan. Kinds of one
    ``visit`` of the stream share a view. Of a stream that still hangs in any kind of work, it
    raises TooBusy without waiting.
    """

    def run() -> WorkOutcome:
        now_ms = stream.now_ms()
        view, written_ms = (visit or Visit(stream)).view()
        with span(kind.value, stream.name):
            done = (work or WORKS[kind])(stream, view, options)
        return WorkOutcome(
            stream.name,
            kind,
            did=done.did,
            left=done.left,
            figures=done.figures,
            failures=done.failures,
            version=view.version,
            written_ms=written_ms,
            due_ms=done.due_ms,
            checked_ms=now_ms,
        )

    what = f"{kind.value} of stream {stream.name}"
    where = stream.root_url
    return run_within(options.limit_seconds, run, what, where, unit=_unit(stream.name))


def _unit(name: str) -> str:
    """Return what hangs as a whole if one kind of work at it does."""
    return f"stream {name}"


def failed(
    unit: str, kind: MaintenanceKind, what: str, error: Exception, *, by_setting: bool = False
) -> WorkOutcome:
    """Return the outcome of work that failed, and log the error; its traceback at DEBUG."""
    (outcome,) = _all_failed(unit, [kind], what, error, by_setting=by_setting)
    return outcome


def _all_failed(
    unit: str,
    kinds: Sequence[MaintenanceKind],
    what: str,
    error: Exception,
    *,
    by_setting: bool = False,
) -> list[WorkOutcome]:
    """Return the outcomes of kinds of work that failed by one error, which is logged once."""
    reason, names = f"{type(error).__name__}: {error}", ", ".join(kind.value for kind in kinds)
    is_left = by_setting and isinstance(error, (StoreReadOnly, StoreRefused))
    logger.log(
        logging.DEBUG if is_left else logging.WARNING,  # the shares say what they leave to others
        "%s of %s failed: %s",
        names,
        what,
        " ".join(reason.split()),
        extra=log_fields("maintain", kind=names, failed=what),
    )
    logger.debug(
        "%s of %s failed",
        names,
        what,
        exc_info=error,
        extra=log_fields("maintain", kind=names, failed=what),
    )
    return [WorkOutcome(unit, kind, failures={what: reason}) for kind in kinds]


def _transactions(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    if options.dry_run:
        limit_ms = options.settings(view).prepared_limit_ms
        expired = leases.expiry_reasons(stream, view, limit_ms, write=False)
        infos = lifecycle.open_transactions(stream, view)
        decided = [info.status for info in infos if info.transaction_id not in expired]
        committed = decided.count(TransactionStatus.COMMITTING)
        aborted = len(expired) + decided.count(TransactionStatus.ABORTING)
        figures = {"committed": committed, "aborted": aborted, "cleared": 0}
        return WorkDone(_would(_did(figures, "transactions")), figures, ALWAYS)
    limit = options.settings(view).prepared_limit_ms
    swept = sweep_transactions(stream, prepared_limit_ms=limit, view=view)
    counts = len(swept.committed), len(swept.aborted), swept.cleared
    figures = dict(zip(("committed", "aborted", "cleared"), counts, strict=True))
    due_ms = transactions_due(stream.view(refresh=False))
    return WorkDone(_did(figures, "transactions"), figures, due_ms)


def _scaling(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    if view.record.configuration.scaling.type is ScalingType.FIXED:
        return WorkDone("", {"splits": 0, "merges": 0}, SELDOM)
    run = explain_scaling if options.dry_run else run_scaling
    pace, use_keys = options.scaling
    result = run(stream, pace, use_keys=use_keys, life=view.life)
    requests = list(result.decision.requests)
    if result.outcomes:
        scaled = zip(requests, result.outcomes, strict=True)
        requests = [request for request, outcome in scaled if outcome.epoch is not None]
    actions = [request.action for request in requests]
    figures = {"splits": actions.count(Action.SPLIT), "merges": actions.count(Action.MERGE)}
    due_ms = scaling_due(stream.view(refresh=False))
    did = _did(figures, "")
    return WorkDone(_would(did) if options.dry_run else did, figures, due_ms)


def _folding(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    """Fold the table whose change log this is, if that is due; other streams have none."""
    done = fold_if_due(stream, view, dry_run=options.dry_run)
    due_ms = SELDOM if done.due_ms is None else done.due_ms
    return WorkDone(_would(done.did) if options.dry_run else done.did, done.figures, due_ms)


def _retention(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    given = RetentionOptions(options.flags, root=options.root, sweep=False)
    holding, errors = 0, dict[str, str]()
    if options.dry_run:
        result = dry_run_retention(stream, given, life=view.life)
    else:
        keep_unfolded(stream, view)
        streams = partial(open_stream, stream.store, runtime=stream.runtime)
        release_absent_groups(stream, streams)
        holding, errors = release_read(stream, streams)
        result = run_retention(stream, given, life=view.life)
    explained = result.explanation
    is_moved = explained.cut is not None and (options.dry_run or result.truncated is not None)
    goes = explained.goes if is_moved else DataAmount()
    figures = {
        "truncated": int(is_moved),
        "events": goes.events,
        "bytes": goes.size_bytes,
        "expired": len(explained.idle),
    }
    truncated = "would truncate" if options.dry_run else "truncated"
    expired = "would expire" if options.dry_run else "expired"
    did = [f"{truncated} {goes} ({explained.rule.value})"] if is_moved else []
    did += [f"{expired} {', '.join(explained.idle)}"] if explained.idle else []
    did += [f"lost unread data: {passed}" for passed in explained.passed]
    newest, settings = stream.view(refresh=False), options.settings(view)
    due_ms = retention_due(newest, explained, settings, stream.now_ms())
    if holding or errors:  # their readers come, read and die without a commit of the stream
        due_ms = ALWAYS
    failures = {f"reader group {group}": reason for group, reason in errors.items()}
    return WorkDone("; ".join(did), figures, due_ms, failures)


def _watermarks(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    if not marks_of(view):
        return WorkDone("", {"recorded": 0, "dropped": 0}, SELDOM)
    timeout_ms = options.settings(view).timestamp_aggregation_timeout_ms
    update = update_watermark(stream, timeout_ms, life=view.life, dry_run=options.dry_run)
    figures = {"recorded": int(update.watermark is not None), "dropped": len(update.dropped)}
    did = [f"watermark {update.watermark.lower}"] if update.watermark is not None else []
    did += [f"{len(update.dropped):,} writers dropped"] if update.dropped else []
    text = ", ".join(did)
    due_ms = stream.now_ms() + timeout_ms if update.held_by else SELDOM
    return WorkDone(_would(text) if options.dry_run else text, figures, due_ms)


def _sweeping(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    """Sweep, and write a state file that no writer has written although it is due."""
    now_ms, settings = stream.now_ms(), options.settings(view)
    ages = settings.grace_ms, settings.retain_ms
    if options.dry_run:
        swept = stream_sweep.preview_stream_sweep(stream, *ages, life=view.life)
        folded = preview_folded(stream, view, *ages)
        work = swept_work([swept, *folded], now_ms, dry_run=True)
        return WorkDone(work.did, work.figures, ALWAYS, left=work.left)
    state = stream.log.reader.hint().newest
    if view.version - max(state, 0) > STATE_FILE_COMMITS:
        checkpoint.maintain(stream.log.reader, view.version, known=view.snapshot)
    swept = stream_sweep.sweep_stream(
        stream,
        grace_ms=ages[0],
        retain_ms=ages[1],
        completed_ms=settings.keep_completed_ms,
        records_ms=settings.records_ms(),
        life=view.life,
    )
    found = [swept, *sweep_folded(stream, view, *ages)]
    work, due_ms = swept_work(found, now_ms), ALWAYS
    if not work.did:
        due_ms = after_idle_time(view, now_ms)
        for one in found:
            due_ms = next_due_ms(one, due_ms)
    return WorkDone(work.did, work.figures, due_ms, left=work.left)


def _compaction(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    now_ms, given = stream.now_ms(), CompactionOptions(options.flags, options.root)
    result = run_compaction(stream, given, dry_run=options.dry_run, life=view.life)
    return compaction_done(result, view, now_ms)


def compaction_done(result: CompactionResult, view: StreamView, now_ms: int) -> WorkDone:
    """Return what a compaction did; a stream that was left as it is waits twice as long."""
    figures = {
        "files_before": result.files_before,
        "files_after": result.files_after,
        "bytes_read": result.bytes_read,
        "bytes_written": result.bytes_written,
    }
    did = str(result).partition(": ")[2] if result.ranges else ""
    due_ms = ALWAYS if result.ranges else after_idle_time(view, now_ms)
    failures = {f"{found.range}": found.reason for found in result.damaged}
    return WorkDone(did, figures, due_ms, failures)


def _did(figures: Mapping[str, int], what: str) -> str:
    parts = (f"{count:,} {f'{what} ' if what else ''}{n}" for n, count in figures.items() if count)
    return ", ".join(parts)


def _would(did: str) -> str:
    """Return what a dry run found to be done."""
    return f"would be done: {did}" if did else ""


WORKS: Final[Mapping[MaintenanceKind, Work]] = {
    MaintenanceKind.TRANSACTIONS: _transactions,
    MaintenanceKind.WATERMARKS: _watermarks,
    MaintenanceKind.SCALING: _scaling,
    MaintenanceKind.FOLDING: _folding,
    MaintenanceKind.RETENTION: _retention,
    MaintenanceKind.COMPACTION: _compaction,
    MaintenanceKind.SWEEPING: _sweeping,
}
"""The kinds in the order in which a round does them: what was folded is truncated, and swept."""


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
    now: ClockReading,
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


def _sweep_deleted_table(
    stream: StreamLog, grace_ms: int, retain_ms: int, now: ClockReading
) -> SweepResult:
    """Sweep the log of a deleted table, and the folded table, of which no row is left."""
    swept = _sweep_deleted(stream, grace_ms, retain_ms, now)
    return add_results(swept, sweep_deleted_folded(stream, grace_ms, retain_ms, now))


def _sweep_group(
    log: Log, group: str, grace_ms: int, retain_ms: int, now: ClockReading
) -> SweepResult:
    """Sweep a group's log; raise CorruptLog if it is lost, and not the group's other objects."""
    swept = _sweep_log(log, grace_ms, retain_ms, now)
    if log.snapshot is None and is_name(group.rpartition("/")[2]):
        check_has_log(log, group)
    return swept


def _sweep_log(log: Log, grace_ms: int, retain_ms: int, now: ClockReading) -> SweepResult:
    return sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)


def _sweep_deleted(
    stream: StreamLog, grace_ms: int, retain_ms: int, now: ClockReading
) -> SweepResult:
    return stream_sweep.sweep_deleted_stream(
        stream, grace_ms=grace_ms, retain_ms=retain_ms, now=now
    )


def sweep_root(
    store: Store, table: SettingsTable, settings: EffectiveSettings, now: ClockReading
) -> SweepResult:
    """Sweep the root's settings and joint transactions, and delete its unfinished files."""
    store.discard_unfinished("", settings.grace_ms, deep=False)
    ages, runtime = (settings.grace_ms, settings.retain_ms), table.table.log.runtime
    decisions = open_decisions(store, runtime)
    streams = partial(open_stream, store, runtime=runtime)
    sweep_joint_transactions(decisions, streams, now, GroupPositions(store, runtime))
    result = _sweep_log(table.table.log, *ages, now)
    return add_results(result, _sweep_log(decisions.log, *ages, now))


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
        return [
            failed(task.unit, SWEEPING, unit_text(task.unit), error, by_setting=options.by_setting)
        ]


def _sweep_tables(store: Store, scope: str, options: WorkOptions, runtime: Runtime) -> WorkOutcome:
    settings = options.of_root()
    now = read_clock(store, runtime)
    if not scope:
        swept = sweep_root(store, open_settings(store, runtime), settings, now)
        return _outcome(scope, [swept], {}, now.earliest_ms)
    index = open_scope(store, scope, runtime)
    sweeps = scope_sweeps(store, index, settings, now, runtime, deleted=True)
    hints = table_hints(store, scope, sweeps, options.basis)
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
            failures |= failed(
                scope, SWEEPING, table, error, by_setting=options.by_setting
            ).failures
            continue
        found.append(swept)
        if snapshot is not None:
            idle_ms = max(0, now_ms - snapshot.timestamp_ms)
            due_ms = now_ms + (0 if swept.files or swept.commits else idle_ms)
            due_ms = next_due_ms(swept, due_ms)
            hints.note(
                name,
                SWEEPING,
                version=snapshot.version,
                written_ms=written_ms,
                due_ms=due_ms,
                now_ms=now_ms,
            )
    hints.save()
    return _outcome(scope, found, failures, now.earliest_ms)


def _preview_tables(
    store: Store, scope: str, options: WorkOptions, runtime: Runtime
) -> WorkOutcome:
    """Return what sweeps of the tables would do, as far as their logs show it; writes nothing."""
    settings = options.of_root()
    now = read_clock(store, runtime, keep=False)
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
    return WorkOutcome(
        unit=scope, kind=SWEEPING, did=did, left=left, figures=figures, failures=failures
    )


def stream_hints(store: Store, scope: str, names: Collection[str], basis: str) -> DueHints:
    """Return the due hints of a scope's streams, by their names in the scope."""
    path_of = partial(table_path, scope)

    def known(name: str) -> int:
        return known_version(store, f"{scope}/{name}")

    return DueHints(store, f"{scope}/streams", names, path_of, basis, known=known)


def table_hints(store: Store, scope: str, names: Collection[str], basis: str) -> DueHints:
    """Return the due hints of a scope's own tables."""
    path_of = partial(table_path, scope)
    return DueHints(store, f"{scope}/tables", names, path_of, basis, shards=1)
