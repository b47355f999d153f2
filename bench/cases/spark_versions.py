"""Each Spark that the package runs on, beside its own Parquet and Delta, and beside Spark 4.2."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import Phase, benchmark
from bench.harness.version_probe import BATCHES, DELTA, MEASURES, NATIVE, PARQUET, PYTHON, Run, rows
from tests.harness.spark_environments import SPARKS, Spark

_VERSIONS = ("4.0", "4.1", "4.2", "4.3")
_BASE = "4.2"
_OLDER = ("4.0", "4.1")
_ROUNDS = {"read": 9, "write": 5, "backlog": 7, "micro-batch": 5, "first batch": 9}
_WARM = {"read": 20, "write": 3, "backlog": 3, "micro-batch": 2, "first batch": 5}
"""Rounds before those: a JVM compiles for so long, and each Spark's takes its own time for it."""
_LEAST = 0.9
_LIMIT = "what that Spark itself takes, which the ratios to its own Parquet and Delta show"
_SIDES = {NATIVE: "native frame", PYTHON: "format('pravega')"}
_PEERS = {PARQUET: "its own Parquet", DELTA: "its own Delta"}


class _Probe:
    """A process with one Spark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def measure(self, name: str) -> dict[str, Run]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("{"):
                return {side: Run(*values) for side, values in json.loads(line).items()}
        raise RuntimeError(f"the process of a Spark ended with {self._process.wait()}")


@contextmanager
def _probe(context: Context, spark: Spark) -> Iterator[_Probe]:
    folder = context.folder / f"spark-{spark.minor}"
    folder.mkdir()
    given = {
        "folder": str(folder),
        "quick": context.quick,
        "is_tenth": context.is_tenth,
        "delta": bool(spark.delta),
    }
    environment = spark.environment()
    # A JVM here compiles as that of a user does, and not as those of tests, which end soon.
    del environment["SPARK_SUBMIT_OPTS"]
    with subprocess.Popen(
        [str(spark.python), "-m", "bench.harness.version_probe", json.dumps(given)],
        cwd=Path(__file__).parents[2],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield _Probe(process)


@benchmark(Phase.SPARK)
def spark_versions(context: Context) -> Iterator[Figure]:
    """A process for each Spark, in turn: each measures its sides, and then the next one does.

    The environments are those of ``make spark-versions``.
    """
    with ExitStack() as stack:
        probes = {
            version: stack.enter_context(_probe(context, SPARKS[version])) for version in _VERSIONS
        }
        for measure in MEASURES:
            found: dict[str, dict[str, list[Run]]] = {version: {} for version in _VERSIONS}
            order = list(_VERSIONS)
            warm = context.size(_WARM[measure], 0)
            for number in range(warm + context.size(_ROUNDS[measure], 1)):
                for version in order:
                    for side, run in probes[version].measure(measure).items():
                        if number >= warm:
                            found[version].setdefault(side, []).append(run)
                order.reverse()
            for side in (NATIVE, PYTHON):
                for version in _VERSIONS:
                    if side in found[version]:
                        yield from _figures(context, measure, side, version, found)


def _figures(
    context: Context,
    measure: str,
    side: str,
    version: str,
    found: Mapping[str, Mapping[str, Sequence[Run]]],
) -> Iterator[Figure]:
    """Compare a side with that Spark's own Parquet and Delta, and with Spark 4.2."""
    is_of_events = measure in ("read", "write", "backlog")
    count, unit = (rows(context), "events") if is_of_events else (1, "batches")
    of = f"{measure} of {count:,} events" if is_of_events else measure
    name = f"Spark {version}: {of}, {_SIDES[side]}"

    def figure(
        peer: str, ours: Sequence[Run], theirs: Sequence[Run], seconds: str = "seconds"
    ) -> Figure:
        # Of a micro-batch the probe has the median time, but the processor time of its whole query.
        is_whole = measure == "micro-batch" and seconds == "processor"
        done = BATCHES if is_whole else count
        rates = [
            [done / max(getattr(run, seconds), 0.01) for run in runs] for runs in (ours, theirs)
        ]
        return Figure.of_rounds(name, rates[0], f"{unit}/s", peer, rates[1], limited_by=_LIMIT)

    ours = found[version]
    for kind, peer in _PEERS.items():
        if kind in ours:
            yield figure(peer, ours[side], ours[kind])
    if version != _BASE:
        for seconds, by in (("seconds", ""), ("processor", ", by processor time")):
            made = figure(f"Spark {_BASE}{by}", ours[side], found[_BASE][side], seconds)
            yield made.within(ratio_at_least=_LEAST) if version in _OLDER else made
