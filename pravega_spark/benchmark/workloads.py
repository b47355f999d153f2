"""What a benchmark measures: five ways to write, each for its share of the run's bounds."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pravega_spark.benchmark.chain import WrittenChain, written_at
from pravega_spark.benchmark.folder import RunFolder
from pravega_spark.benchmark.meter import BoundReached, Meter, Share, Use
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.errors import StoreError
from pravega_spark.manager import StreamManager, manager_over

SCOPE: Final = "bench"
TRANSACTION_EVENTS: Final = 100
_TRANSACTION_APPENDS: Final = 4
"""A transaction takes as many calls as so many appends."""
_IN_FLIGHT_BYTES: Final = 4 << 20
_IN_FLIGHT: Final = 5_000
_LOOKS_EACH: Final = 100
"""Pipelined writes between two looks at the bounds, at most."""
_LONGEST_PAUSE: Final = 0.1
"""Of the tail's writer between two events, in seconds: so that no poll is in step with it."""
_FOLLOW_SECONDS: Final = 30.0
"""An event that its follower has not seen for so long fails the measurement."""


@dataclass(slots=True)
class Measured:
    """One workload: operations, their times in seconds, and what they took of the storage."""

    name: str
    what: str
    """What an operation is."""
    times: list[float] = field(default_factory=list)
    events: int = 0
    seconds: float = 0.0
    use: Use = field(default_factory=Use)
    ended_by: str | None = None
    began: float = 0.0
    _before: Use = field(default_factory=Use)

    def begin(self, meter: Meter) -> None:
        """Start the clock, and count from here; what was warmed up before does not count."""
        self.times.clear()
        self.events = 0
        self._before, self.began = meter.use(), time.perf_counter()

    def end(self, meter: Meter) -> None:
        """Stop the clock."""
        self.seconds = time.perf_counter() - self.began
        self.use = meter.use().since(self._before)

    @property
    def operations(self) -> int:
        """How many operations were measured."""
        return len(self.times)

    def quantile_ms(self, share: float) -> float | None:
        """Return the time, in ms, within which that share of the operations was done."""
        ordered = sorted(self.times)
        return 1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


class Workloads:
    """The workloads on one folder. Each writes its own stream, whose events are chains."""

    def __init__(self, folder: RunFolder, meter: Meter, run: str, writers: int, event_bytes: int):
        """Name what they share; ``run`` begins the chains, so that no two runs have equal ones."""
        self._folder, self._meter, self._run = folder, meter, run
        self._writers, self._event_bytes = writers, event_bytes
        self._manager = manager_over(folder.store())
        self.chains: dict[str, WrittenChain] = {}
        """By routing key, which begins with the stream's name: all that was written."""
        self.all: tuple[tuple[str, Callable[[Measured, Share], None], str], ...] = (
            ("append", self._append, "one durable event"),
            ("pipelined", self._pipelined, "one event of many in flight"),
            ("tail", self._tail, "from the writer to a follower"),
            ("transaction", self._transaction, f"{TRANSACTION_EVENTS} events and the commit"),
            ("writers", self._many, f"one durable event, {writers} writers"),
        )

    @property
    def manager(self) -> StreamManager:
        """The manager of the run's root."""
        return self._manager

    def set_up(self) -> Use:
        """Create the root and its streams, and return what that took."""
        before = self._meter.use()
        self._manager.create_scope(SCOPE)
        configuration = StreamConfiguration(ScalingPolicy.fixed(1))
        for name, *_ in self.all:
            self._manager.create_stream(f"{SCOPE}/{name}", configuration)
        return self._meter.use().since(before)

    def measure(self, seconds: float) -> Iterator[Measured]:
        """Run each workload, and yield what was measured until a bound of the run ended it."""
        for position, (name, work, what) in enumerate(self.all):
            share = self._meter.share(len(self.all) - position, seconds)
            found = Measured(name, what)
            found.begin(self._meter)
            with suppress(BoundReached):
                work(found, share)
            found.end(self._meter)
            found.ended_by = self._meter.stopped_by or share.ended_by
            yield found

    def _chain(self, stream: str, writer: str = "0") -> WrittenChain:
        key = f"{stream}/{writer}"
        chain = self.chains[key] = WrittenChain(key, self._run, self._event_bytes)
        return chain

    @contextmanager
    def _writer(self, name: str, *, manager: StreamManager | None = None) -> Iterator[Any]:
        writer = (manager or self._manager).create_writer(f"{SCOPE}/{name}")
        try:
            yield writer
        finally:
            with suppress(BoundReached):
                writer.close()

    def _append(self, found: Measured, share: Share) -> None:
        chain = self._chain("append")
        with self._writer("append") as writer:
            self._first(writer, chain, found)
            self._one_by_one(writer, chain, found, share)

    def _first(self, writer: Any, chain: WrittenChain, found: Measured) -> None:
        """Write an event that does not count: it opens connections, and imports modules."""
        writer.write_event(chain.next(), chain.key).result()
        chain.acknowledged += 1
        found.begin(self._meter)

    def _one_by_one(
        self, writer: Any, chain: WrittenChain, found: Measured, share: Share, at_once: int = 1
    ) -> None:
        while share.is_left(at_once * self._event_bytes, at_once):
            began = time.perf_counter()
            writer.write_event(chain.next(), chain.key).result()
            found.times.append(time.perf_counter() - began)
            chain.acknowledged += 1
            found.events += 1

    def _pipelined(self, found: Measured, share: Share) -> None:
        chain = self._chain("pipelined")
        most = max(1, min(_IN_FLIGHT, _IN_FLIGHT_BYTES // self._event_bytes))
        looks_each = max(1, min(_LOOKS_EACH, most // 4))
        open_writes: deque[Future[Any]] = deque()

        def wait(count: int) -> None:
            while len(open_writes) > count:
                open_writes.popleft().result()
                chain.acknowledged += 1
                found.events += 1

        def note(began: float, write: Future[Any]) -> None:
            if write.exception() is None:
                found.times.append(time.perf_counter() - began)

        with self._writer("pipelined") as writer:
            self._first(writer, chain, found)
            while share.is_left((len(open_writes) + looks_each) * self._event_bytes):
                for _ in range(looks_each):
                    began = time.perf_counter()
                    write = writer.write_event(chain.next(), chain.key)
                    write.add_done_callback(lambda done, began=began: note(began, done))
                    open_writes.append(write)
                    wait(most)
            wait(0)

    def _tail(self, found: Measured, share: Share) -> None:
        """Write an event when the follower has the last one; it shares only the storage."""
        chain, pauses = self._chain("tail"), random.Random(1)
        follower = manager_over(self._folder.store())
        events = follower.stream(f"{SCOPE}/tail").follow(timeout=_FOLLOW_SECONDS)
        with self._writer("tail") as writer:
            while share.is_left(self._event_bytes):
                writer.write_event(chain.next(), chain.key)
                event = next(events, None)
                if event is None:
                    raise StoreError(
                        f"{self._folder.url}: a follower did not see an event for "
                        f"{_FOLLOW_SECONDS:.0f} s.",
                        url=self._folder.url,
                    )
                found.times.append(time.perf_counter() - written_at(event.data))
                chain.acknowledged += 1
                found.events += 1
                if chain.acknowledged == 1:
                    found.begin(self._meter)  # the first one has opened the reader
                time.sleep(pauses.uniform(0.0, _LONGEST_PAUSE))

    def _transaction(self, found: Measured, share: Share) -> None:
        chain = self._chain("transaction")
        writer = self._manager.create_transactional_writer(f"{SCOPE}/transaction")
        with writer:
            while share.is_left(TRANSACTION_EVENTS * self._event_bytes, _TRANSACTION_APPENDS):
                began = time.perf_counter()
                transaction = writer.begin_transaction()
                for _ in range(TRANSACTION_EVENTS):
                    transaction.write_event(chain.next(), chain.key)
                transaction.commit()
                found.times.append(time.perf_counter() - began)
                chain.acknowledged += TRANSACTION_EVENTS
                found.events += TRANSACTION_EVENTS
                if chain.acknowledged == TRANSACTION_EVENTS:
                    found.begin(self._meter)

    def _many(self, found: Measured, share: Share) -> None:
        """Write from threads, each with a writer of its own and one event at a time."""
        parts = [Measured(found.name, found.what) for _ in range(self._writers)]
        chains = [self._chain("writers", str(number)) for number in range(self._writers)]
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                with self._writer("writers") as writer:
                    mine = Share(
                        self._meter, share.until_seconds, share.calls_left, share.bytes_left
                    )
                    self._one_by_one(writer, chains[number], parts[number], mine, self._writers)
                    share.ended_by = mine.ended_by
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(self._writers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # an interrupt: every further call is refused, so all end
            self._meter.end("the run was interrupted")
            for thread in threads:
                thread.join()
            raise
        found.times += [took for part in parts for took in part.times]
        found.events = sum(part.events for part in parts)
        failed = [error for error in errors if not isinstance(error, BoundReached)]
        if failed:
            raise failed[0]
