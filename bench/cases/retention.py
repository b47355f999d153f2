"""Retention: the decision on a stream of very many chunks, truncations, and the job."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.dataset import EVENT_BYTES
from bench.harness.figures import Figure
from bench.harness.fleet import fleet, run_job
from bench.harness.long_stream import long_stream
from bench.harness.measure import Side, interleave, percentile, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamCut
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import SAMPLE_PREFIX, SampleRecord, SizedCut
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.retention.run import explain_retention

POLICIES = (
    RetentionPolicy.by_time("10 minutes"),
    RetentionPolicy.by_size("10 KB"),
    RetentionPolicy.by_consumption(),
)


def opened(context: Context, name: str) -> StreamLog:
    """Return the stream without cached state, as in a new process."""
    stream = StreamLog(LocalStore(context.root), name)
    stream.log.maintain = None
    return stream


def prepare(context: Context, name: str, commits: int, count: int) -> None:
    """Give a long stream a policy, two subscribers, and a retention set of ``count`` entries."""
    stream = opened(context, name)
    view = stream.view()
    (segment,) = view.active.segment_ids
    domains: dict[str, str | None] = {}
    reader = stream.log.reader
    times = {c.version: c.timestamp_ms for c in reader.span(-1, view.version, light=True)}
    for version, time_ms in times.items():  # the build makes more commits than milliseconds
        os.utime(f"{context.root}/{reader.key(version)}", (time_ms / 1e3, time_ms / 1e3))
    for number in range(1, count + 1):
        version = number * commits // (count + 1)
        size = version * EVENT_BYTES
        tail = SizedCut({segment: version}, {segment: size})
        record = SampleRecord(version, times[version], size, tail)
        domains[f"{SAMPLE_PREFIX}{version}"] = record.encode()
    stream.log.commit(lambda _: (Body("SAMPLE", domains=domains), None))
    age_seconds = (view.timestamp_ms - view.record.created_ms) / 1_000
    limits = f"{age_seconds / 3:.3f} s", f"{age_seconds / 1.5:.3f} s"
    policy = RetentionPolicy.by_consumption(*limits)
    lifecycle.update(stream, StreamConfiguration(ScalingPolicy.fixed(1), policy))
    for group, offset in (("bench/slow", commits // 4), ("bench/fast", commits // 2)):
        subscribe(stream, group, 0)
        publish(stream, group, 0, StreamCut(name, view.life, {segment: offset}))
    checkpoint.maintain(stream.log.reader, stream.view().version)


@benchmark(Phase.CHANGES_SHARED_INPUT)
def retention_decision(context: Context) -> Iterator[Figure]:
    """What a truncation would delete, and what holds it back; the stream is opened each time."""
    commits, samples = context.size(100_000, 600), context.size(1_000, 20)
    few, fewer = commits // 10, samples // 10
    name, ours = _decide(context, commits, samples)
    _, peer = _decide(context, few, fewer)
    opening = 1e3 * min(timed(opened(context, name).view) for _ in range(3))
    rounds = context.size(15, 2)
    found = interleave(rounds, {"ours": ours, "peer": peer})
    yield Figure.of_rounds(
        f"a retention decision, {commits:,} chunks and {samples:,} samples",
        found["ours"],
        "ms",
        f"{few:,} chunks and {fewer:,} samples",
        found["peer"],
        note=f"with two subscribers and both limits; p90 {percentile(found['ours'], 0.9):.0f} ms; "
        f"opening the stream alone {opening:.1f} ms",
        limited_by="for each cut that is looked up, the commits between two samples, which are "
        "read and parsed one by one, once a decision",
    ).within(at_most=15.0, ratio_at_most=3.0)
    yield from _large_truncation(context, name, commits)


def _decide(context: Context, commits: int, samples: int) -> tuple[str, Side]:
    """Return a long stream, and the time of one decision on it in ms."""
    name = long_stream(context, commits)
    prepare(context, name, commits, samples)
    now_ms = opened(context, name).view().timestamp_ms
    return (
        name,
        lambda: 1e3 * timed(lambda: explain_retention(opened(context, name), now_ms=now_ms)),
    )


@benchmark(Phase.SPARK)
def retention_job(context: Context) -> Iterator[Figure]:
    """The retention job over streams of 30 commits each.

    The policies are by time, by size and by consumption, a third of the streams each. All streams
    have two subscribers, and all must be truncated.
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
    os.sync()  # so that no measurement pays for these writes
    job = run_job(context, root, names, MaintenanceKind.RETENTION, MaintenanceKind.SWEEPING)
    kept = (found for found in job.outcomes if found.kind is MaintenanceKind.RETENTION)
    truncated = sum(found.figures["truncated"] for found in kept)
    assert truncated == len(names), f"{truncated} of {len(names)} streams were truncated"
    yield Figure(
        f"jobs/retention.py over {len(names):,} streams, two cores",
        job.first,
        "s",
        "the same job without work",
        job.floor,
        job.first / job.floor,
        note=f"with {truncated:,} truncations, samples and sweeps; "
        f"the next round {job.again:.1f} s",
        limited_by="opening the streams, and the fsyncs of truncations and samples",
    ).within(at_most=60.0)


def _large_truncation(context: Context, name: str, commits: int) -> Iterator[Figure]:
    """One truncation at the middle of the stream."""
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
        note=f"a commit of {len(written) / 2**20:.1f} MiB; the stream was just opened",
        limited_by="reading four columns of the checkpoint's files, and a line for each removal",
    ).within(at_most=0.5)


@benchmark()
def truncation(context: Context) -> Iterator[Figure]:
    """Truncations of one chunk each on a stream of few chunks."""
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
    yield Figure.of_rounds(
        "truncation of a small stream, p50",
        found["truncate"],
        "ms",
        "one durable put of a commit",
        found["put"],
        note=f"one chunk each time; p99 {percentile(found['truncate'], 0.99):.1f} ms",
        limited_by="the fsyncs of one commit",
    ).within(at_most=10.0)
