"""Maintenance of a root in the threads of one process: no Spark, no JVM."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from pravega_spark.arguments import check_flag, check_list, is_whole, shown
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.errors import InvalidInput
from pravega_spark.limits import MAX_STREAM_TIMEOUT_MS, STREAM_TIMEOUT
from pravega_spark.maintenance.maintenance_result import MaintenanceResult
from pravega_spark.maintenance.maintenance_round import MaintenanceRound, RoundRequest
from pravega_spark.maintenance.round_record import Stoppable
from pravega_spark.maintenance.stream_work import WORKS, WorkOptions
from pravega_spark.maintenance.task_threads import TaskThreads
from pravega_spark.maintenance.unit_work import RoundTask, do_task
from pravega_spark.maintenance.work_outcome import WorkOutcome
from pravega_spark.model import MaintenanceKind
from pravega_spark.names import check_scope, split_stream
from pravega_spark.units import duration_text, parse_duration_ms

_MOST_THREADS = 256


class RoundStop:
    """Stops a round before its end, from another thread or a signal's handler."""

    def __init__(self) -> None:
        """Start unset."""
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
    flags = check_flag("dry_run", dry_run), check_flag("full", full)
    return RoundRequest(parse_kinds(kinds), tuple(scopes), tuple(streams), *flags, limit_ms / 1_000)


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
