"""Small and large events, verbs of the stream and sweeps in any order, against a plain list."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_spark import StreamManager
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.manager import root_of
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.large_streams import (
    THRESHOLD,
    lower_limits,
    objects,
    retained_versions,
    values,
)
from tests.harness.tiers import sized

STREAM = "s/t"
KEYS = ("a", "b", "c")
STEPS = (
    "small", "small", "large", "large", "pieces", "transaction", "abort", "split", "merge",
    "truncate", "compact", "sweep", "orphan",
)  # fmt: skip


class World:
    """A stream of which a dict of lists says what is in it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.runtime = FakeRuntime()
        self.manager: StreamManager = manager_of(self.runtime)
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM)
        self.writer = self.manager.create_writer(STREAM, "model", large_events=True)
        self.transactions = self.manager.create_transactional_writer(STREAM, large_events=True)
        self.expected: dict[str, list[bytes]] = defaultdict(list)
        self.orphans: set[str] = set()
        self.count = 0

    def payload(self, *, large: bool) -> bytes:
        """Return bytes that are no other event's."""
        self.count += 1
        size = self.random.randrange(THRESHOLD + 1, 5 * THRESHOLD) if large else 0
        return b"%d:" % self.count + self.random.randbytes(size)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield a payload in random pieces."""
        at = 0
        while at < len(data):
            size = self.random.randrange(1, 90)
            yield data[at : at + size]
            at += size

    def step(self, name: str) -> None:
        """Take one step."""
        getattr(self, f"do_{name}")()
        self.runtime.sleep(self.random.choice([1, 100, 5_000]))

    def do_small(self) -> None:
        self._write([self.payload(large=False) for _ in range(self.random.randrange(1, 4))])

    def do_large(self) -> None:
        self._write([self.payload(large=True)])

    def do_pieces(self) -> None:
        key, data = self.random.choice(KEYS), self.payload(large=True)
        self.writer.write_event(self.pieces(data), key)
        self.expected[key].append(data)
        self.do_small()

    def _write(self, events: list[bytes]) -> None:
        key = self.random.choice(KEYS)
        for event in events:
            self.writer.write_event(event, key)
            self.expected[key].append(event)
        self.writer.flush()

    def do_transaction(self) -> None:
        with self.transactions.begin_transaction() as txn:
            for _ in range(4):
                key = self.random.choice(KEYS)
                data = self.payload(large=self.random.random() < 0.5)
                txn.write_event(data, key)
                self.expected[key].append(data)
            if self.random.random() < 0.3:
                self.do_split()

    def do_abort(self) -> None:
        txn = self.transactions.begin_transaction()
        txn.write_event(self.payload(large=True), "a")
        txn.flush()
        txn.abort()

    def do_split(self) -> None:
        segment = self.random.choice(self.manager.segments(STREAM))
        low, high = segment.key_range.low, segment.key_range.high
        middle = (low + high) / 2
        self.manager.scale_stream(STREAM, [segment], [(low, middle), (middle, high)])

    def do_merge(self) -> None:
        if len(self.manager.segments(STREAM)) > 1:
            first, second, *_ = self.manager.segments(STREAM)
            merged = (first.key_range.low, second.key_range.high)
            self.manager.scale_stream(STREAM, [first, second], [merged])

    def do_truncate(self) -> None:
        events = list(self.manager.read(STREAM))
        if events:
            reader = self.manager.create_reader(STREAM)
            cut = reader.next_cut(self.manager.head(STREAM), self.random.randrange(1, 6))
            self.manager.truncate_stream(STREAM, cut)
            left = [event.data for event in self.manager.read(STREAM)]
            for key, held in self.expected.items():
                kept = [data for data in held if data in left]
                assert held[len(held) - len(kept) :] == kept, "a truncation drops a prefix"
                self.expected[key] = kept

    def do_compact(self) -> None:
        self.manager.compact_stream(STREAM, target="16 KiB", head_after="1 minute")

    def do_orphan(self) -> None:
        version = open_stream(root_of(self.manager).store, STREAM, self.runtime).view().version
        self.count += 1
        key = f"{STREAM}/events/data/v{version:020d}/orphan{self.count}.event"
        root_of(self.manager).store.put(key, b"never committed")
        self.orphans.add(key)

    def do_sweep(self) -> None:
        self.manager.sweep_stream(STREAM, grace="1 minute", retain="10 minutes")

    def check(self) -> None:
        """Compare all readers with the lists, and the objects with the versions that need them."""
        found: dict[str, list[bytes]] = defaultdict(list)
        for event in self.manager.read(STREAM):
            assert event.routing_key is not None
            assert event.is_large == (len(event.data) > THRESHOLD)
            found[event.routing_key].append(event.data)
            assert self.manager.fetch_event(event.pointer).data == event.data
        assert found == {key: held for key, held in self.expected.items() if held}
        all_events = values(self.manager.read(STREAM))
        batches = [batch for _, batch in self.manager.create_reader(STREAM).batches()]
        assert [v for b in batches for v in b.column("event").to_pylist()] == all_events
        _, size = self.manager.create_reader(STREAM).distance("earliest", "latest")
        assert size == sum(map(len, all_events))
        stream = open_stream(root_of(self.manager).store, STREAM, self.runtime)
        needed = {key for version in retained_versions(stream) for key in version.named}
        assert needed <= objects(root_of(self.manager).store, STREAM)

    def finish(self) -> None:
        """Read as a group; then everything dead must go, and everything live stay."""
        group = self.manager.create_reader_group("s/g", [STREAM])
        with group.create_reader("r") as reader:
            read = []
            while True:
                event = reader.read_next_event(0).event
                if event is None:
                    break
                read.append(event.data)
        assert sorted(read) == sorted(data for held in self.expected.values() for data in held)
        for _ in range(3):
            self._write([self.payload(large=False)])
            self.runtime.sleep(100_000)
            self.manager.sweep_transactions(STREAM)
            self.do_sweep()
        self.check()
        stream = open_stream(root_of(self.manager).store, STREAM, self.runtime)
        needed = {key for version in retained_versions(stream) for key in version.named}
        assert objects(root_of(self.manager).store, STREAM) == needed, "dead objects are deleted"
        assert not self.orphans & needed


@pytest.mark.long
@given(seed=st.integers(0, 1 << 32), steps=st.lists(st.sampled_from(STEPS), max_size=14))
@settings(max_examples=sized(5, 1_000, "LARGE_EVENT_EXAMPLES"), deadline=None)
def test_large_events_are_events_like_any_other(seed: int, steps: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lower_limits(patch)
        world = World(seed)
        for step in steps:
            world.step(step)
            world.check()
        world.finish()
