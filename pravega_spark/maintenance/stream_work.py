"""What each kind of maintenance does with one stream: the work of every job, share and call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from pravega_spark.compaction.compaction_options import CompactionOptions
from pravega_spark.compaction.compaction_result import CompactionResult
from pravega_spark.compaction.compaction_run import run_compaction
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.table_sweep import next_due_ms
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import stream_sweep
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_limit import run_within, still_running
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tracing import span
from pravega_spark.errors import CorruptLog, NoSuchStream, RootChanged
from pravega_spark.event_time.watermark_update import update_watermark
from pravega_spark.limits import STATE_FILE_COMMITS, STREAM_TIMEOUT
from pravega_spark.maintenance import due_times, table_folding
from pravega_spark.maintenance.sweep_outcome import swept_work
from pravega_spark.maintenance.work_outcome import WorkOutcome
from pravega_spark.model import MaintenanceKind, TransactionStatus
from pravega_spark.reader_groups.group_repair import release_absent_groups
from pravega_spark.retention.explanation import DataAmount
from pravega_spark.retention.retention_options import RetentionOptions
from pravega_spark.retention.retention_run import dry_run_retention, run_retention
from pravega_spark.root_settings import EffectiveSettings, GivenSettings, SettingSources
from pravega_spark.scaling.auto_scaling import explain_scaling, run_scaling
from pravega_spark.scaling.scale_decision import Action
from pravega_spark.transactions import transaction_leases, transaction_listing
from pravega_spark.transactions.sweeper import sweep_transactions
from pravega_spark.units import parse_duration_ms

logger = own_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How a round works; picklable."""

    root: GivenSettings = field(default_factory=dict)
    """The settings of the root, read once for the round."""
    flags: GivenSettings = field(default_factory=dict)
    """Settings that the round decides itself, before streams and root."""
    dry_run: bool = False
    limit_seconds: float = parse_duration_ms("a limit", STREAM_TIMEOUT) / 1_000

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


def do_work(
    stream: StreamLog, kind: MaintenanceKind, options: WorkOptions, work: Work | None = None
) -> WorkOutcome:
    """Do the work of one kind on a stream. Raises what that raises, and TooBusy at the limit.

    ``work`` is a part of it that is done in place of the whole, such as a plan.
    Of a stream that still hangs in any kind of work, it raises TooBusy without waiting.
    """

    def run() -> WorkOutcome:
        now_ms = stream.now_ms()
        view = begun_view(stream)
        written_ms = stream.log.reader.written_ms(view.version)
        with span(kind.value, stream.name):
            done = (work or WORKS[kind])(stream, view, options)
        times = view.version, written_ms, done.due_ms, now_ms
        texts = done.did, done.left
        return WorkOutcome(stream.name, kind, *texts, done.figures, done.failures, *times)

    what = f"{kind.value} of stream {stream.name}"
    where = stream.root_url
    return run_within(options.limit_seconds, run, what, where, unit=_unit(stream.name))


def _unit(name: str) -> str:
    """Return what hangs as a whole if one kind of work at it does."""
    return f"stream {name}"


def failed(unit: str, kind: MaintenanceKind, what: str, error: Exception) -> WorkOutcome:
    """Return the outcome of work that failed, and log the error; its traceback at DEBUG."""
    (outcome,) = _all_failed(unit, [kind], what, error)
    return outcome


def _all_failed(
    unit: str, kinds: Sequence[MaintenanceKind], what: str, error: Exception
) -> list[WorkOutcome]:
    """Return the outcomes of kinds of work that failed by one error, which is logged once."""
    reason, names = f"{type(error).__name__}: {error}", ", ".join(kind.value for kind in kinds)
    logger.warning(
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
        expired = transaction_leases.expiry_reasons(stream, view, limit_ms, write=False)
        infos = transaction_listing.open_transactions(stream, view)
        decided = [info.status for info in infos if info.transaction_id not in expired]
        committed = decided.count(TransactionStatus.COMMITTING)
        aborted = len(expired) + decided.count(TransactionStatus.ABORTING)
        figures = {"committed": committed, "aborted": aborted, "cleared": 0}
        return WorkDone(_would(_did(figures, "transactions")), figures, due_times.ALWAYS)
    limit = options.settings(view).prepared_limit_ms
    swept = sweep_transactions(stream, prepared_limit_ms=limit, life=view.life)
    counts = len(swept.committed), len(swept.aborted), swept.cleared
    figures = dict(zip(("committed", "aborted", "cleared"), counts, strict=True))
    due_ms = due_times.transactions_due(stream.view(refresh=False))
    return WorkDone(_did(figures, "transactions"), figures, due_ms)


def _scaling(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    run = explain_scaling if options.dry_run else run_scaling
    result = run(stream, life=view.life)
    requests = list(result.decision.requests)
    if result.outcomes:
        scaled = zip(requests, result.outcomes, strict=True)
        requests = [request for request, outcome in scaled if outcome.epoch is not None]
    actions = [request.action for request in requests]
    figures = {"splits": actions.count(Action.SPLIT), "merges": actions.count(Action.MERGE)}
    due_ms = due_times.scaling_due(stream.view(refresh=False))
    did = _did(figures, "")
    return WorkDone(_would(did) if options.dry_run else did, figures, due_ms)


def _folding(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    """Fold the table whose change log this is, if that is due; other streams have none."""
    done = table_folding.fold_if_due(stream, view, dry_run=options.dry_run)
    due_ms = due_times.SELDOM if done.due_ms is None else done.due_ms
    return WorkDone(_would(done.did) if options.dry_run else done.did, done.figures, due_ms)


def _retention(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    given = RetentionOptions(root=options.root, sweep=False)
    if options.dry_run:
        result = dry_run_retention(stream, given, life=view.life)
    else:
        table_folding.keep_unfolded(stream, view)
        release_absent_groups(stream, partial(open_stream, stream.store, runtime=stream.runtime))
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
    due_ms = due_times.retention_due(newest, explained, settings, stream.now_ms())
    return WorkDone("; ".join(did), figures, due_ms)


def _watermarks(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    timeout_ms = options.settings(view).timestamp_aggregation_timeout_ms
    update = update_watermark(stream, timeout_ms, life=view.life, dry_run=options.dry_run)
    figures = {"recorded": int(update.watermark is not None), "dropped": len(update.dropped)}
    did = [f"watermark {update.watermark.lower}"] if update.watermark is not None else []
    did += [f"{len(update.dropped):,} writers dropped"] if update.dropped else []
    text = ", ".join(did)
    due_ms = stream.now_ms() + timeout_ms if update.held_by else due_times.SELDOM
    return WorkDone(_would(text) if options.dry_run else text, figures, due_ms)


def _sweeping(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
    """Sweep, and write a state file that no writer has written although it is due."""
    now_ms, settings = stream.now_ms(), options.settings(view)
    ages = settings.grace_ms, settings.retain_ms
    if options.dry_run:
        swept = stream_sweep.preview_stream_sweep(stream, *ages, life=view.life)
        folded = table_folding.preview_folded(stream, view, *ages)
        work = swept_work([swept, *folded], now_ms, dry_run=True)
        return WorkDone(work.did, work.figures, due_times.ALWAYS, left=work.left)
    state = stream.log.reader.hint().newest
    if view.version - max(state, 0) > STATE_FILE_COMMITS:
        checkpointing.maintain(stream.log.reader, view.version, known=view.snapshot)
    swept = stream_sweep.sweep_stream(
        stream,
        grace_ms=ages[0],
        retain_ms=ages[1],
        completed_ms=settings.keep_completed_ms,
        records_ms=settings.records_ms(),
        life=view.life,
    )
    found = [swept, *table_folding.sweep_folded(stream, view, *ages)]
    work, due_ms = swept_work(found, now_ms), due_times.ALWAYS
    if not work.did:
        due_ms = due_times.after_idle_time(view, now_ms)
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
    due_ms = due_times.ALWAYS if result.ranges else due_times.after_idle_time(view, now_ms)
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
