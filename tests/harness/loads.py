"""Commits, statistics and streams for tests of automatic scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pravega_spark.config.policies import ScalingPace, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.layout.epoch_changes import first_epoch
from pravega_spark.engine.log.actions import Body, Commit, parse_commit
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import SEGMENT_PREFIX, SegmentRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.scaling.rates import Averages, SegmentRates, StreamRates, window_weights
from pravega_spark.values.segments import Epoch, parse_segment
from tests.harness.fake_runtime import NOW_MS, FakeRuntime
from tests.harness.small_streams import make_stream, write

PACE = ScalingPace()
BY_EVENTS = ScalingPolicy.by_event_rate(100, 4, 1)
BY_BYTES = ScalingPolicy.by_data_rate(100, 4, 1)
SECOND, MINUTE = 1_000, 60_000


def commit(
    version: int,
    time_ms: int,
    rows: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    domains: Mapping[str, str | None] | None = None,
    transactions: list[dict[str, Any]] | None = None,
    operation: str = "APPEND",
) -> Commit:
    """Return a commit as it is read from a log, with events by segment (``{"0#0": 12}``)."""
    rows, sizes = rows or {}, sizes or {}
    metrics = {
        "rowsBySegment": ",".join(f"{s}={n}" for s, n in rows.items()),
        "bytesBySegment": ",".join(f"{s}={n}" for s, n in sizes.items()),
    }
    records = {
        f"{SEGMENT_PREFIX}{parse_segment(s)}": SegmentRecord(parse_segment(s)).encode()
        for s in rows
    }
    body = Body(operation, {}, metrics, domains={**records, **(domains or {})})
    if transactions is not None:
        body.parameters = {"transactions": transactions}
    return parse_commit(version, body.encode(f"token{version}", time_ms), "here", light=True)


def rates_of(
    segments: Mapping[int, SegmentRates],
    policy: ScalingPolicy = BY_EVENTS,
    pace: ScalingPace = PACE,
    time_ms: int = NOW_MS,
) -> StreamRates:
    """Return rates as of version 0, of segments by number."""
    return StreamRates(pace, 0, "token0", time_ms, 1, 0, policy, dict(segments))


def segment_rates(
    *,
    age_ms: int = 2 * 60 * MINUTE,
    averages: Averages = (0.0, 0.0, 0.0, 0.0),
    reported_ms: int | None = None,
    up_ms: int | None = None,
    down_ms: int | None = None,
    written_ms: int | None = None,
    now_ms: int = NOW_MS,
) -> SegmentRates:
    """Return statistics of a segment at its last tick, by default old, unmuted and not yet judged.

    The averages are exactly these, in events a second and in KiB a second.
    """
    since_ms = now_ms - age_ms

    def or_since(time_ms: int | None) -> int:
        return since_ms if time_ms is None else time_ms

    made = SegmentRates.begin(since_ms)
    made.ticked_ms = now_ms
    made.written_ms = now_ms if written_ms is None else written_ms
    made.reported_ms = or_since(reported_ms)
    made.up_ms, made.down_ms = or_since(up_ms), or_since(down_ms)
    made.events = summed(averages, age_ms)
    a, b, c, d = made.events
    made.size_bytes = (a * 1024, b * 1024, c * 1024, d * 1024)
    return made


def summed(averages: Averages, age_ms: int) -> Averages:
    """Return the weighted sums that give exactly these averages at an age."""
    weights = window_weights(age_ms, PACE)
    a, b, c, d = map(_sum, averages, weights)
    return a, b, c, d


def _sum(average: float, weight: float) -> float:
    found = average * weight
    while found / weight < average:
        found = math.nextafter(found, math.inf)
    while found / weight > average:
        found = math.nextafter(found, 0)
    return found


def epoch_of(count: int) -> Epoch:
    return first_epoch(count, 0, 0, NOW_MS)


def stream_with(
    policy: ScalingPolicy, store: Store | None = None, runtime: FakeRuntime | None = None
) -> StreamLog:
    """Return a stream of a policy, with the policy's minimum of segments."""
    runtime = runtime or FakeRuntime()
    stream = make_stream(store, runtime, policy.minimum)
    lifecycle.update(stream, StreamConfiguration(policy))
    return stream


def load(
    stream: StreamLog, *, seconds: float, rate: float, keys: int = 64, every: float = 10
) -> None:
    """Write at a rate in events a second for some time, by the clock of the stream's runtime."""
    assert isinstance(stream.runtime, FakeRuntime)
    for _ in range(int(seconds / every)):
        stream.runtime.sleep(every)
        count = int(rate * every)
        write(stream, [(f"key-{i % keys}", b"e" * 100) for i in range(count)])
