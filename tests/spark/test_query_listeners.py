"""What listeners of this package cost a driver, and what they hold: nothing of Spark's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from pravega_spark import StreamLagListener, StreamManager, stream_frame
from pravega_spark.cli import main
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.spark.groups import group_listener
from pravega_spark.spark.groups.group_listener import GroupListener
from pravega_spark.spark.monitor import lag_listener
from pravega_spark.spark.monitor.query_lag import lag_of
from tests.harness.small_streams import write
from tests.spark.conftest import Load, finish

Make = Callable[..., StreamLog]


@contextmanager
def listening(spark: SparkSession, *listeners: StreamingQueryListener) -> Iterator[None]:
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        yield
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.02)


def connections() -> tuple[int, int]:
    """Return how many sockets this process has, and how many threads."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # that of the listing itself
            continue
    return sum(link.startswith("socket:") for link in links), threading.active_count()


def run(frame: DataFrame, checkpoint: Path) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    finish(writer.trigger(once=True).start())


@pytest.mark.versions
@pytest.mark.parametrize("kind", ["groups", "native"])
def test_queries_that_have_ended_leave_no_connection_and_no_thread(
    spark: SparkSession, root: str, make: Make, follow: Load, tmp_path: Path, kind: str
) -> None:
    write(make(), [("k", b"%d" % n) for n in range(10)])
    lag = StreamLagListener()

    def queries(first: int, last: int) -> None:
        for n in range(first, last):
            if kind == "groups":
                run(follow(readerGroup=f"s/g{n}"), tmp_path / f"c{n}")
            else:
                frame = stream_frame(spark, "s/a", root=root, startingOffsets="earliest")
                run(frame, tmp_path / f"c{n}")
        until(lambda: len({found.run_id for found in lag.latest}) == last)

    with listening(spark, GroupListener(), lag):
        queries(0, 1)
        sockets, threads = connections()
        queries(1, 5)
        until(lambda: connections()[0] <= sockets)
        until(lambda: connections()[1] <= threads)


class Seen(StreamingQueryListener):
    """Notes the events that Spark delivers."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        self.kinds.append("started")

    def onQueryProgress(self, event: Any) -> None:
        self.kinds.append("progress")

    def onQueryTerminated(self, event: Any) -> None:
        self.kinds.append("terminated")


def test_store_that_hangs_delays_no_event_of_other_listeners(
    spark: SparkSession,
    root: str,
    make: Make,
    follow: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(make(), [("k", b"%d" % n) for n in range(10)])
    back, asked = threading.Event(), []
    real, measured = open_group, lag_of

    def hang(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            asked.append(function)
            assert back.wait(100)
            return function(*given, **named)

        return call

    monkeypatch.setattr(group_listener, "open_group", hang(real))
    monkeypatch.setattr(lag_listener, "lag_of", hang(measured))
    seen, lag = Seen(), StreamLagListener()
    with listening(spark, GroupListener(), lag, seen):
        try:
            run(follow(readerGroup="s/g"), tmp_path / "c")
            until(lambda: {real, measured} <= set(asked))
            until(lambda: seen.kinds == ["started", "progress", "terminated"])
            run(follow(), tmp_path / "other")
            until(lambda: len(seen.kinds) == 6)
            assert lag.latest == ()
        finally:
            back.set()
        group = StreamManager(root).reader_group("s/g")
        until(lambda: group.lag().events == 0)
        until(lambda: len(lag.latest) == 2)


SCRIPT = """
import sys, threading
import pravega_spark as pravega
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.spark.groups import group_listener

conf = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
spark = pravega.session(delta=False, **conf)
group_listener.acknowledge_batch = lambda *given: threading.Event().wait()  # hangs for ever
group_listener.GroupListener._exit_seconds = 1.0
frame = spark.readStream.format("pravega").option("root", sys.argv[1])
frame = frame.option("startingOffsets", "earliest").option("readerGroup", "s/g").load("s/a")
writer = frame.writeStream.format("noop").option("checkpointLocation", sys.argv[2])
writer.trigger(once=True).start().awaitTermination()
print("done", flush=True)
"""


def test_process_whose_store_hangs_ends_and_says_what_sync_then_does(
    root: str, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(make(), [("k", b"%d" % n) for n in range(10)])
    checkpoint = str(tmp_path / "c")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, root, checkpoint],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "reader group s/g: the process ends" in done.stderr
    assert "pravega-spark reader-group sync --checkpoint FOLDER" in done.stderr
    assert "Traceback" not in done.stderr
    group = StreamManager(root).reader_group("s/g")
    assert group.lag().events == 10
    assert main(["reader-group", "sync", "--checkpoint", checkpoint]) == 0
    assert capsys.readouterr().out.endswith("  acknowledged\n")
    assert group.lag().events == 0
