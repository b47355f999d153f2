"""Random histories of writers that keep their promises: what every watermark must hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pytest

from pravega_spark.config.descriptions import Watermark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import TruncatedData
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn.transaction import Transaction
from pravega_spark.values.segments import END, EventPointer
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.tiers import sized

S = "s/t"
STEPS = 60
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass
class Feed:
    """A writer that promises only what it keeps; ``clock`` is the least time of its next event."""

    writer: EventStreamWriter
    clock: int
    unnoted: list[tuple[int, EventPointer]] = field(default_factory=list)


@dataclass
class History:
    """What was written and noted: the events that each watermark must have before its cut."""

    manager: StreamManager
    runtime: FakeRuntime
    chance: random.Random
    feeds: dict[str, Feed] = field(default_factory=dict)
    noted: list[tuple[int, EventPointer]] = field(default_factory=list)
    """Events that a note followed, with their times."""
    transactions: list[tuple[Transaction, int, str]] = field(default_factory=list)
    recorded: list[Watermark] = field(default_factory=list)

    def lower(self) -> int:
        found = self.manager.event_time(S).watermark()
        return 0 if found is None else found.lower_us // 1_000

    def open(self) -> None:
        name = f"w{self.chance.randrange(4)}"
        if name not in self.feeds:
            writer = self.manager.create_writer(S, name)
            noted = writer._times._last_us or 0
            self.feeds[name] = Feed(writer, max(noted // 1_000, self.lower()))

    def write(self) -> None:
        if not self.feeds:
            return
        feed = self.chance.choice(list(self.feeds.values()))
        for _ in range(self.chance.randrange(1, 4)):
            time = feed.clock + self.chance.randrange(50)
            key = f"k{self.chance.randrange(9)}"
            feed.unnoted.append((time, feed.writer.write_event(b"%d" % time, key).result()))

    def note(self) -> None:
        if not self.feeds:
            return
        feed = self.chance.choice(list(self.feeds.values()))
        feed.clock += self.chance.randrange(40)
        feed.writer.note_time(feed.clock).result()
        self.noted += feed.unnoted
        feed.unnoted.clear()

    def leave(self) -> None:
        if self.feeds:
            name = self.chance.choice(list(self.feeds))
            feed = self.feeds.pop(name)
            feed.writer.close()
            if queue_of(feed.writer).notes_time:
                self.noted += feed.unnoted

    def transact(self) -> None:
        """Begin a transaction, or commit one: it may roll over a scale in between."""
        if not self.transactions:
            writer = self.manager.create_transactional_writer(S, "txn")
            time = self.lower() + self.chance.randrange(60)
            for _ in range(2):
                transaction = writer.begin_transaction()
                transaction.write_event(b"%d" % time, f"k{self.chance.randrange(9)}")
                transaction.flush()
                self.transactions.append((transaction, time, ""))
            return
        transaction, time, _ = self.transactions.pop()
        transaction.commit(timestamp=EPOCH + timedelta(milliseconds=time))

    def scale(self) -> None:
        segments = sorted(self.manager.segments(S), key=lambda s: s.key_range.low)
        if len(segments) > 3 or (len(segments) > 2 and self.chance.random() < 0.5):
            at = self.chance.randrange(len(segments) - 1)
            pair = segments[at : at + 2]
            merged = (pair[0].key_range.low, pair[1].key_range.high)
            self.manager.scale_stream(S, pair, [merged])
        else:
            one = self.chance.choice(segments)
            middle = (one.key_range.low + one.key_range.high) / 2
            halves = [(one.key_range.low, middle), (middle, one.key_range.high)]
            self.manager.scale_stream(S, [one], halves)

    def truncate(self) -> None:
        if self.recorded and self.chance.random() < 0.5:
            time_ms = self.recorded[-1].lower_us // 1_000
            cut = self.manager.event_time(S).cut_before(time_ms, stored_times=False)
            self.manager.truncate_stream(S, cut)

    def update(self) -> None:
        before = open_stream(root_of(self.manager).store, S, self.runtime).view().version
        found = self.manager.event_time(S).update().watermark
        if found is None:
            return
        assert found.version == before + 1
        self.check(found)
        self.recorded.append(found)

    def check(self, found: Watermark) -> None:
        view = open_stream(root_of(self.manager).store, S, self.runtime).view()
        cut = locate(view, found.cut)
        assert view.located_tail.is_at_or_after(cut)
        if self.recorded:
            last = self.recorded[-1]
            assert found.lower_us > last.lower_us
            assert found.upper_us >= last.upper_us
            assert cut.is_at_or_after(locate(view, last.cut).above_head())
        for time, pointer in self.noted:
            if 1_000 * time < found.lower_us and view.has_segment(pointer.segment_id):
                offset = cut.offset_in(view.lineage.find(pointer.segment_id))
                assert offset == END or pointer.offset < offset, (time, pointer, found)


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(4, 100)))
def test_watermarks_never_go_back_and_hold_what_was_noted(seed: int) -> None:
    runtime = FakeRuntime()
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
    history = History(manager, runtime, random.Random(seed))
    steps = [history.open, history.write, history.note, history.update]
    steps += [history.write, history.note, history.leave, history.transact, history.scale]
    steps += [history.truncate, history.note, history.update]
    for _ in range(STEPS):
        history.chance.choice(steps)()
    for feed in history.feeds.values():
        feed.writer.close()
    history.update()
    assert history.recorded, "a history without a watermark shows nothing"
    last = -1
    reader = manager.create_reader(S)
    for _ in reader.events():
        lower_us = reader.current_time_window().lower_us
        assert lower_us is None or lower_us >= last
        last = last if lower_us is None else lower_us


def test_a_read_below_the_head_says_so() -> None:
    runtime = FakeRuntime()
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream(S)
    with manager.create_writer(S, "w") as writer:
        writer.write_event(b"1", "k")
        writer.note_time(10).result()
    head = manager.head(S)
    manager.truncate_stream(S, manager.tail(S))
    time = manager.event_time(S)
    assert time.cut_at(10) == manager.head(S)
    with pytest.raises(TruncatedData):
        list(manager.read(S, head))
