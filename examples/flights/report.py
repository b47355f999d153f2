"""The report of the demo: tables for people, and one line of JSON for programs."""

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
from flights.replay import Timeline
from flights.retention import RetentionResult
from flights.typed import TypedResult
from flights.workspace import Workspace
from pravega_spark import CompactionResult

PICTURE = "demo.png"
TABLE = "delays"
INGEST_LOG = "ingest.log"
SPARK_LOG = "spark.log"


@dataclass(frozen=True)
class Run:
    """One run of the demo."""

    dataset: Dataset
    workspace: Workspace
    batch_rows: Sequence[int]
    timeline: Timeline
    findings: Sequence[Finding]
    table: pa.Table
    compacted: CompactionResult
    retained: RetentionResult
    seconds: float
    typed: TypedResult | None = None
    """None for input of the user's own."""

    @property
    def replayed(self) -> int:
        """How many events were written before the reading query was stopped."""
        return sum(self.batch_rows)

    @property
    def held(self) -> bool:
        """Whether all checks held, and the ingest was killed as promised."""
        return self.timeline.killed_at is not None and all(found.held for found in self.findings)

    @property
    def verdict(self) -> str:
        """The result of the checks in a few words."""
        failed = ", ".join(found.name for found in self.findings if not found.held)
        held = "every event once, in order, totals exact, nothing unread deleted"
        return f"NOT HELD: {failed}" if failed else held

    @property
    def outage(self) -> float:
        """Seconds from the kill to the first event after it."""
        timeline = self.timeline
        if timeline.killed_at is None:
            return 0.0
        return (timeline.resumed_at or timeline.ingested_at) - timeline.killed_at

    @property
    def write_rate(self) -> float:
        """Events a second from the first to the last one written, without the outage."""
        at = [(seconds, written) for seconds, written, _ in self.timeline.samples if written]
        most = min(self.replayed, at[-1][1])
        end = next(seconds for seconds, written in at if written >= most)
        took = end - at[0][0] - self.outage
        return (most - at[0][1]) / took if took > 0 else 0.0

    @property
    def whole_rate(self) -> float:
        """Events a second of the whole replay, with starts, kill and restart."""
        return self.replayed / self.timeline.read_at


def print_report(console: Console, run: Run) -> None:
    """Print the steps with times and rates, and the results of the checks."""
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
    console.print(f"picture: {run.workspace.path(PICTURE)}", soft_wrap=True, markup=False)


def summary(run: Run) -> str:
    """Return the results as one JSON object."""
    timeline = run.timeline
    record = {
        "events": run.dataset.events,
        **{found.name: found.held for found in run.findings},
        "events_per_second": round(run.whole_rate),
        "write_events_per_second": round(run.write_rate),
        "seconds": round(run.seconds, 1),
        "replay_seconds": round(timeline.read_at, 1),
        "killed": None if timeline.killed_at is None else "ingest",
        "killed_batch": timeline.killed_batch,
        "killed_batch_was_durable": timeline.killed_durable,
        "outage_seconds": round(run.outage, 1),
        "batches_written": len(run.batch_rows),
        "batches_read": len(run.timeline.reads),
        "segments": run.workspace.segments,
        "splits": len(timeline.splits),
        "compaction": {
            "files_before": run.compacted.files_before,
            "files_after": run.compacted.files_after,
        },
        "retention": {
            "truncated_events": run.retained.truncated_events,
            "kept_events": run.retained.left.stays.events,
            "holder": run.retained.left.held_by,
        },
        "typed_seconds": run.typed and run.typed.seconds,
        "root": run.workspace.root,
        "stream": run.workspace.stream,
        "table": run.workspace.path(TABLE),
        "picture": run.workspace.path(PICTURE),
    }
    return json.dumps(record)


def _steps(run: Run) -> list[tuple[str, str, str]]:
    timeline, dataset, workspace = run.timeline, run.dataset, run.workspace
    return [
        ("input", dataset.source, f"{dataset.events:,} events, {dataset.keys:,} keys"),
        ("stream", workspace.stream, f"{workspace.segments} segments"),
        (
            "ingest",
            f"writeStream, routing key {dataset.key}: {len(run.batch_rows)} micro-batches",
            f"{run.write_rate:,.0f} events/s",
        ),
        ("kill", _kill(timeline), f"back after {run.outage:.1f} s" if timeline.killed_at else ""),
        ("scale", _scale(run), f"{len(timeline.splits)} splits"),
        (
            "read",
            f"readStream, by {dataset.key} and hour: {len(run.timeline.reads)} micro-batches",
            f"{run.table.num_rows:,} rows of {TABLE}",
        ),
        (
            "replay",
            "from the start of the ingest to the last hour in the table",
            f"{timeline.read_at:.1f} s, {run.whole_rate:,.0f} events/s",
        ),
        (
            "late",
            "a plain writer, after the query has stopped: no query has read them",
            f"{dataset.events - run.replayed:,} events",
        ),
        *(() if run.typed is None else (_typed(run.typed),)),
        (
            "retain",
            "the retention job: consumed by all, deleted (with the closing event)",
            f"{run.retained.truncated_events:,} events",
        ),
        *(
            ("", f"held by {claim.holder}", f"{claim.holds.events:,} events")
            for claim in run.retained.left.claims
        ),
        (
            "compact",
            "small files merged, also those of the last minute",
            f"{run.compacted.files_before:,} -> {run.compacted.files_after:,} files",
        ),
        ("all", "with input and checks", f"{run.seconds:.1f} s"),
    ]


def _typed(typed: TypedResult) -> tuple[str, str, str]:
    what = (
        f"all into {typed.stream} ({typed.seconds['write']} s); delays by carrier of both streams"
    )
    return "typed", what, "columns {columns} s, JSON {json} s".format(**typed.seconds)


def _scale(run: Run) -> str:
    policy = f"by event rate, target {run.workspace.target:,} a second in a segment"
    if not run.timeline.splits:
        return f"{policy}: no segment was above it for long enough"
    first = run.timeline.splits[0]
    return f"{policy}: at {first.at:.1f} s, {first.segment}: {first.reason}"


def _kill(timeline: Timeline) -> str:
    if timeline.killed_at is None:
        return "the ingest ended before it could be killed"
    if timeline.killed_batch is None:
        return "SIGKILL to the ingest between two batches"
    state = "already" if timeline.killed_durable else "not yet"
    return f"SIGKILL to the ingest in batch {timeline.killed_batch}, {state} in the stream"
