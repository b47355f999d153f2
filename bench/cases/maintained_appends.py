"""What maintenance by an application costs it: beside its appends, and while it is idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import interleave, percentile
from bench.harness.registry import benchmark
from pravega_spark import MaintenanceKind, RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.config.root_settings import AUTO
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
from pravega_spark.values.limits import AUTO_SLACK, AUTO_WAKE_SECONDS
from pravega_spark.values.units import count_text

_INTERVAL = "40 s"
"""With a quarter of it left to jobs, each kind runs in each minute with maintenance."""
_CYCLE_SECONDS = int(1_800 * AUTO_SLACK)
"""By default the kinds that are due each half an hour run once in this time, others 30 times."""
_KEPT = StreamConfiguration(retention=RetentionPolicy.by_size("1 MiB"))


@benchmark()
def appends_beside_maintenance(context: Context) -> Iterator[Figure]:
    """Lone durable appends of a process that maintains its root, and of one that does not.

    Storage calls are counted at the default intervals, over two runs of the kinds that are due each
    half an hour, by skipped clocks. Processor time and waits are of appends back to back, in
    minutes with and without maintenance in turn. Each kind runs in each of them: those that by
    default are due each minute a little more often, and the others 37 times as often. With
    compaction is what somebody gets who has chosen "auto"; without is what new roots do.
    """
    for rate in (5, 20):
        beside, alone = calls_of_appends(rate, context.size(_CYCLE_SECONDS, 100))
        figure = Figure(
            f"durable append, {rate} a second, beside maintenance, storage calls",
            beside,
            "calls",
            "the same without",
            alone,
            beside / alone,
            note=f"{(beside - alone) * rate * 3_600:,.0f} calls an hour more, at default intervals",
        )
        yield figure.within(ratio_at_most=1.05) if rate > 5 else figure
    for title, kinds in (
        ("maintenance", DEFAULT_KINDS),
        ("maintenance with compaction", tuple(MaintenanceKind)),
    ):
        store = _root(f"{context.folder}/{len(kinds)}-kinds", kinds)
        yield from _Minutes(context, store, title, kinds).figures()


def calls_of_appends(rate: float, seconds: float) -> tuple[float, float]:
    """Return the calls of an append beside maintenance, and without, at some a second.

    Beside maintenance over twice so many seconds, when half as much has been appended before.
    """
    with _skipped_clocks() as skip:
        store, shares = _idle_root(1)
        found = list[float]()
        with EventStreamWriter(open_stream(store, "s/t0")) as writer:
            for maintains, length in ((True, seconds), (True, 2 * seconds), (False, seconds)):
                calls, appends, wait = store.total, 0, 0.0
                for _ in range(int(rate * length)):
                    if maintains and wait <= 0:
                        wait = shares.wake_up()
                    writer.write_event(EVENT, "key").result()
                    appends += 1
                    skip(1 / rate)
                    wait -= 1 / rate
                found.append((store.total - calls) / appends)
        return found[1], found[2]


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
