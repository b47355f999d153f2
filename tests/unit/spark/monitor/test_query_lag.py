"""The lag of a query, from progress reports in Spark's form and real streams."""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import InvalidInput, NoSuchStream, StaleIdentity
from pravega_spark.manager import StreamManager
from pravega_spark.spark.jvm import run_listener
from pravega_spark.spark.monitor.lag_listener import StreamLagListener
from pravega_spark.spark.monitor.query_lag import lag_of, query_lag
from pravega_spark.spark.source_offsets import OffsetOwner, StreamOffset, encode
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import created, scale, write


def fill(stream: StreamLog, count: int) -> None:
    write(stream, [(f"k{i}", b"12345") for i in range(count)])


def offset(root: str | None, *cuts: StreamCut) -> dict[str, Any]:
    given = {cut.stream: StreamOffset("id", cut, cut) for cut in cuts}
    return encode(given, None if root is None else OffsetOwner(root))


FOREIGN = {"topic": {"0": 17}}


def progress(*ends: Any, batch: int = 7, run: int = 2, query: int = 1) -> StreamingQueryProgress:
    """Return a progress report in PySpark's form; its offsets may be texts or JSON."""
    sources = [
        {
            "description": "PythonMicroBatchStream",
            "startOffset": "null",
            "endOffset": end,
            "latestOffset": None,
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
        }
        for end in ends
    ]
    record = {
        "id": f"00000000-0000-0000-0000-00000000000{query}",
        "runId": f"00000000-0000-0000-0000-00000000000{run}",
        "name": "copy",
        "timestamp": "2026-03-01T12:00:00.123Z",
        "batchId": batch,
        "batchDuration": 5,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": sources,
        "sink": {"description": "sink", "numOutputRows": 0},
        "numInputRows": 0,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
        "observedMetrics": {},
    }
    return StreamingQueryProgress.fromJson(record)


def test_lag_counts_events_bytes_age_and_files_over_segments_scales_and_sources(root: str) -> None:
    first, second = created(root, "s/a", segments=2), created(root, "s/b")
    for _ in range(3):
        fill(first, 40)
    begun = StreamCut("s/a", 1, {0: first.view().segment(0).next_offset, 1: 0})
    behind = first.view().segment(1).next_offset
    fill(second, 4)
    lag = lag_of(progress(offset(root, begun), FOREIGN, offset(root, second.view().tail)))
    assert [source.source for source in lag.sources] == [0, 2]
    assert lag.metrics == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": behind,
        "avgOffsetsBehindLatest": behind / 3,
        "backlogRecords": behind,
        "backlogBytes": 5 * behind,
        "backlogSeconds": lag.backlog_seconds,
        "backlogFiles": 3,
    }
    assert 0 < lag.backlog_seconds < 300
    assert (lag.name, lag.batch_id, lag.progressed.year) == ("copy", 7, 2026)
    assert lag.age_seconds < 300
    assert [source.backlog_records for source in lag.sources] == [behind, 0]
    scale(first, [0, 1], [(0.0, 1.0)])
    fill(first, 11)
    later = lag_of(progress(json.dumps(offset(root, begun))))
    assert {s.segment_id & 0xFF: s.events for s in later.segments} == {0: 0, 1: behind, 2: 11}
    assert later.backlog_files == 4


def test_truncated_events_are_not_behind(root: str) -> None:
    stream = created(root)
    fill(stream, 10)
    StreamManager(root).truncate_stream("s/a", StreamCut("s/a", 1, {0: 4}))
    assert lag_of(progress(offset(root, StreamCut("s/a", 1, {0: 1})))).backlog_records == 6


def test_query_without_progress_has_no_lag_and_one_without_our_sources_is_refused(
    root: str,
) -> None:
    created(root)
    assert query_lag(SimpleNamespace(lastProgress=None)) is None  # type: ignore[arg-type]
    for end in (FOREIGN, "null", None, "17"):
        with pytest.raises(InvalidInput, match="query copy reads no stream"):
            lag_of(progress(end))


def test_offset_of_an_old_version_needs_the_root_argument(root: str) -> None:
    fill(created(root), 3)
    old = progress(offset(None, StreamCut("s/a", 1, {0: 1})))
    with pytest.raises(InvalidInput, match="argument root"):
        lag_of(old)
    assert lag_of(old, root=root).backlog_records == 2


def test_deleted_stream_and_a_later_life_are_errors(root: str) -> None:
    manager, here = StreamManager(root), progress(offset(root, created(root).view().tail))
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    with pytest.raises(NoSuchStream):
        lag_of(here)
    created(root)
    with pytest.raises(StaleIdentity):
        lag_of(here)


def run(number: int) -> Any:
    """Return an event that names a run, as idle and terminated events do."""
    return SimpleNamespace(runId=f"00000000-0000-0000-0000-00000000000{number}")


@pytest.fixture(autouse=True)
def idle_threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_listener, "_IDLE_SECONDS", 0.05)


def settle(listener: StreamLagListener) -> None:
    """Wait until the threads of the queries have handled all events."""
    deadline = time.monotonic() + 60
    assert all(run.wait(deadline) for run in list(listener._runs.values()))


def test_listener_keeps_the_latest_and_a_bounded_history(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    fill(stream, 10)
    listener = StreamLagListener(history=3)
    with caplog.at_level(logging.INFO, "pravega_spark.spark.monitor.lag_listener"):
        for batch in range(4):
            end = offset(root, StreamCut("s/a", 1, {0: batch}))
            listener.onQueryProgress(QueryProgressEvent(progress(end, FOREIGN, batch=batch)))
        settle(listener)
    assert "query copy, batch 3: 7 events, 35 B" in caplog.messages[-1]
    assert [lag.backlog_records for lag in listener.history] == [9, 8, 7]
    (latest,) = listener.latest
    assert (latest.batch_id, latest.backlog_records) == (3, 7)
    for name in (latest.name, latest.query_id, latest.run_id):
        assert name is not None
        assert listener.find(name) == latest
    assert listener.find("unknown") is None
    table = listener.to_arrow()
    assert table.column("backlogRecords").to_pylist() == [9, 8, 7]
    assert table.column("queryId").to_pylist() == [latest.query_id] * 3
    assert table.column("source").to_pylist() == [0] * 3
    fill(stream, 5)
    listener.onQueryIdle(run(2))
    settle(listener)
    assert [lag.backlog_records for lag in listener.latest] == [12], "an idle query falls behind"
    kept = listener.latest
    listener.onQueryTerminated(run(2))
    listener.onQueryIdle(run(2))
    settle(listener)
    assert listener.latest == kept, "the measurement is kept and not repeated after the end"
    assert len(listener.history) == 3


def test_listener_never_fails_a_query(root: str, caplog: pytest.LogCaptureFixture) -> None:
    listener = StreamLagListener()
    listener.onQueryProgress(QueryProgressEvent(progress(FOREIGN, "null")))
    assert caplog.messages == [], "queries of other sources are ignored"
    listener.onQueryProgress(
        QueryProgressEvent(progress(offset(root, StreamCut("s/none", 1, {0: 0}))))
    )
    settle(listener)
    assert "failed to measure the lag of query 00000000-0000-0000-0000-000000000001" in caplog.text
    assert listener.latest == ()
