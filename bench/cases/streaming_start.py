"""The first batch of a streaming query beside Delta's own source, in JVMs of several origins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.empty_source import ROWS
from bench.harness.figures import Figure
from bench.harness.first_batches import FirstBatches, Place, first_batches
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import stream_frame
from bench.harness.spark_session import spark_settings
from pravega_spark.spark.session import (
    CATALOG,
    DELTA_CATALOG,
    DELTA_EXTENSION,
    EXTENSIONS,
    PACKAGES,
)
from pravega_spark.spark.worker_python import DRIVER, INTERPRETER, SCRIPT, WORKERS
from pravega_spark.values.limits import DELTA_PACKAGE

_BOUND = {
    "delta": "the Python process that Spark starts for the source of each query: an empty source "
    "waits for it, too, and for PySpark's imports, which are slow from the zip archive",
    "empty": "the imports of the package, without which nothing is planned",
}
_DELTA = {PACKAGES: DELTA_PACKAGE, EXTENSIONS: DELTA_EXTENSION, CATALOG: DELTA_CATALOG}


@dataclass(frozen=True)
class _Jvm:
    """A JVM of a process of its own: who starts it, and with which Python in the environment."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    is_own: bool = True

    def measure(self, context: Context, place: Place) -> FirstBatches:
        """Start it and measure there."""
        left_out = (WORKERS, DRIVER, INTERPRETER)
        environment = {key: text for key, text in os.environ.items() if key not in left_out}
        settings = spark_settings(Path(place.folder)) | ({} if self.is_own else _DELTA)
        given = {
            "is_own": self.is_own,
            "settings": settings,
            "place": asdict(place),
            "rounds": context.size(7, 1),
        }
        command = [sys.executable, "-m", "bench.harness.first_batches", json.dumps(given)]
        done = subprocess.run(
            command,
            env=environment | self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return FirstBatches(**json.loads(done.stdout.splitlines()[-1]))


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
        yield from _figures(jvm.name, jvm.measure(context, place(str(number))))


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
    """Compare ours with Delta's source, and with a Python source that does nothing."""
    way = "PySpark from the zip archive" if found.from_archive else "the installed PySpark"
    for side, peer in (("delta", "Delta's readStream"), ("empty", "an empty Python source")):
        yield Figure.of_rounds(
            f"first batch, {jvm}, beside {peer}",
            found.ms["ours"],
            "ms",
            peer,
            found.ms[side],
            note=f"{way}; {found.compare('ours', side)}",
            limited_by=_BOUND[side],
        ).within(ratio_at_most=1.0 if side == "delta" else 1.25)
