"""Retention: a decision on a stream of very many chunks, and truncations small and large."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from functools import partial

from bench.cases.auto_scaling import fleet, job_seconds
from bench.harness.context import Context
from bench.harness.dataset import EVENT_BYTES
from bench.harness.figures import Figure
from bench.harness.long_stream import UnsyncedStore, long_stream
from bench.harness.measure import interleave, percentile, timed
from bench.harness.registry import Phase, benchmark
from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamCut
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import SAMPLE_PREFIX, SampleRecord, SizedCut
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.retention.retention_run import ROW_SCHEMA, decide
from pravega_spark.retention.stream_retention import options, rows_of

POLICIES = (
    RetentionPolicy.by_time("10 minutes"),
    RetentionPolicy.by_size("10 KB"),
    RetentionPolicy.by_consumption(),
)


def opened(context: Context, name: str) -> StreamLog:
    """Return the stream as a process that never saw it has it."""
    stream = StreamLog(LocalStore(context.root), name)
    stream.log.maintain = None
    return stream


def sampled(context: Context, name: str, commits: int, count: int) -> None:
    """Give a long stream a policy, two subscribers, and a retention set of so many entries."""
    stream = opened(context, name)
    view = stream.view()
    (segment,) = view.active.segment_ids
    domains: dict[str, str | None] = {}
    for number in range(1, count + 1):
        version = number * commits // (count + 1)
        commit = stream.log.reader.commit(version, light=True)
        assert commit is not None
        size = version * EVENT_BYTES
        tail = SizedCut({segment: version}, {segment: size})
        record = SampleRecord(version, commit.timestamp_ms, size, tail)
        domains[f"{SAMPLE_PREFIX}{version}"] = record.encode()
    stream.log.commit(lambda _: (Body("SAMPLE", domains=domains), None))
    age_ms = view.timestamp_ms - view.record.created_ms
    policy = RetentionPolicy.by_time(age_ms / 3_000, age_ms / 1_500)
    lifecycle.update(stream, StreamConfiguration(ScalingPolicy.fixed(1), policy))
    for group, offset in (("bench/slow", commits // 4), ("bench/fast", commits // 2)):
        subscribe(stream, group, 0)
        publish(stream, group, 0, StreamCut(name, view.life, {segment: offset}))
    checkpointing.maintain(stream.log.reader, stream.view().version)


@benchmark(Phase.CHANGES_SHARED_INPUT)
def retention_decision(context: Context) -> Iterator[Figure]:
    """What would go, what stays and who holds it: the stream is opened anew each time."""
    commits, samples = context.size(100_000, 600), context.size(1_000, 20)
    name = long_stream(context, commits)
    sampled(context, name, commits, samples)
    now_ms = opened(context, name).view().timestamp_ms
    sides = {
        "decide": lambda: 1e3 * timed(lambda: decide(opened(context, name), now_ms=now_ms)),
        "open": lambda: 1e3 * timed(opened(context, name).view),
    }
    found = interleave(context.size(15, 2), sides)
    ours, peer = found["decide"], found["open"]
    yield Figure(
        f"one retention decision, stream of {commits:,} chunks and {samples:,} retention-set "
        "entries",
        statistics.median(ours),
        "ms",
        "opening the stream alone",
        statistics.median(peer),
        statistics.median(a / b for a, b in zip(ours, peer, strict=True)),
        note=f"with two subscribers and both limits; p90 {percentile(ours, 0.9):.0f} ms",
        limited_by="opening; the commits between two samples, for each place that is looked up",
    ).within(at_most=100.0)
    yield from _large(context, name, commits)


@benchmark(Phase.SPARK)
def retention_job(context: Context) -> Iterator[Figure]:
    """The job of retention over streams of 30 commits, as ``jobs/retention.py`` maps them.

    A third each by time, by size and by consumption, with two subscribers; all have to truncate.
    """
    root, names = fleet(context, context.size(1_000, 20), "retained")
    store = UnsyncedStore(root)
    for number, name in enumerate(names):
        stream = StreamLog(store, name)
        stream.log.maintain = None
        view = stream.view()
        lifecycle.update(stream, StreamConfiguration(ScalingPolicy.fixed(2), POLICIES[number % 3]))
        for group, part in (("bench/slow", 2), ("bench/fast", 1)):
            tail = {s: offset // part for s, offset in view.tail.positions.items()}
            subscribe(stream, group, 0)
            publish(stream, group, 0, StreamCut(name, view.life, tail))
    os.sync()  # so that no measurement pays for this
    work = partial(rows_of, options=options(), dry_run=False, limit_seconds=600.0)
    floor, first, again, rows = job_seconds(context, root, names, work, ROW_SCHEMA)
    truncated = sum(row["version"] is not None for row in rows)
    assert truncated == len(names), f"{truncated} of {len(names)} streams were truncated"
    yield Figure(
        f"jobs/retention.py over {len(names):,} streams, two cores",
        first,
        "s",
        "the same job without work",
        floor,
        first / floor,
        note=f"with {truncated:,} truncations, samples and sweeps; the next round {again:.1f} s",
        limited_by="opening the streams, and the fsyncs of truncations and samples",
    ).within(at_most=60.0)


def _large(context: Context, name: str, commits: int) -> Iterator[Figure]:
    stream = opened(context, name)
    view = stream.view()
    (segment,) = view.active.segment_ids
    cut = StreamCut(name, view.life, {segment: commits // 2})
    ours = timed(lambda: truncate(stream, cut, past_subscribers=True))
    written = stream.store.get(stream.log.reader.key(stream.view().version))
    peer = timed(lambda: stream.store.put(f"{stream.path}/_pravega/bench", written))
    yield Figure(
        f"truncation that drops {commits // 2:,} chunks",
        ours,
        "s",
        "a durable write of the commit's bytes",
        peer,
        ours / peer,
        note=f"a commit of {len(written) / 2**20:.1f} MiB, the stream opened anew",
        limited_by="the remove action that the log needs for each chunk: found, encoded, written",
    ).within(at_most=2.0)


@benchmark()
def truncation(context: Context) -> Iterator[Figure]:
    """Truncations by one chunk of a stream that has few."""
    rounds = context.size(200, 3)
    name = context.create("truncated")
    with context.manager.create_writer(name) as writer:
        for _ in range(rounds + 2):
            writer.write_event(b"x" * EVENT_BYTES)
            writer.flush()
    stream = opened(context, name)
    life = stream.view().life
    offsets = iter(range(1, rounds + 1))
    keys = iter(range(rounds))
    commit = stream.store.get(stream.log.reader.key(1))

    def cut() -> float:
        goal = StreamCut(name, life, {0: next(offsets)})
        return 1e3 * timed(lambda: truncate(stream, goal))

    def put() -> float:
        key = f"{stream.path}/_pravega/bench/{next(keys)}"
        return 1e3 * timed(lambda: stream.store.put_if_absent(key, commit))

    found = interleave(rounds, {"truncate": cut, "put": put})
    ours, peer = found["truncate"], found["put"]
    yield Figure(
        "truncation of a small stream, p50",
        statistics.median(ours),
        "ms",
        "one durable put of a commit",
        statistics.median(peer),
        statistics.median(a / b for a, b in zip(ours, peer, strict=True)),
        note=f"one chunk each time; p99 {percentile(ours, 0.99):.1f} ms",
        limited_by="the fsyncs of one commit",
    ).within(at_most=10.0)
