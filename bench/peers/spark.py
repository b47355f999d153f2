"""What is measured through Spark: in one session for all peers, with equal frames and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from bench.harness.context import Context
from bench.harness.measure import timed
from bench.harness.spark_frames import cached_events, drain, median_batch_ms, run_to_end
from bench.harness.spark_session import spark_setting
from bench.peers.peer import Found, Limit, Place

_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_FILE_SYSTEM_BASED = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
BATCH_ROWS = 100
_numbers = count()


def frame(place: Place) -> Any:
    """Return a cached frame of routing keys and events, as many as a peer is filled with."""

    def make(context: Context) -> Any:
        return cached_events(context, place.rows)

    return place.context.shared("peers' frame", make)


def write(place: Place, save: Callable[[Any], None]) -> Found:
    rows = frame(place)
    return {"rate": place.rows / timed(lambda: save(rows))}


def read(place: Place, rows: Any) -> Found:
    return {"rate": place.rows / timed(lambda: drain(rows))}


def backlog(place: Place, rows: Any) -> Found:
    """Run a query from its start to its end, which reads all events into no sink."""
    queries: list[Any] = []
    with spark_setting(place.context.spark, _MANAGER, _FILE_SYSTEM_BASED):
        seconds = timed(
            lambda: queries.append(run_to_end(place.context, rows, lambda w: w.format("noop")))
        )
    found = sum(progress["numInputRows"] for progress in queries[0].recentProgress)
    assert found == place.rows, f"{found} of {place.rows} rows"
    return {"rate": place.rows / seconds}


def micro_batches(place: Place, rows: Any, sink: Callable[[Any], Any], limit: Limit) -> Found:
    """Run a query over a source with so many batches of 100 rows; without the first three."""
    with spark_setting(place.context.spark, _MANAGER, _FILE_SYSTEM_BASED):
        query = run_to_end(place.context, rows, sink)
    return {"p50": median_batch_ms(query, limit.calls, BATCH_ROWS)}


@contextmanager
def running(place: Place, rows: Any, sink: Callable[[Any], Any]) -> Iterator[None]:
    """Run a query that starts a micro-batch as soon as there is news, inside a ``with`` block."""
    checkpoint = str(place.folder / f"checkpoint-running-{next(_numbers)}")
    with spark_setting(place.context.spark, _MANAGER, _FILE_SYSTEM_BASED):
        query = sink(rows.writeStream).option("checkpointLocation", checkpoint).start()
    try:
        yield
        assert query.exception() is None, query.exception()
    finally:
        query.stop()
