"""The start of a streaming query, in JVMs of several origins: its time, and on a busy machine."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.empty_source import ROWS
from bench.harness.figures import Figure
from bench.harness.first_batches import FirstBatches, Place, first_batches
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import stream_frame
from bench.harness.spark_session import spark_settings
from pravega_spark.spark.jars import PACKAGES, delta_package
from pravega_spark.spark.session import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
)
from pravega_spark.spark.versions import spark_release
from pravega_spark.spark.worker_python import DRIVER, INTERPRETER, SCRIPT, WORKERS

_BOUND = {
    "delta": "the Python process that Spark starts for each query's source, and its imports of "
    "PySpark from the zip archive",
    "empty": "the imports of the package, without which nothing is planned",
}
_DELTA = {
    PACKAGES: str(delta_package(spark_release())),
    EXTENSIONS: DELTA_EXTENSION,
    CATALOG: DELTA_CATALOG,
}


@dataclass(frozen=True)
class _Jvm:
    """A JVM of a process of its own: who starts it, and with which Python in the environment."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    is_own: bool = True
    settings: dict[str, str] = field(default_factory=dict)

    def run(self, module: str, folder: Path, **given: Any) -> Any:
        """Start it, run a module there, and return what it printed."""
        left_out = (WORKERS, DRIVER, INTERPRETER)
        environment = {key: text for key, text in os.environ.items() if key not in left_out}
        settings = spark_settings(folder) | self.settings | ({} if self.is_own else _DELTA)
        given |= {"is_own": self.is_own, "settings": settings}
        done = subprocess.run(
            [sys.executable, "-m", module, json.dumps(given)],
            env=environment | self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])


@benchmark(Phase.SPARK)
def first_batch(context: Context) -> Iterator[Figure]:
    """A query over 100 events in a warm session, from ``start()`` until it has processed them."""
    stream = context.create("started")
    with context.manager.create_writer(stream) as writer:
        writer.write_events(table(ROWS).column("event").to_pylist(), "key").result()
    delta = str(context.folder / "started-delta")
    stream_frame(context, stream).write.format("delta").save(delta)

    def place(name: str) -> Place:
        folder = context.folder / f"started-{name}"
        folder.mkdir()
        return Place(context.root, stream, delta, str(folder))

    before = context.size(25, 1)
    found = first_batches(context.spark, place("here"), context.size(7, 1), before)
    yield from _figures(f"JVM by session() after {before} queries of each", found)
    for number, jvm in enumerate(_jvms(context.folder)):
        at = place(str(number))
        rounds = context.size(7, 1)
        module = "bench.harness.first_batches"
        measured = jvm.run(module, Path(at.folder), place=asdict(at), rounds=rounds)
        yield from _figures(jvm.name, FirstBatches(**measured))


def _jvms(folder: Path) -> Iterator[_Jvm]:
    """The interpreter's environment is also reached by a link, which makes another path of it."""
    python = Path(sys.executable)
    link = folder / "environment"
    link.symlink_to(python.parent.parent)
    by_another_path = str(link / python.parent.name / python.name)
    yield _Jvm("new JVM, by session()")
    yield _Jvm("new JVM, by session(), PYSPARK_PYTHON by another path", {WORKERS: by_another_path})
    yield _Jvm("new JVM, by others", {WORKERS: sys.executable}, is_own=False)
    with_script = {WORKERS: SCRIPT, INTERPRETER: sys.executable}
    yield _Jvm("new JVM, by others, with the start script", with_script, is_own=False)


def _figures(jvm: str, found: FirstBatches) -> Iterator[Figure]:
    """Compare ours with Delta's source, and with a Python source that does nothing.

    From the archive even that source, of which ours is 1.02x, takes 1.19x of Delta's.
    """
    way = "PySpark from the zip archive" if found.from_archive else "the installed PySpark"
    for side, peer in (("delta", "Delta's readStream"), ("empty", "an empty Python source")):
        yield Figure.of_rounds(
            f"first batch, {jvm}",
            found.ms["ours"],
            "ms",
            peer,
            found.ms[side],
            note=f"{way}; {found.compare('ours', side)}",
            limited_by=_BOUND[side],
        ).within(ratio_at_most=1.0 if side == "delta" and not found.from_archive else 1.25)


@benchmark(Phase.SPARK)
def starts_beside_busy_processes(context: Context) -> Iterator[Figure]:
    """Starts of a query while others take the cores of its driver, by the Python that runs."""
    stream = context.create("busy")
    with context.manager.create_writer(stream) as writer:
        writer.write_events([b"event"], "key").result()
    cluster = {"spark.master": "local-cluster[1,1,1024]", "spark.executor.memory": "1g"}
    plain, script = {WORKERS: sys.executable}, {WORKERS: SCRIPT, INTERPRETER: sys.executable}
    processes = [context.size(10, 1), context.size(20, 2)]
    for jvm in (
        _Jvm("local, by others", plain, is_own=False),
        _Jvm("local, by session()"),
        _Jvm("a cluster", plain, is_own=False, settings=cluster),
        _Jvm("a cluster, with the start script", script, is_own=False, settings=cluster),
    ):
        folder = context.folder / f"busy-{jvm.name}"
        folder.mkdir()
        starts = context.size(6, 2)
        module = "bench.harness.busy_starts"
        given = {"root": context.root, "stream": stream, "folder": str(folder)}
        found = jvm.run(module, folder, place=given, processes=processes, starts=starts)
        for busy, seconds in found.items():
            done = [each for each in seconds if each is not None]
            yield Figure(
                f"query start beside {busy} busy processes, {jvm.name}",
                statistics.median(done) if done else math.inf,
                "s",
                note=f"{starts - len(done)} of {starts} fail",
                limited_by="Spark gives a new Python process 10 s, and no setting changes that",
            )
