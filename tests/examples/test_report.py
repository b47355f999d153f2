"""The demo's report and picture, of runs that went well and of runs that did not."""

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
from flights.replay import Story
from flights.report import Run, print_report, summary
from flights.retention import Retained
from flights.workspace import Place
from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager

FINDINGS = (
    Finding("exactly_once", True, "1,000 events, each once"),
    Finding("in_order", True, "16 keys in 4 segments"),
    Finding("aggregate_matches", True, "900 rows, each the same"),
    Finding("retention_exact", True, "980 consumed events gone, 20 unread ones kept"),
)


def story() -> Story:
    """Ten seconds: about 100 events in each but three, with a kill at 4 s."""
    written = [0, 0, 100, 200, 300, 300, 400, 600, 800, 980]
    return Story(
        samples=[(float(at), count, count // 2) for at, count in enumerate(written)],
        reads=[(2.0, 4.0, 300), (6.0, 9.0, 700)],
        killed_at=4.5,
        killed_pid=4_711,
        killed_batch=3,
        killed_durable=True,
        ingested_at=9.0,
        read_at=10.0,
    )


def retained(root: Path) -> Retained:
    """A stream that holds 20 events for one who has read none of it since it subscribed."""
    manager = StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream(
        "nyc/flights", StreamConfiguration(retention=RetentionPolicy.by_consumption())
    )
    manager.create_reader_group("nyc/dashboards", ["nyc/flights"], retention="automatic")
    with manager.create_writer("nyc/flights") as writer:
        writer.write_events([b"x"] * 20)
    return Retained(980, manager.retention("nyc/flights").explain())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    dataset = load_flights(limit=1_000)
    root = tmp_path_factory.mktemp("root")
    place = Place(
        str(root), "nyc/flights", "nyc/dashboards", 4, 350, tmp_path_factory.mktemp("work")
    )
    table = expected_delays(dataset)
    return Run(dataset, place, [98] * 10, story(), FINDINGS, table, retained(root), 12.0)


def printed(run: Run) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=100), run)
    return out.getvalue()


def test_a_run_whose_checks_held_says_so(run: Run) -> None:
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
    assert "SIGKILL to the ingest in batch 3, already in the stream" in printed(run)
    assert "held by subscriber nyc/dashboards" in printed(run)


@pytest.mark.parametrize("place", range(4))
def test_one_check_that_did_not_hold_fails_the_run(run: Run, place: int) -> None:
    findings = list(FINDINGS)
    findings[place] = Finding(findings[place].name, False, "1 lost [row 7]")
    failed = replace(run, findings=findings)
    assert not failed.held
    assert json.loads(summary(failed))[findings[place].name] is False
    assert "1 lost [row 7]" in printed(failed)
    assert findings[place].name in failed.verdict


def test_a_run_that_killed_nothing_is_no_success(run: Run) -> None:
    calm = replace(run, story=replace(story(), killed_at=None))
    assert not calm.held
    assert "ended before it could be killed" in printed(calm)


def test_a_run_that_lost_events_is_still_reported(run: Run) -> None:
    samples = [(at, min(written, 900), read) for at, written, read in story().samples]
    assert run.replayed in [written for _, written, _ in story().samples]
    assert json.loads(summary(replace(run, story=replace(story(), samples=samples))))


def test_the_picture_of_flights_and_of_any_events_is_drawn(run: Run, tmp_path: Path) -> None:
    hour = datetime(2024, 1, 1, tzinfo=timezone.utc)
    keys = [f"sensor-{number}" for number in range(30)]
    counts = pa.table({"key": keys, "hour": [hour] * 30, "events": list(range(30))})
    for name, table in (("flights", run.table), ("events", counts)):
        path = tmp_path / f"{name}.png"
        draw(
            path,
            title=name,
            subtitle="",
            story=story(),
            table=table,
            retained=run.retained,
            names=airlines(),
        )
        with Image.open(path) as image:
            assert image.size == (1_820, 975)
            assert len(image.convert("RGB").getcolors(1 << 20) or []) > 100
