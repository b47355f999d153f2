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

from demo_checks import Finding
from demo_delays import expected_delays
from demo_flights import airlines, load_flights
from demo_picture import draw
from demo_place import Place
from demo_replay import Story
from demo_report import Run, print_report, summary

FINDINGS = (
    Finding("exactly_once", True, "1,000 events, each once"),
    Finding("in_order", True, "16 keys in 4 segments"),
    Finding("aggregate_matches", True, "900 rows, each the same"),
)


def story() -> Story:
    """Ten seconds: a batch of 100 each second but three, with a kill at 4 s."""
    written = [0, 0, 100, 200, 300, 300, 400, 600, 800, 1_000]
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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    dataset = load_flights(limit=1_000)
    place = Place("file:///root", "nyc/flights", 4, 350, tmp_path_factory.mktemp("work"))
    return Run(dataset, place, [100] * 10, story(), FINDINGS, expected_delays(dataset), 12.0)


def printed(run: Run) -> str:
    out = io.StringIO()
    print_report(Console(file=out, width=100), run)
    return out.getvalue()


def test_a_run_whose_checks_held_says_so(run: Run) -> None:
    assert run.held
    found = json.loads(summary(run))
    assert found["events"] == 1_000
    assert found["exactly_once"] is found["in_order"] is found["aggregate_matches"] is True
    assert found["events_per_second"] == 100
    assert found["write_events_per_second"] == round(900 / (9 - 2 - 1.5))
    assert "SIGKILL to the ingest in batch 3, already in the stream" in printed(run)


@pytest.mark.parametrize("place", range(3))
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
    assert run.dataset.events in [written for _, written, _ in story().samples]
    assert json.loads(summary(replace(run, story=replace(story(), samples=samples))))


def test_the_picture_of_flights_and_of_any_events_is_drawn(run: Run, tmp_path: Path) -> None:
    hour = datetime(2024, 1, 1, tzinfo=timezone.utc)
    keys = [f"sensor-{number}" for number in range(30)]
    counts = pa.table({"key": keys, "hour": [hour] * 30, "events": list(range(30))})
    for name, table in (("flights", run.table), ("events", counts)):
        path = tmp_path / f"{name}.png"
        draw(
            path, title=name, subtitle="", story=story(), table=table, names=airlines()
        )  # fmt: skip
        with Image.open(path) as image:
            assert image.size == (1_820, 975)
            assert len(image.convert("RGB").getcolors(1 << 20) or []) > 100
