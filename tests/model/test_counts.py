"""What operators are told in numbers against counted truth: metrics, lags, lists and last events.

Streams of scopes whose names begin alike are written, scaled, truncated and read by a group. After
each step, metrics, the group's lag, the pages of lists and the last events say what a count says.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterable

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from pravega_spark import StreamCut, StreamManager
from pravega_spark.cli import main
from pravega_spark.metrics.prometheus import root_metrics
from pravega_spark.values.events import Event
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.tiers import sized
from tests.harness.web_world import web_client

SCOPES = ("a", "a-b", "a.c")
NAMES = tuple(f"{scope}/{name}" for scope in SCOPES for name in ("s", "t"))
STREAM = "a-b/s"
GROUP = "a/g"
GROUPS = tuple(f"{scope}/g" for scope in SCOPES)
TABLES = tuple(f"{scope}/k" for scope in SCOPES)
_roots = itertools.count()


class CountedRoot:
    """A root whose streams hold numbered events, and the truth about each."""

    def __init__(self) -> None:
        self.rng = random.Random()
        self.manager = StreamManager(f"memory://counts-{next(_roots)}")
        for scope in SCOPES:
            self.manager.create_scope(scope)
        for name in NAMES:
            self.manager.create_stream(name)
        for name in GROUPS:
            self.manager.create_reader_group(name, {STREAM: StreamCut.EARLIEST})
        for name in TABLES:
            self.manager.create_key_value_table(name)
        self.sizes: dict[int, int] = {}
        self.is_read: set[int] = set()
        self.changes: Counter[str] = Counter()

    def write(self) -> None:
        with self.manager.create_writer(STREAM) as writer:
            for _ in range(self.rng.randint(1, 6)):
                writer.write_event(self._event(), f"k{self.rng.randrange(8)}").result()

    def write_a_batch(self) -> None:
        with self.manager.create_writer(STREAM) as writer:
            for _ in range(self.rng.randint(1, 6)):
                writer.write_event(self._event(), f"k{self.rng.randrange(8)}")

    def commit_a_transaction(self) -> None:
        opened = self.manager.create_transactional_writer(STREAM)
        with opened as writer, writer.begin_transaction() as txn:
            for _ in range(self.rng.randint(1, 4)):
                txn.write_event(self._event(), f"k{self.rng.randrange(8)}")

    def _event(self) -> bytes:
        number = len(self.sizes)
        event = b"%d:" % number + b"x" * self.rng.randrange(20)
        self.sizes[number] = len(event)
        return event

    def scale(self) -> None:
        active = sorted(self.manager.stream(STREAM).segments(), key=lambda s: s.key_range.low)
        at = self.rng.randrange(len(active))
        first, pair = active[at], active[at : at + 2]
        if len(pair) == 2 and self.rng.random() < 0.5:
            ranges = [(pair[0].key_range.low, pair[1].key_range.high)]
            self.manager.scale_stream(STREAM, [s.segment_id for s in pair], ranges)
            self.changes["merges"] += 1
        elif len(active) < 6:
            low, high = first.key_range.low, first.key_range.high
            ranges = [(low, (low + high) / 2), ((low + high) / 2, high)]
            self.manager.scale_stream(STREAM, [first.segment_id], ranges)
            self.changes["splits"] += 1

    def scale_widely(self) -> None:
        """Split a segment into more of them than anybody reads at once."""
        active = self.manager.stream(STREAM).segments()
        if len(active) < 6:
            chosen = self.rng.choice(list(active))
            low, high = chosen.key_range.low, chosen.key_range.high
            borders = [low + (high - low) * n / 34 for n in range(34)] + [high]
            ranges = list(itertools.pairwise(borders))
            self.manager.scale_stream(STREAM, [chosen.segment_id], ranges)
            self.changes["splits"] += 1

    def read(self) -> None:
        with self.manager.reader_group(GROUP).create_reader("r") as reader:
            for _ in range(self.rng.randint(1, 8)):
                event = reader.read_next_event(timeout=0).event
                if event is not None:
                    self.is_read.add(number_of(event))

    def truncate(self) -> None:
        """Truncate to where the group is, or to the tail, once the group was set there."""
        group, tail = self.manager.reader_group(GROUP), self.manager.tail(STREAM)
        if self.rng.random() < 0.5:
            group.reset({STREAM: tail})
            self.is_read = set(self.sizes)
            self.manager.truncate_stream(STREAM, tail)
        else:
            self.manager.truncate_stream(STREAM, group.stream_cuts()[STREAM])

    # --------------------------------------------------------------------------------- the checks

    def check(self) -> None:
        events = list(self.manager.read(STREAM))
        left = {number_of(event) for event in events}
        assert len(left) == len(events)
        assert left | self.is_read == set(self.sizes)
        self._check_metrics(left)
        lag = self.manager.reader_group(GROUP).lag()
        unread = set(self.sizes) - self.is_read
        assert lag.events == len(unread), f"a lag of {lag}, and {len(unread)} unread"
        self._check_newest(events)

    def _check_metrics(self, left: set[int]) -> None:
        registry = CollectorRegistry()
        registry.register(root_metrics(self.manager, cache=0))
        scope, stream = STREAM.split("/")
        gone = set(self.sizes) - left
        for name, expected in {
            "written_events_total": len(self.sizes),
            "written_bytes_total": sum(self.sizes.values()),
            "events": len(left),
            "size_bytes": sum(self.sizes[number] for number in left),
            "truncated_events_total": len(gone),
            "truncated_bytes_total": sum(self.sizes[number] for number in gone),
            "segment_splits_total": self.changes["splits"],
            "segment_merges_total": self.changes["merges"],
        }.items():
            labels = {"scope": scope, "stream": stream}
            found = registry.get_sample_value(f"pravega_stream_{name}", labels)
            assert found == expected, f"{name} is {found}, and {expected} is true"

    def _check_newest(self, events: list[Event]) -> None:
        count = self.rng.choice((1, 2, 3, 7, 100))
        shown = self._tail(count)
        times = sorted(event.timestamp_us for event in events)[-count:]
        time_of = {number_of(event): event.timestamp_us for event in events}
        assert [time_of[number] for number in shown] == times, f"tail -n {count} shows {shown}"
        assert len(set(shown)) == len(shown)

    def _tail(self, count: int) -> list[int]:
        out = io.TextIOWrapper(io.BytesIO())
        with contextlib.redirect_stdout(out):
            command = ["stream", "tail", STREAM, "-n", str(count), "--format", "raw"]
            assert main([*command, "--root", self.manager.root]) == 0
            sys.stdout.flush()
        lines = out.buffer.getvalue().split(b"\n")
        return [int(line.split(b":")[0]) for line in lines if line]

    def check_page(self) -> None:
        with web_client(self.manager) as client:
            limit = self.rng.randint(1, 4)
            for kind, names in (("streams", NAMES), ("groups", GROUPS), ("tables", TABLES)):
                assert pages_of(client, kind, limit) == sorted(names), kind
            scope, stream = STREAM.split("/")
            limit = self.rng.choice((1, 3, 50))
            answer = client.get(f"/api/streams/{scope}/{stream}/events", params={"limit": limit})
            found = [row["timestamp_ms"] for row in answer.json()["events"]]
            times = [event.timestamp_us // 1_000 for event in self.manager.read(STREAM)]
            assert found == sorted(times, reverse=True)[:limit]
            rows = client.get("/api/streams", params={"scope": scope}).json()["streams"]
            (row,) = (row for row in rows if row["stream"] == stream)
            left = {number_of(event) for event in self.manager.read(STREAM)}
            assert row["size_bytes"] == sum(self.sizes[number] for number in left), row


def number_of(event: Event) -> int:
    return int(bytes(event.data).split(b":")[0])


def pages_of(client: TestClient, kind: str, limit: int) -> list[str]:
    """Return the names of all pages of a list, in their order."""
    found, after = list[str](), None
    while True:
        query = {"limit": limit} | ({} if after is None else {"after": after})
        answer = client.get(f"/api/{kind}", params=query).json()
        rows = answer[kind]
        found += [f"{row['scope']}/{row[kind[:-1]]}" for row in rows]
        after = answer["next"]
        if after is None:
            assert answer["total"] == len(found), kind
            return found


VERBS = (
    *("write", "write", "write_a_batch", "commit_a_transaction"),
    *("scale", "scale", "scale_widely", "read", "read", "truncate"),
)


def play(steps: Iterable[Step]) -> None:
    world = CountedRoot()
    for verb, seed in steps:
        world.rng = random.Random(seed)
        getattr(world, verb)()
        world.check()


@pytest.mark.long
def test_numbers_that_operators_are_told_are_what_a_count_says() -> None:
    for seed in range(sized(9, 5_000, "COUNTS_SEEDS")):
        steps = drawn_steps(seed, VERBS, 3 + seed % 10)
        play_shortest(seed, [*steps, ("check_page", seed)] if seed % 8 == 0 else steps, play)
