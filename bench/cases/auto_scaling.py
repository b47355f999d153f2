"""Auto-scaling of very many streams: one decision in plain Python, and the job over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.fleet import COMMITS, fleet, run_job
from bench.harness.measure import percentile, timed
from bench.harness.registry import Phase, benchmark
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.scaling.auto import explain_scaling


@benchmark(Phase.SPARK)
def auto_scale_decision(context: Context) -> Iterator[Figure]:
    """First decisions on streams of 30 commits each; then the job on the same streams.

    One benchmark measures both, because the streams' rates fall as time passes.
    """
    root, names = fleet(context, context.size(1_000, 20), "fleet")
    store = LocalStore(root)
    ours: list[float] = []
    floor: list[float] = []
    for name in names:
        floor.append(1e3 * timed(partial(_read_commits, store, name)))
        ours.append(1e3 * timed(partial(_decide, store, name)))
    yield Figure.of_rounds(
        "auto-scale decision on a stream, plain Python",
        ours,
        "ms",
        f"reading its {COMMITS + 1} commits",
        floor,
        note=f"every stream is opened for its decision; p99 {percentile(ours, 0.99):.1f} ms",
        limited_by="the commits since the last decision: each is read, checked and folded",
    ).within(at_most=10.0)
    yield from _job(context, root, names)


def _decide(store: LocalStore, name: str) -> None:
    explain_scaling(StreamLog(store, name))


def _read_commits(store: LocalStore, name: str) -> None:
    for version in range(COMMITS + 1):
        store.get(f"{name}/events/_delta_log/{version:020d}.json")


def _job(context: Context, root: str, names: list[str]) -> Iterator[Figure]:
    """The decisions on executors, with the scales that follow from them."""
    job = run_job(context, root, names, MaintenanceKind.SCALING)
    splits = sum(found.figures["splits"] for found in job.outcomes)
    yield Figure(
        f"auto-scale decision over {len(names):,} streams",
        job.first,
        "s",
        "the same job without work",
        job.floor,
        job.first / job.floor,
        note=f"with {splits:,} splits committed; the next round {job.again:.1f} s",
        limited_by="the decisions themselves and the fsyncs of the splits, on two cores",
    ).within(at_most=60.0)
