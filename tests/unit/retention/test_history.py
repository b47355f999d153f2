"""Random histories of a stream under retention, checked against the promises of its policies.

Writers, subscribers, operators and two runs of retention take turns, also inside a run. The checks
read each version from the commits alone and share no code with the decisions.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from random import Random

import pytest

from pravega_spark.config.policies import (
    LimitUnit,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfiguration,
)
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe, unsubscribe
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import HeldBySubscriber, InvalidStreamCut
from pravega_spark.retention.run import explain_retention, parse_options, run_retention
from pravega_spark.values.segments import StreamCut
from tests.harness import failpoints
from tests.harness import stream_cuts as cuts
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import reopen, scale, write
from tests.harness.stream_cuts import lower_bound_of, raised
from tests.harness.tiers import sized

POLICIES = [
    None,
    RetentionPolicy.by_time("60 s"),
    RetentionPolicy.by_time("30 s", "120 s"),
    RetentionPolicy.by_size(300),
    RetentionPolicy.by_size(200, 600),
    RetentionPolicy.by_consumption(),
    RetentionPolicy.by_consumption(minimum="20 s", maximum="150 s"),
    RetentionPolicy.by_consumption(minimum="100 bytes", maximum="900 bytes"),
]
POINTS = ("retention.decided", "truncate.history", "commit.before")
GROUPS = ("s/a", "s/b", "plain")
COMMIT_BYTES = 60
"""At most. With a scale between two commits the maximum holds to the commit, not to the event."""


class History:
    """A stream in several processes, and the random actions on it."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        runtime = FakeRuntime(seed)
        self.runtime = runtime
        first = StreamLog(memory(runtime), "s/t", runtime)
        first.log.maintain = None
        lifecycle.create(first, 1, StreamConfiguration(ScalingPolicy.fixed(2), POLICIES[1]))
        self.processes = [first, *(reopen(first) for _ in range(3))]
        self.generations = itertools.count(1)
        self.depth = 0

    @property
    def any(self) -> StreamLog:
        return self.dice.choice(self.processes)

    def step(self) -> None:
        actions = [self.write, self.write, self.write, self.publish, self.publish, self.run]
        actions += [self.scale, self.subscribe, self.leave, self.policy, self.truncate]
        self.dice.choice(actions)()
        self.runtime.sleep(self.dice.choice((0, 1, 5, 20)))

    def write(self) -> None:
        count = self.dice.randint(1, 6)
        write(self.any, [(str(self.dice.random()), b"x" * 10) for _ in range(count)])

    def scale(self) -> None:
        stream = self.any
        segments = stream.view().active.segments
        if len(segments) > 3:
            low, high = segments[0].key_range.low, segments[1].key_range.high
            scale(stream, [s.segment_id for s in segments[:2]], [(low, high)])
        else:
            segment = self.dice.choice(segments)
            low, high = segment.key_range.low, segment.key_range.high
            middle = (low + high) / 2
            scale(stream, [segment.segment_id], [(low, middle), (middle, high)])

    def subscribe(self) -> None:
        protect = self.dice.random() < 0.5
        subscribe(self.any, self.dice.choice(GROUPS), next(self.generations), protect=protect)

    def leave(self) -> None:
        if self.dice.random() < 0.4:
            unsubscribe(self.any, self.dice.choice(GROUPS), next(self.generations))

    def publish(self) -> None:
        stream = self.any
        view = stream.view()
        for record in view.subscribers:
            before = view.head if record.bound is None else record.bound.cut("s/t", 1)
            start = raised(view, before)
            step = cuts.next_cut(view, start, self.dice.randint(1, 12))
            publish(stream, record.name, record.generation, step)

    def policy(self) -> None:
        if self.dice.random() < 0.5:
            policy = self.dice.choice(POLICIES)
            lifecycle.update(self.any, StreamConfiguration(ScalingPolicy.fixed(1), policy))

    def truncate(self) -> None:
        if self.dice.random() < 0.2:
            view = self.any.view()
            goal = cuts.next_cut(view, view.head, self.dice.randint(1, 5))
            with contextlib.suppress(HeldBySubscriber, InvalidStreamCut):
                truncate(self.any, goal, past_subscribers=self.dice.random() < 0.3)

    def run(self) -> None:
        """Run retention; an outer run is interrupted by other actions at a random failpoint."""
        expire = self.dice.choice((None, None, 60))
        stream = self.processes[0] if self.depth == 0 else self.processes[1]
        if self.depth == 0:
            point = self.dice.choice(POINTS)
            failpoints.register(point, self._interrupt)
        try:
            self.depth += 1
            options = parse_options(sample_every=10, expire=expire, sweep=False)
            run_retention(stream, options)
        finally:
            self.depth -= 1
            if self.depth == 0:
                for point in POINTS:
                    failpoints.register(point, None)

    def _interrupt(self) -> None:
        for point in POINTS:
            failpoints.register(point, None)
        stream, self.processes[0] = self.processes[0], self.processes[2]
        try:
            for _ in range(self.dice.randint(1, 3)):
                self.step()
        finally:
            self.processes[0] = stream


def views(stream: StreamLog) -> list[tuple[StreamView, str, dict[str, str]]]:
    """Return each version as a view, with the operation and parameters of its commit."""
    reader = stream.log.reader
    opened = reader.open(below=1)
    assert opened is not None
    snapshot, found = opened[0], []
    for commit in reader.span(0, stream.view().version):
        snapshot = snapshot.apply(commit)
        parameters = commit.info.get("operationParameters", {})
        found.append((StreamView(snapshot), commit.operation, dict(parameters)))
    return found


def check(
    before: StreamView, after: StreamView, parameters: dict[str, str], times: list[int]
) -> None:
    """Check the promises of one commit that moved the head."""
    assert cuts.equal_or_after(before, raised(before, after.head), before.head)
    passed = set(json.loads(parameters.get("pastSubscribers", "[]")))
    expired = {s.name for s in before.subscribers} - {s.name for s in after.subscribers}
    for record in before.subscribers:
        if record.bound is not None and record.name not in passed | expired:
            bound = raised(before, record.bound.cut("s/t", 1))
            assert cuts.equal_or_after(before, bound, after.head)
    if json.loads(parameters["by"]) != "retention":
        return
    policy = before.record.configuration.retention
    assert policy is not None
    if policy.type is RetentionType.CONSUMPTION and passed - expired:
        assert policy.maximum is not None
        assert json.loads(parameters["reason"]) == "all beyond the maximum"
    behind = {
        record.name
        for record in before.subscribers
        if record.bound is not None
        and not cuts.equal_or_after(before, raised(before, record.bound.cut("s/t", 1)), after.head)
    }
    assert passed == behind - expired, "the history names each subscriber that lost data"
    if policy.unit is LimitUnit.SIZE_BYTES:
        kept = after.total_bytes - bytes_before_head(after)
        assert kept >= min(policy.minimum, after.total_bytes)
        if json.loads(parameters["reason"]) == "all beyond the maximum":
            assert policy.maximum is not None
            assert kept > policy.maximum - COMMIT_BYTES, "more data than necessary was truncated"
    truncated = after.record.truncation
    assert truncated is not None
    if policy.unit is LimitUnit.TIME_MS:
        young = [t for t in times if truncated.time_ms - t < policy.minimum]
        tail = TAILS.get(young[0]) if young else None
        if tail is not None:
            earlier = TAILS[times[times.index(young[0]) - 1]]
            assert cuts.equal_or_after(before, raised(before, earlier), after.head)


TAILS: dict[int, StreamCut] = {}
"""The tail at the time of each commit of the checked log."""


def bytes_before_head(view: StreamView) -> int:
    """Return all bytes below the head; each event has 10 bytes."""
    after = cuts.distance_events(view, StreamCut.EARLIEST, StreamCut.LATEST)
    return view.total_bytes - 10 * after


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(8, 100)))
def test_promises_hold_at_every_version_of_a_random_history(seed: int) -> None:
    history = History(seed)
    for _ in range(60):
        history.step()
    stream = reopen(history.processes[0])
    TAILS.clear()
    times: list[int] = []
    found = views(stream)
    moved = 0
    for (before, _, _), (after, operation, parameters) in itertools.pairwise(found):
        times.append(before.timestamp_ms)
        TAILS[before.timestamp_ms] = before.tail
        if after.record.head != before.record.head:
            assert operation == "TRUNCATE STREAM"
            check(before, after, parameters, times)
            moved += 1
        for sample in after.samples:
            assert not cuts.equal_or_after(after, after.head, sample.tail.cut("s/t", 1))
    view = stream.view()
    assert bytes_before_head(view) >= 0
    explained = explain_retention(stream)
    assert explained.stays.size_bytes == 10 * explained.stays.events
    bounds = [s.bound.cut("s/t", 1) for s in view.subscribers if s.bound]
    if bounds:
        assert cuts.equal_or_after(view, lower_bound_of(view, bounds), view.head)
    assert view.total_bytes % 10 == 0
    assert moved or seed
