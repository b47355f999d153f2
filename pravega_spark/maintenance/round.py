"""One round of maintenance over a root: find what is due, do it in threads, and record it.

The round is the same in the job on Spark, in ``StreamManager.maintain`` and on the command line;
they differ in how they spread the tasks. It may be killed, repeated, and done twice at once.

Records a round over all streams of the root, or of scopes, for people and other runs. A round over
single streams records nothing, since it says nothing about the others; nor does a dry run. If the
record cannot be read or written, the round is done without it, and a warning is logged.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Protocol

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import (
    AUTO,
    EffectiveSettings,
    GivenSettings,
)
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.runtime.tracing import span
from pravega_spark.engine.state.due_hints import DueHints, drop_hints
from pravega_spark.engine.state.maintenance_table import (
    JOB,
    ClaimedWork,
    ClaimKeeper,
    blocking_claim,
    open_maintenance,
)
from pravega_spark.engine.state.scopes import log_names, open_scope
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import missing_marker, read_root, scope_folders
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import Damaged, InvalidInput, NoSuchScope, NoSuchStream, PravegaSparkError
from pravega_spark.maintenance import work as maintenance_work
from pravega_spark.maintenance.result import KindResult, MaintenanceResult, WorkOutcome, kind_result
from pravega_spark.maintenance.work import (
    WORKS,
    RoundTask,
    ScalingHow,
    WorkOptions,
    do_task,
    stream_hints,
    table_hints,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.reader_groups.repair import repair_changing_groups
from pravega_spark.values.checks import check_flag, check_list, is_whole, shown
from pravega_spark.values.limits import (
    CLAIM_MS,
    MAINTAINED_ROWS,
    MAX_STREAM_TIMEOUT_MS,
    STREAM_TIMEOUT,
)
from pravega_spark.values.names import (
    check_scope,
    split_log,
    split_stream,
)
from pravega_spark.values.units import duration_text, parse_duration_ms

logger = own_logger(__name__)

_CHECK_SECONDS = 1.0
"""Pause between two looks whether a share of another process has ended."""


class Stoppable(Protocol):
    """What stops a round before its end."""

    @property
    def is_set(self) -> bool:
        """Whether the round is to stop."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait until the round is to stop, at most ``seconds``; return whether it is."""
        ...


def recorded_scopes(
    scopes: Iterable[str], streams: Iterable[str], *, dry_run: bool
) -> tuple[str | None, ...]:
    """Return the scopes for which a round is recorded: none, some, or (None,) for all."""
    if dry_run:
        return ()
    every: tuple[str | None, ...] = () if list(streams) else (None,)
    return tuple(sorted(set(scopes))) or every


class RoundRecord:
    """Claims a round's work while its ``with`` block runs, and records the round if it finishes."""

    def __init__(
        self,
        store: Store,
        kind: MaintenanceKind,
        scopes: tuple[str | None, ...],
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Take the scopes for which the round is recorded; without any, nothing is recorded."""
        self.kind = kind
        self._scopes = scopes
        self._store = store
        self._table = open_maintenance(store, runtime)
        self._started_ms = 0
        self._work: ClaimedWork | None = None
        self._keeper: ClaimKeeper | None = None
        self._has_finished = False

    def claim(self, stop: Stoppable) -> str | None:
        """Claim the work; wait for the share that a process with ``maintain="auto"`` is doing.

        Returns what has the claim if it is another job's: two rounds at the same time do no harm.
        """
        if not self._scopes:
            return None
        waited, other = 0.0, None
        try:
            self._started_ms = self._store.time_ms()
            while not stop.is_set:
                self._work = self._table.claim((self.kind,), self._scopes, JOB)
                if self._work is not None:
                    break
                now_ms, entries = self._table.about_now_ms(), self._table.entries()
                other = blocking_claim(entries, self.kind, self._scopes, now_ms)
                if other is not None and not other.by.startswith(f"{AUTO} "):
                    break
                if waited > CLAIM_MS / 1_000:
                    break
                stop.wait(_CHECK_SECONDS)
                waited += _CHECK_SECONDS
        except (PravegaSparkError, OSError) as error:
            self._warn("claimed", error)
        if self._work is not None:
            self._keeper = ClaimKeeper(self._table, self._work)
            self._keeper.start()
            return None
        return None if other is None else other.by

    def finish(self, streams: int, failures: Mapping[str, str]) -> None:
        """Record that the round has reached all streams."""
        if not self._scopes:
            return
        self._has_finished = True
        self._end_keeper()
        try:
            self._table.finish_now(
                self.kind,
                self._scopes,
                by=JOB,
                started_ms=self._started_ms,
                streams=streams,
                failures=failures,
                work=self._work,
            )
        except (PravegaSparkError, OSError) as error:
            self._warn("recorded", error)

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.end()

    def _warn(self, done: str, error: Exception) -> None:
        kind, root = self.kind.value, self._store.url
        logger.warning(
            "the round of %s of %s could not be %s: %s",
            kind,
            root,
            done,
            error,
            extra=log_fields("maintain", kind=kind, root=root),
        )

    def __enter__(self) -> RoundRecord:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the claim of a round that failed or was stopped."""
        if self._work is None or self._has_finished:
            return
        self._end_keeper()
        try:
            self._table.release(self._work)
        except (PravegaSparkError, OSError) as failure:
            self._warn("released", failure)


LOOK_SECONDS = 0.1
"""Pause between two looks whether the round is to stop, or a task hangs."""
_END_SECONDS = 10.0
"""A round that is stopped waits this long for the tasks that it is working on."""
PATIENCE_SECONDS: Final = 1.0
"""Once a task has reached the limit, a task that takes longer than this is parked.

The more tasks are parked, the likelier the next one hangs: N of them shorten it to 1/(N + 1), down
to a look.
"""
PARKED_PER_THREAD: Final = 16
"""How many parked tasks a round has at most, for each of its threads."""
_IDLE_SHARE = 0.5
"""Tasks hang if this process uses less than this of one core; long work is not parked."""

Do = Callable[[RoundTask], list[WorkOutcome]]


class TaskThreads:
    """Does tasks in daemon threads, which do not keep the process alive if they hang.

    At first each thread stays with its task until it is done. A task that takes as long as the
    limit shows that streams may hang: from then on a slow task is *parked* while this process uses
    little processor time. It runs on, and a new thread takes its turn. So tasks that hang cost the
    round about two limits, and one more for each further :data:`PARKED_PER_THREAD` a thread, not
    one for each task a thread.
    """

    def __init__(
        self,
        do: Do,
        parallelism: int,
        limit_seconds: float,
        stop: Stoppable,
        runtime: Runtime,
        processor_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        """Take what does a task; ``limit_seconds`` is the time after which it gives up."""
        self._do = do
        self._parallelism = parallelism
        self._limit_seconds = limit_seconds
        self._patience_seconds = min(PATIENCE_SECONDS, limit_seconds)
        self._stop = stop
        self._runtime = runtime
        self._processor_seconds = processor_seconds
        self._looked = runtime.monotonic(), processor_seconds()
        """The clock and the processor time of this process at the last look."""
        self._waiting = SimpleQueue[RoundTask]()
        self._done = SimpleQueue[list[WorkOutcome] | BaseException]()
        self._ended = threading.Event()
        self._lock = new_lock()
        self._began = dict[threading.Thread, float]()
        """The threads that have not ended, and when each began its task."""
        self._parked = set[threading.Thread]()
        self._hangs = False
        """Whether a task of this round has taken as long as the limit."""

    def run(self, tasks: Sequence[RoundTask]) -> Iterator[WorkOutcome]:
        """Yield the outcomes of tasks as they are done; end early if the round is stopped."""
        for task in tasks:
            self._waiting.put(task)
        for _ in range(min(self._parallelism, len(tasks))):
            self._start_thread()
        left, waited = len(tasks), 0.0
        try:
            while left:
                try:
                    found = self._done.get(timeout=LOOK_SECONDS)
                except Empty:
                    waited += LOOK_SECONDS if self._stop.is_set else 0.0
                    is_over = not self._began and self._done.empty()
                    if is_over or waited >= _END_SECONDS:
                        return
                    self._look()
                    continue
                if isinstance(found, BaseException):
                    raise found
                left -= 1
                self._look()
                yield from found
        finally:
            self._ended.set()

    def _start_thread(self) -> None:
        number = len(self._began)
        thread = threading.Thread(target=self._work, name=f"pravega-maintain-{number}", daemon=True)
        self._began[thread] = self._runtime.monotonic()
        thread.start()

    def _work(self) -> None:
        """Do tasks one after the other, up to one that is parked."""
        thread = threading.current_thread()
        try:
            while not (self._stop.is_set or self._ended.is_set()):
                with self._lock:  # a look parks the task that it saw, never the thread's next one
                    if thread in self._parked:
                        break
                    self._began[thread] = began = self._runtime.monotonic()
                self._done.put(self._do(self._waiting.get_nowait()))
                if self._runtime.monotonic() - began >= self._limit_seconds:
                    self._hangs = True
        except Empty:
            pass
        except BaseException as error:
            self._done.put(error)
        finally:
            with self._lock:
                del self._began[thread]
                self._parked.discard(thread)

    def _look(self) -> None:
        """Give the turns of slow tasks to new threads if streams hang."""
        now, used = self._runtime.monotonic(), self._processor_seconds()
        passed, used_since = now - self._looked[0], used - self._looked[1]
        if passed < LOOK_SECONDS:
            return
        self._looked = now, used
        with self._lock:
            took = {thread: now - began for thread, began in self._began.items()}
            if max(took.values(), default=0.0) >= self._limit_seconds:
                self._hangs = True
            if not self._hangs or used_since >= _IDLE_SHARE * passed:
                return
            patience = self._patience_seconds / (1 + len(self._parked))
            slow = [thread for thread in took if took[thread] >= patience]
            slow = [thread for thread in slow if thread not in self._parked]
            room = PARKED_PER_THREAD * self._parallelism - len(self._parked)
            for thread in slow[: min(room, self._waiting.qsize())]:
                self._parked.add(thread)
                self._start_thread()


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
    """Whether to look at every stream fully, without regard to due hints."""
    limit_seconds: float = WorkOptions().limit_seconds
    flags: GivenSettings = field(default_factory=dict)
    """Settings that the round decides itself, before streams and root."""
    scaling: ScalingHow = field(default_factory=ScalingHow)
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
        self._groups: dict[str, str] = {}
        """Reader groups whose interrupted change could not be completed, each with its error."""
        self.settings = EffectiveSettings()
        """The settings of the root that hold for the round, once it has begun."""

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
        options = WorkOptions(
            given, request.flags, request.dry_run, request.limit_seconds, request.scaling
        )
        self.settings = options.of_root()
        scopes = recorded_scopes(request.scopes, request.streams, dry_run=request.dry_run)
        self.find_streams(options.basis)
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

    def find_streams(self, basis: str = "") -> None:
        """List the streams of the round, and those of their scopes, whose hints are kept.

        Raises NoSuchScope and NoSuchStream for what is named, as :meth:`run` does.
        """
        request, named = self._request, dict[str, set[str]]()
        for name in request.streams:
            scope, short = split_stream(name)
            named.setdefault(scope, set()).add(short)
        found = [] if request.scopes or named else scope_folders(self._store)
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
            streams = partial(open_stream, store)
            errors = repair_changing_groups(store, streams, self._runtime)
            self._groups = {f"reader group {group}": why for group, why in errors.items()}
        outcomes = list[WorkOutcome]()
        for work in self._works.values():
            work.hints.read()
            for some, names in maintenance_work.by_kinds(kinds, work.wanted):
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
            hints.note(
                short,
                outcome.kind,
                version=outcome.version,
                written_ms=outcome.written_ms,
                due_ms=outcome.due_ms,
                now_ms=outcome.checked_ms,
            )

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
            kind: kind_result(
                kind,
                (o for o in outcomes if o.kind is kind),
                self._broken | (self._groups if kind is MaintenanceKind.RETENTION else {}),
            )
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
            streams=streams,
            idle=streams - looked_at if kinds else 0,
            kinds=found,
            changes=tuple(changes[:MAINTAINED_ROWS]),
            dry_run=dry_run,
            stopped=self._stop.is_set,
        )


_MOST_THREADS = 256


class RoundStop:
    """Stops a round before its end, from another thread or a signal's handler."""

    def __init__(self) -> None:
        self._stopped = threading.Event()

    @property
    def is_set(self) -> bool:
        """Whether the round is to stop."""
        return self._stopped.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until the round is to stop, at most ``seconds``; return whether it is."""
        return self._stopped.wait(seconds)

    def request(self) -> None:
        """Let the round end: no other stream is begun."""
        self._stopped.set()


def parse_kinds(given: Iterable[MaintenanceKind | str] | None) -> tuple[MaintenanceKind, ...]:
    """Return kinds by their names, in the order of a round; all without any.

    Raises InvalidInput.
    """
    if given is None:
        return tuple(WORKS)
    known = {kind.value: kind for kind in WORKS}
    found = set[MaintenanceKind]()
    for name in check_list("kinds", given):
        kind = known.get(name.value if isinstance(name, MaintenanceKind) else name)
        if kind is None:
            raise InvalidInput(
                f"there is no kind of maintenance {name!r}; use some of {', '.join(known)}."
            )
        found.add(kind)
    if not found:
        raise InvalidInput(f"no kind of maintenance is given; use some of {', '.join(known)}.")
    return tuple(kind for kind in WORKS if kind in found)


def split_kinds(texts: Iterable[str]) -> list[str]:
    """Return the names of kinds on a command line, where commas or spaces separate them."""
    return [name for text in texts for name in text.replace(",", " ").split()]


def parse_request(
    kinds: Iterable[MaintenanceKind | str] | None = None,
    scopes: Iterable[str] = (),
    streams: Iterable[str] = (),
    *,
    dry_run: bool = False,
    full: bool = False,
    limit: str | float = STREAM_TIMEOUT,
) -> RoundRequest:
    """Return a checked request. Raises InvalidInput, InvalidName, InvalidConfiguration."""
    scopes, streams = check_list("scopes", scopes), check_list("streams", streams)
    for scope in scopes:
        check_scope(scope)
    for stream in streams:
        split_stream(stream)
    limit_ms = parse_duration_ms("the limit", limit)
    if not 0 < limit_ms <= MAX_STREAM_TIMEOUT_MS:
        longest = duration_text(MAX_STREAM_TIMEOUT_MS)
        raise InvalidInput(
            f"the limit of a stream must be longer than 0 s and at most {longest}, got "
            f"{shown(limit)}."
        )
    return RoundRequest(
        dry_run=check_flag("dry_run", dry_run),
        full=check_flag("full", full),
        kinds=parse_kinds(kinds),
        scopes=tuple(scopes),
        streams=tuple(streams),
        limit_seconds=limit_ms / 1_000,
    )


def check_parallelism(given: int) -> int:
    """Return a number of threads; raise InvalidInput unless it is 1 to 256."""
    if not is_whole(given) or not 1 <= given <= _MOST_THREADS:
        raise InvalidInput(
            f"parallelism must be a whole number from 1 to {_MOST_THREADS}, got {given!r}."
        )
    return given


def maintain_root(
    store: Store,
    request: RoundRequest,
    parallelism: int,
    stop: Stoppable | None = None,
    runtime: Runtime = SYSTEM,
) -> MaintenanceResult:
    """Do one round in the threads of this process; see :class:`MaintenanceRound`."""
    stop = stop or RoundStop()

    def execute(tasks: Sequence[RoundTask], options: WorkOptions) -> Iterator[WorkOutcome]:
        do = partial(do_task, store, options=options, runtime=runtime)
        return TaskThreads(do, parallelism, options.limit_seconds, stop, runtime).run(tasks)

    return MaintenanceRound(store, request, execute, stop, runtime).run()
