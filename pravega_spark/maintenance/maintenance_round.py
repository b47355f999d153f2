"""One round of maintenance: find what is due, do it, and note when each stream is due again.

The round is the same in the job on Spark, in ``StreamManager.maintain`` and on the command line;
they differ in how they spread the tasks. It may be killed, repeated, and done twice at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import missing_marker, read_root
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.tables.due_hints import DueHints, basis_of, drop_hints
from pravega_spark.engine.tables.maintenance_table import open_maintenance
from pravega_spark.engine.tables.open_scopes import open_scope
from pravega_spark.engine.tables.scopes import log_names
from pravega_spark.engine.tables.settings_table import open_settings
from pravega_spark.engine.tracing import span
from pravega_spark.errors import Damaged, NoSuchScope, NoSuchStream
from pravega_spark.limits import MAINTAINED_ROWS
from pravega_spark.maintenance import table_folding
from pravega_spark.maintenance.maintenance_result import (
    KindResult,
    MaintenanceResult,
    kind_result,
)
from pravega_spark.maintenance.round_record import RoundRecord, Stoppable, recorded_scopes
from pravega_spark.maintenance.stream_work import WORKS, WorkOptions
from pravega_spark.maintenance.unit_work import RoundTask, stream_hints, table_hints
from pravega_spark.maintenance.work_outcome import WorkOutcome
from pravega_spark.model import MaintenanceKind
from pravega_spark.names import MAX_SCOPE_LENGTH, is_name, split_log, split_stream
from pravega_spark.reader_groups.group_repair import repair_changing_groups

Execute = Callable[[Sequence[RoundTask], WorkOptions], Iterable[WorkOutcome]]
"""Does all tasks, in any order, and yields their outcomes; ends early if the round is stopped."""


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """What a round works on; everything by default."""

    kinds: Sequence[MaintenanceKind] = tuple(WORKS)
    scopes: Sequence[str] = ()
    streams: Sequence[str] = ()
    dry_run: bool = False
    full: bool = False
    """Whether to look at every stream fully, whatever its due hint says."""
    limit_seconds: float = WorkOptions().limit_seconds
    must_exist: bool = True
    """Whether a scope or stream that is named and does not exist is an error; else it is left out,
    since it was deleted after the first round of a process that keeps running."""


@dataclass(slots=True)
class _ScopeWork:
    """The streams of one scope: all of them, and those that the round is for."""

    hints: DueHints
    wanted: Sequence[str]
    due: dict[str, Sequence[MaintenanceKind]] = field(default_factory=dict)


class MaintenanceRound:
    """One round over a root; used once."""

    def __init__(
        self,
        store: Store,
        request: RoundRequest,
        execute: Execute,
        stop: Stoppable,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Take the root, what to do, and how the tasks are spread."""
        self._store = store
        self._request = request
        self._execute = execute
        self._stop = stop
        self._runtime = runtime
        self._works: dict[str, _ScopeWork] = {}
        self._broken: dict[str, str] = {}
        """Scopes whose index cannot be read, each with its error."""

    def run(self) -> MaintenanceResult:
        """Do the round.

        Raises InvalidInput for a root without a marker, NoSuchScope and NoSuchStream for what is
        named, Damaged for settings that cannot be read, RootChanged, and errors of the storage
        that concern more than one stream.
        """
        kinds = tuple(kind.value for kind in self._request.kinds)
        with span("maintain", self._store.url, kinds=kinds):
            return self._round()

    def _round(self) -> MaintenanceResult:
        began, request, store = self._runtime.monotonic(), self._request, self._store
        if read_root(store) is None:
            raise missing_marker(store)
        given = open_settings(store, self._runtime).read()
        options = WorkOptions(given, {}, request.dry_run, request.limit_seconds)
        scopes = recorded_scopes(request.scopes, request.streams, dry_run=request.dry_run)
        self._find_streams(basis_of(given))
        with contextlib.ExitStack() as stack:
            records, claimed = list[RoundRecord](), dict[MaintenanceKind, str]()
            for kind in request.kinds:
                record = stack.enter_context(RoundRecord(store, kind, scopes, self._runtime))
                other = record.claim(self._stop)
                if other is None:
                    records.append(record)
                else:
                    claimed[kind] = other
            kinds = [record.kind for record in records]
            outcomes = self._work(kinds, options)
            result = self._result(kinds, claimed, outcomes)
            if not result.stopped:
                for record in records:
                    record.finish(result.streams, result.kinds[record.kind].failures)
        return replace(result, seconds=self._runtime.monotonic() - began)

    def _find_streams(self, basis: str) -> None:
        """List the streams of the round, and those of their scopes, whose hints are kept."""
        request, named = self._request, dict[str, set[str]]()
        for name in request.streams:
            scope, short = split_stream(name)
            named.setdefault(scope, set()).add(short)
        folders = self._store.folders("") if not (request.scopes or named) else ()
        found = [name for name in folders if is_name(name, MAX_SCOPE_LENGTH)]
        for scope in sorted({*request.scopes, *named, *found}):
            try:
                rows = log_names(open_scope(self._store, scope, self._runtime))
            except NoSuchScope:
                if request.must_exist and (scope in request.scopes or scope in named):
                    raise
                rows = set()  # a deleted one, whose tables are swept
            except Damaged as error:
                self._broken[f"scope {scope}"] = f"{type(error).__name__}: {error}"
                continue
            wanted = rows if scope in request.scopes or not named else named[scope]
            for short in sorted(wanted - rows) if request.must_exist else ():
                raise NoSuchStream(
                    f"stream {scope}/{short} does not exist under {self._store.url}; use another "
                    "name.",
                    stream=f"{scope}/{short}",
                )
            hints = stream_hints(self._store, scope, rows, basis)
            self._works[scope] = _ScopeWork(hints, sorted(wanted & rows))

    def _work(self, kinds: Sequence[MaintenanceKind], options: WorkOptions) -> list[WorkOutcome]:
        if not kinds or self._stop.is_set:
            return []
        store, request = self._store, self._request
        now_ms = open_maintenance(store, self._runtime).about_now_ms()
        if MaintenanceKind.RETENTION in kinds and not request.dry_run:
            repair_changing_groups(store, lambda name: open_stream(store, name), self._runtime)
        outcomes = list[WorkOutcome]()
        for work in self._works.values():
            work.hints.read()
            for some, names in table_folding.by_kinds(kinds, work.wanted):
                every = dict.fromkeys(names, some)
                work.due |= every if request.full else work.hints.due(some, now_ms, names)
        try:
            for outcome in self._execute(list(self._tasks(kinds)), options):
                outcomes.append(outcome)
                self._note(outcome)
        finally:
            if not request.dry_run:
                for work in self._works.values():
                    work.hints.save()
        if MaintenanceKind.SWEEPING in kinds and not (request.dry_run or request.streams):
            self._drop_old_hints()
        return outcomes

    def _tasks(self, kinds: Sequence[MaintenanceKind]) -> Iterator[RoundTask]:
        """Yield the tasks: the tables of scopes first, since one of them may take long."""
        request = self._request
        if MaintenanceKind.SWEEPING in kinds and not request.streams:
            sweeping = (MaintenanceKind.SWEEPING,)
            if not request.scopes:
                yield RoundTask("", sweeping)
            yield from (RoundTask(scope, sweeping) for scope in self._works)
        for scope, work in self._works.items():
            yield from (RoundTask(f"{scope}/{n}", tuple(due)) for n, due in work.due.items())

    def _note(self, outcome: WorkOutcome) -> None:
        """Keep when the stream is due again; a stream that failed is looked at fully again."""
        if "/" not in outcome.unit:
            return
        scope, short = split_log(outcome.unit)
        hints = self._works[scope].hints
        if outcome.failures:
            hints.drop(short)
        else:
            commit = outcome.version, outcome.written_ms
            hints.note(short, outcome.kind, *commit, outcome.due_ms, outcome.checked_ms)

    def _drop_old_hints(self) -> None:
        """Delete the hints of shards and scopes that exist no more."""
        if not self._request.scopes and not self._broken:
            kept = set[str]()
            for scope, work in self._works.items():
                kept |= table_hints(self._store, scope, (), "").keys()
                kept |= work.hints.keys() if work.wanted else set()
            drop_hints(self._store, kept)

    def _result(
        self,
        kinds: Sequence[MaintenanceKind],
        claimed: Mapping[MaintenanceKind, str],
        outcomes: Sequence[WorkOutcome],
    ) -> MaintenanceResult:
        found = {
            kind: kind_result(kind, (o for o in outcomes if o.kind is kind), self._broken)
            for kind in kinds
        }
        streams = sum(len(work.wanted) for work in self._works.values())
        left = {kind: KindResult(kind, claimed_by=by, left=streams) for kind, by in claimed.items()}
        found |= left
        looked_at = sum(len(work.due) for work in self._works.values())
        dry_run = self._request.dry_run
        changes = [o for o in outcomes if o.did or o.failures or (dry_run and o.left)]
        changes.sort(key=lambda o: (not (o.did or o.failures), o.unit, o.kind.value))
        return MaintenanceResult(
            streams,
            streams - looked_at if kinds else 0,
            found,
            tuple(changes[:MAINTAINED_ROWS]),
            dry_run=dry_run,
            stopped=self._stop.is_set,
        )
