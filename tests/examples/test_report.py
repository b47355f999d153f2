"""The report and the picture of successful and of failed runs of the demo."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from rich.console import Console

from flights.checks import Finding
from flights.delays import expected_delays
from flights.nycflights import airlines, load_flights
from flights.picture import draw
from flights.replay import Timeline
from flights.report import Run, print_report, summary
from flights.retention import RetentionResult
from flights.typed import TypedResult
from flights.workspace import Workspace
from pravega_spark import CompactionResult, RetentionPolicy, StreamConfiguration, StreamManager

FINDINGS = (
    Finding("exactly_once", True, "1,000 events, each once"),
    Finding("in_order", True, "16 keys in 4 segments"),
    Finding("aggregate_matches", True, "900 rows, each the same"),
    Finding("retention_exact", True, "980 consumed events deleted, 20 unread ones kept"),
)


def timeline() -> Timeline:
    """Ten seconds with about 100 events each, except three; the kill is at 4.5 s."""
    written = [0, 0, 100, 200, 300, 300, 400, 600, 800, 980]
    return Timeline(
        samples=[(float(at), count, count // 2) for at, count in enumerate(written)],
        reads=[(2.0, 4.0, 300), (6.0, 9.0, 700)],
        killed_at=4.5,
        killed_pid=4_711,
        killed_batch=3,
        killed_durable=True,
        ingested_at=9.0,
        read_at=10.0,
    )


def retained(root: Path) -> RetentionResult:
    """A stream that keeps 20 events for a subscriber that has read none of them."""
    manager = StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream(
        "nyc/flights", StreamConfiguration(retention=RetentionPolicy.by_consumption())
    )
    manager.create_reader_group("nyc/dashboards", ["nyc/flights"], retention="automatic")
    with manager.create_writer("nyc/flights") as writer:
        writer.write_events([b"x"] * 20)
    return RetentionResult(980, manager.retention("nyc/flights").explain())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    dataset = load_flights(limit=1_000)
    root = tmp_path_factory.mktemp("root")
    workspace = Workspace(
        str(root), "nyc/flights", "nyc/dashboards", 4, 350, tmp_path_factory.mktemp("work")
    )
    table = expected_delays(dataset)
    left, compacted = (
        retained(root),
        CompactionResult("nyc/flights", files_before=90, files_after=7),
    )
    return Run(dataset, workspace, [98] * 10, timeline(), FINDINGS, table, compacted, left, 12.0)


def printed(run: Run) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=100), run)
    return out.getvalue()


@pytest.mark.medium
def test_run_whose_checks_hold_reports_success(run: Run) -> None:
    assert run.held
    found = json.loads(summary(run))
    assert found["events"] == 1_000
    assert found["exactly_once"] is found["in_order"] is found["aggregate_matches"] is True
    assert found["events_per_second"] == 98
    assert found["write_events_per_second"] == round(880 / (9 - 2 - 1.5))
    assert found["retention"] == {
        "truncated_events": 980,
        "kept_events": 20,
        "holder": "subscriber nyc/dashboards",
    }
    assert found["compaction"] == {"files_before": 90, "files_after": 7}
    assert "90 -> 7 files" in printed(run)
    assert "SIGKILL to the ingest in batch 3, already in the stream" in printed(run)
    assert "held by subscriber nyc/dashboards" in printed(run)


@pytest.mark.parametrize("number", range(4))
def test_check_that_does_not_hold_fails_the_run(run: Run, number: int) -> None:
    findings = list(FINDINGS)
    findings[number] = Finding(findings[number].name, False, "1 lost [row 7]")
    failed = replace(run, findings=findings)
    assert not failed.held
    assert json.loads(summary(failed))[findings[number].name] is False
    assert "1 lost [row 7]" in printed(failed)
    assert findings[number].name in failed.verdict


def test_report_has_the_times_of_the_typed_stream(run: Run) -> None:
    assert json.loads(summary(run))["typed_seconds"] is None
    seconds = {"write": 0.4, "columns": 0.6, "json": 2.5}
    finding = Finding("typed_matches", True, "16 rows, each the same")
    typed = replace(run, typed=TypedResult("nyc/flights-typed", seconds, finding))
    assert json.loads(summary(typed))["typed_seconds"] == seconds
    text = printed(typed)
    assert "columns 0.6 s, JSON 2.5 s" in text
    assert "all into nyc/flights-typed (0.4 s)" in text


def test_run_without_a_kill_fails(run: Run) -> None:
    calm = replace(run, timeline=replace(timeline(), killed_at=None))
    assert not calm.held
    assert "ended before it could be killed" in printed(calm)


def test_run_that_lost_events_is_reported(run: Run) -> None:
    samples = [(at, min(written, 900), read) for at, written, read in timeline().samples]
    assert run.replayed in [written for _, written, _ in timeline().samples]
    assert json.loads(summary(replace(run, timeline=replace(timeline(), samples=samples))))


@pytest.mark.medium
def test_picture_of_flights_and_of_any_events_is_drawn(run: Run, tmp_path: Path) -> None:
    hour = datetime(2024, 1, 1, tzinfo=timezone.utc)
    keys = [f"sensor-{number}" for number in range(30)]
    counts = pa.table({"key": keys, "hour": [hour] * 30, "events": list(range(30))})
    for name, table in (("flights", run.table), ("events", counts)):
        path = tmp_path / f"{name}.png"
        draw(
            path,
            title=name,
            subtitle="",
            timeline=timeline(),
            table=table,
            retained=run.retained,
            names=airlines(),
        )
        with Image.open(path) as image:
            assert image.size == (1_820, 975)
            assert len(image.convert("RGB").getcolors(1 << 20) or []) > 100
