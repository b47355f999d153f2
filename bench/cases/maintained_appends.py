"""What maintenance by an application costs it: beside its appends, and while it is idle."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from unittest.mock import patch

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import interleave, percentile
from bench.harness.registry import benchmark
from pravega_spark import MaintenanceKind, RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.config.root_settings import AUTO
from pravega_spark.engine.log.checkpoint import maintain_in_background
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.root import Root
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.state.maintenance_table import MaintenanceTable, entry_of
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.overdue_maintenance import DEFAULT_KINDS
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.maintenance.shares import MaintenanceShares
from pravega_spark.values.limits import AUTO_WAKE_SECONDS
from pravega_spark.values.units import count_text

_INTERVAL = "40 s"
"""With a quarter of it left to jobs, each kind runs in each minute with maintenance."""
TURN_SECONDS = 2_000
"""By default the kinds that are due each half hour run once in 2,250 s. This is shorter, so that
the time that a turn really takes brings no second run of them."""
_KEPT = StreamConfiguration(retention=RetentionPolicy.by_size("1 MiB"))


@benchmark()
def appends_beside_maintenance(context: Context) -> Iterator[Figure]:
    """Lone durable appends of a process that maintains its root, and of one that does not.

    At 5 and 20 a second all is at the default intervals, by skipped clocks: in turn, a process
    appends for 2,000 s and does its shares, and another one does not. In each of these times the
    kinds that are due each half hour run once, which is a little more often than by default, and
    those that are due each minute as often. Calls and processor time are those of both, maintenance
    and appends; storage in memory takes little, so the ratio is not flattered.

    Back to back, a disk, and minutes with and without maintenance in turn. Each kind runs in each
    minute with: those that by default are due each minute a little more often, and the others 37
    times as often. What a run costs for each append is what it costs by default, and what it costs
    in any case counts 37 times, so this is more than back to back at the default intervals. With
    compaction is what somebody gets who has chosen "auto"; without is what new roots do.
    """
    for rate in (5, 20):
        beside, alone = appends_in_turn(rate, context.size(TURN_SECONDS, 100), context.size(3, 1))
        calls = [sum(turn.calls for turn in turns) for turns in (beside, alone)]
        appends = sum(turn.appends for turn in beside)
        yield Figure(
            f"durable append, {rate} a second, beside maintenance, storage calls",
            calls[0] / appends,
            "calls",
            "the same without",
            calls[1] / appends,
            calls[0] / calls[1],
            note=f"{(calls[0] - calls[1]) / appends * rate * 3_600:,.0f} calls an hour more",
        ).within(ratio_at_most=1.05)
        yield Figure.of_rounds(
            f"durable append, {rate} a second, beside maintenance, processor time",
            [turn.micros for turn in beside],
            "µs",
            "the same without",
            [turn.micros for turn in alone],
        ).within(ratio_at_most=1.05)
    for title, kinds in (
        ("maintenance", DEFAULT_KINDS),
        ("maintenance with compaction", tuple(MaintenanceKind)),
    ):
        store = _root(f"{context.folder}/{len(kinds)}-kinds", kinds)
        yield from _Minutes(context, store, title, kinds).figures()


class Turn(NamedTuple):
    """What some appends cost, with the maintenance that the process did meanwhile."""

    appends: int
    calls: int
    micros: float
    """Processor time of an append."""


def appends_in_turn(rate: float, seconds: float, rounds: int) -> tuple[list[Turn], list[Turn]]:
    """Return turns of appends beside maintenance, and of those without, in two roots in memory.

    Each turn has some appends a second for some seconds, by clocks that are skipped. A turn of each
    is done before, and is not counted.
    """
    with _skipped_clocks() as skip:
        found = [list[Turn](), list[Turn]()]
        sides = [_idle_root(1) for _ in found]
        streams = [open_stream(store, "s/t0") for store, _ in sides]
        for stream in streams:
            stream.log.maintain = _maintained
        writers = [EventStreamWriter(stream) for stream in streams]
        for _ in range(1 + rounds):
            for side, ((store, shares), writer) in enumerate(zip(sides, writers, strict=True)):
                gc.collect()
                calls, used, wait = store.total, time.process_time(), 0.0
                for _ in range(int(rate * seconds)):
                    if side == 0 and wait <= 0:
                        wait = shares.wake_up()
                    writer.write_event(EVENT, "key").result()
                    skip(1 / rate)
                    wait -= 1 / rate
                appends = int(rate * seconds)
                micros = 1e6 * (time.process_time() - used) / appends
                found[side].append(Turn(appends, store.total - calls, micros))
        for writer in writers:
            writer.close()
        return found[0][1:], found[1][1:]


def _maintained(log: Log, version: int) -> None:
    """Write a state file as writers do, and wait: by skipped clocks, no time passes for it."""
    written = maintain_in_background(log, version)
    assert written is not None
    written.result()


def _root(url: str, kinds: Sequence[MaintenanceKind]) -> CountingStore:
    """Make a root that says "auto", with one stream that retention truncates."""
    store = CountingStore(open_store(url))
    manager = StreamManager(url)
    manager.create_scope("s")
    open_settings(open_store(url)).set_up("maintain", AUTO)
    manager.create_stream("s/t", _KEPT)
    given = {f"{kind.value}_interval": _INTERVAL for kind in kinds}
    if MaintenanceKind.COMPACTION in kinds:
        given["maintain"] = AUTO
    manager.update_settings(**given)
    return store


class _Minutes:
    """Appends of one process, with and without its maintenance."""

    def __init__(
        self, context: Context, store: CountingStore, title: str, kinds: Sequence[MaintenanceKind]
    ) -> None:
        self.seconds, self.rounds = context.size(60, 3), context.size(2, 1)
        self.store = store
        self.title = title
        self.kinds = kinds
        self.shares = MaintenanceShares(store, SYSTEM, is_asked=lambda: False)
        self.used: dict[str, list[float]] = {"with": [], "without": []}
        self.waits: dict[str, list[float]] = {"with": [], "without": []}

    def figures(self) -> Iterator[Figure]:
        with EventStreamWriter(open_stream(self.store, "s/t")) as writer:
            sides = {
                "with": lambda: self._maintained(writer),
                "without": lambda: self._minute(writer, "without"),
            }
            self._minute(writer, "without")
            while self.shares.wake_up() < AUTO_WAKE_SECONDS / 2:  # a process's first runs
                pass
            for found in (self.used, self.waits):
                found["without"].clear()
            begun_ms = self.store.time_ms()
            interleave(self.rounds, sides)
        runs = [entry_of(MaintenanceTable(self.store).entries(), kind) for kind in self.kinds]
        late = [run.kind.value for run in runs if not run.last or run.last.finished_ms < begun_ms]
        assert not late or self.rounds == 1, f"these did not run: {late}"
        note = f"{len(self.waits['with']):,} and {len(self.waits['without']):,} appends"
        is_bound = MaintenanceKind.COMPACTION not in self.kinds
        figure = Figure.of_rounds(
            f"durable append beside {self.title}, processor time",
            self.used["with"],
            "µs",
            "the same without",
            self.used["without"],
            note=note,
            limited_by="the kinds of each half hour, which run 37 times as often as by default",
        )
        yield figure.within(ratio_at_most=1.05) if is_bound else figure
        tails = {side: 1e3 * percentile(waits, 0.99) for side, waits in self.waits.items()}
        figure = Figure(
            f"durable append beside {self.title}, p99",
            tails["with"],
            "ms",
            "the same without",
            tails["without"],
            tails["with"] / tails["without"],
        )
        yield figure.within(ratio_at_most=1.5) if is_bound else figure

    def _maintained(self, writer: EventStreamWriter) -> float:
        stop = threading.Event()
        thread = threading.Thread(target=self._maintain, args=(stop,))
        thread.start()
        try:
            return self._minute(writer, "with")
        finally:
            stop.set()
            thread.join()

    def _maintain(self, stop: threading.Event) -> None:
        pause = 0.5
        while not stop.wait(pause):
            pause = self.shares.wake_up()

    def _minute(self, writer: EventStreamWriter, side: str) -> float:
        waits = list[float]()
        used, begun = time.process_time(), time.perf_counter()
        while (now := time.perf_counter()) < begun + self.seconds:
            writer.write_event(EVENT, "key").result()
            waits.append(time.perf_counter() - now)
        self.waits[side] += waits
        self.used[side].append(1e6 * (time.process_time() - used) / len(waits))
        return self.used[side][-1]


@benchmark()
def idle_maintenance(context: Context) -> Iterator[Figure]:
    """The storage calls in an hour of an open process that writes nothing, by skipped clocks."""
    for count in (1, context.size(100, 10)):
        yield Figure(
            f"an idle process that alone maintains {count_text(count, 'idle stream')}",
            idle_calls(count),
            "calls an hour",
        ).within(at_most=1_200 + 120 * count)
    yield Figure(
        "an idle process in a root that another one maintains",
        idle_calls(1, is_alone=False),
        "calls an hour",
    ).within(at_most=1_000)


def idle_calls(streams: int, *, is_alone: bool = True) -> int:
    """Return the calls of one process in an hour, when it has run for another one."""
    with _skipped_clocks() as skip:
        store, shares = _idle_root(streams)
        other = MaintenanceShares(store.inner, SYSTEM, is_asked=lambda: False)
        for _ in range(2):
            store.calls.clear()
            until = SYSTEM.monotonic() + 3_600
            while SYSTEM.monotonic() < until:
                while not is_alone and other.wake_up() < AUTO_WAKE_SECONDS / 2:
                    pass
                skip(shares.wake_up())
        return store.total


def _idle_root(streams: int) -> tuple[CountingStore, MaintenanceShares]:
    """Make a root in memory that says "auto", with streams of one event; by the system's clocks."""
    memory = MemoryStore(clock_ms=SYSTEM.now_ms)
    manager = StreamManager(memory.url)
    manager._root = Root(memory)
    manager.create_scope("s")
    open_settings(memory).set_up("maintain", AUTO)
    for number in range(streams):
        manager.create_stream(f"s/t{number}", _KEPT)
        with manager.create_writer(f"s/t{number}") as writer:
            writer.write_event(EVENT, "key").result()
    store = CountingStore(memory)
    return store, MaintenanceShares(store, SYSTEM, is_asked=lambda: False)


@contextmanager
def _skipped_clocks() -> Iterator[Callable[[float], None]]:
    """Let the system's clocks be moved forward: only with its runtime do tables stay open."""
    skipped = 0.0
    monotonic, now_ms = SYSTEM.monotonic, SYSTEM.now_ms

    def skip(seconds: float) -> None:
        nonlocal skipped
        skipped += seconds

    with (
        patch.object(SYSTEM, "monotonic", lambda: monotonic() + skipped),
        patch.object(SYSTEM, "now_ms", lambda: now_ms() + int(1e3 * skipped)),
    ):
        yield skip
