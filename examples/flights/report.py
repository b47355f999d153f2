"""The demo's last words: a table for people, one line of JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flights.checks import Finding
from flights.dataset import Dataset
from flights.replay import Story
from flights.retention import Retained
from flights.workspace import Place

PICTURE = "demo.png"
TABLE = "delays"
INGEST_LOG = "ingest.log"
SPARK_LOG = "spark.log"


@dataclass(frozen=True)
class Run:
    """One run of the demo, as it is reported."""

    dataset: Dataset
    place: Place
    batch_rows: Sequence[int]
    story: Story
    findings: Sequence[Finding]
    table: pa.Table
    retained: Retained
    seconds: float

    @property
    def replayed(self) -> int:
        """How many events came before the reading query was stopped."""
        return sum(self.batch_rows)

    @property
    def held(self) -> bool:
        """Whether all checks held, and the ingest was killed as promised."""
        return self.story.killed_at is not None and all(found.held for found in self.findings)

    @property
    def verdict(self) -> str:
        """What the checks say, in a few words."""
        failed = ", ".join(found.name for found in self.findings if not found.held)
        held = "every event once, in order, totals exact, nothing unread let go"
        return f"NOT HELD: {failed}" if failed else held

    @property
    def outage(self) -> float:
        """Seconds from the kill to the first event after it."""
        story = self.story
        if story.killed_at is None:
            return 0.0
        return (story.resumed_at or story.ingested_at) - story.killed_at

    @property
    def write_rate(self) -> float:
        """Events a second between the first and the last that were written, without the outage."""
        at = [(seconds, written) for seconds, written, _ in self.story.samples if written]
        most = min(self.replayed, at[-1][1])
        end = next(seconds for seconds, written in at if written >= most)
        took = end - at[0][0] - self.outage
        return (most - at[0][1]) / took if took > 0 else 0.0

    @property
    def whole_rate(self) -> float:
        """Events a second of the whole replay: starts, kill and restart included."""
        return self.replayed / self.story.read_at


def print_report(console: Console, run: Run) -> None:
    """Print what was done, with times and rates, and what the checks found."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", title="What the demo did")
    for heading in ("step", "what", "result"):
        table.add_column(heading, justify="right" if heading == "result" else "left")
    for row in _steps(run):
        table.add_row(*map(escape, row))
    console.print(table)
    checks = Table(box=box.SIMPLE_HEAD, title_justify="left", title="What it checked")
    for heading in ("check", "held", "found"):
        checks.add_column(heading)
    for found in run.findings:
        checks.add_row(
            found.name, "[green]yes[/]" if found.held else "[red]NO[/]", escape(found.detail)
        )
    console.print(checks)
    console.print(f"picture: {run.place.path(PICTURE)}", soft_wrap=True, markup=False)


def summary(run: Run) -> str:
    """Return the results as one JSON object."""
    story = run.story
    record = {
        "events": run.dataset.events,
        **{found.name: found.held for found in run.findings},
        "events_per_second": round(run.whole_rate),
        "write_events_per_second": round(run.write_rate),
        "seconds": round(run.seconds, 1),
        "replay_seconds": round(story.read_at, 1),
        "killed": None if story.killed_at is None else "ingest",
        "killed_batch": story.killed_batch,
        "killed_batch_was_durable": story.killed_durable,
        "outage_seconds": round(run.outage, 1),
        "batches_written": len(run.batch_rows),
        "batches_read": len(run.story.reads),
        "segments": run.place.segments,
        "splits": len(story.splits),
        "retention": {
            "truncated_events": run.retained.truncated_events,
            "kept_events": run.retained.left.stays.events,
            "holder": run.retained.left.held_by,
        },
        "root": run.place.root,
        "stream": run.place.stream,
        "table": run.place.path(TABLE),
        "picture": run.place.path(PICTURE),
    }
    return json.dumps(record)


def _steps(run: Run) -> list[tuple[str, str, str]]:
    story, dataset, place = run.story, run.dataset, run.place
    return [
        ("input", dataset.source, f"{dataset.events:,} events, {dataset.keys:,} keys"),
        ("stream", place.stream, f"{place.segments} segments"),
        (
            "ingest",
            f"writeStream, routing key {dataset.key}: {len(run.batch_rows)} micro-batches",
            f"{run.write_rate:,.0f} events/s",
        ),
        ("kill", _kill(story), f"back after {run.outage:.1f} s" if story.killed_at else ""),
        ("scale", _scale(run), f"{len(story.splits)} splits"),
        (
            "read",
            f"readStream, by {dataset.key} and hour: {len(run.story.reads)} micro-batches",
            f"{run.table.num_rows:,} rows of {TABLE}",
        ),
        (
            "replay",
            "from the start of the ingest to the last hour in the table",
            f"{story.read_at:.1f} s, {run.whole_rate:,.0f} events/s",
        ),
        (
            "late",
            "a plain writer, when the query had been stopped: nobody has read it",
            f"{dataset.events - run.replayed:,} events",
        ),
        (
            "retain",
            "jobs/retention.py: consumed by all, and gone (the closing event, too)",
            f"{run.retained.truncated_events:,} events",
        ),
        *(
            ("", f"held by {claim.holder}", f"{claim.holds.events:,} events")
            for claim in run.retained.left.claims
        ),
        ("all", "with input and checks", f"{run.seconds:.1f} s"),
    ]


def _scale(run: Run) -> str:
    policy = f"by event rate, target {run.place.target:,} a second in a segment"
    if not run.story.splits:
        return f"{policy}: none was above it for long enough"
    first = run.story.splits[0]
    return f"{policy}: at {first.at:.1f} s, {first.segment}: {first.reason}"


def _kill(story: Story) -> str:
    if story.killed_at is None:
        return "the ingest ended before it could be killed"
    if story.killed_batch is None:
        return "SIGKILL to the ingest between two batches"
    state = "already" if story.killed_durable else "not yet"
    return f"SIGKILL to the ingest in batch {story.killed_batch}, {state} in the stream"
