"""Compaction on Spark's executors, which share the ranges of all streams, also of a large one.

Three passes: plan each stream, merge each range, commit what was merged of each stream.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pravega_spark.compaction.merge import commit_merged, merge_parts
from pravega_spark.compaction.plan import CompactionOptions, plan_stream
from pravega_spark.compaction.result import MergedRange, MergeRange
from pravega_spark.compaction.run import expected_result
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.time_limit import run_within
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import NoSuchStream, RootChanged
from pravega_spark.jobs.report import RoundProgress
from pravega_spark.jobs.stream_tasks import Task, TaskWork, map_tasks
from pravega_spark.maintenance.result import WorkOutcome
from pravega_spark.maintenance.work import WorkDone, WorkOptions, compaction_done, do_work, failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


COMPACTION = MaintenanceKind.COMPACTION
OUTCOME_SCHEMA = pa.schema([("outcome", pa.string())])
_PLANNED = pa.schema([*OUTCOME_SCHEMA, ("ranges", pa.list_(pa.string()))])
_MERGED = pa.schema([("merged", pa.string())])
Row = Mapping[str, Any]


def compact_streams(
    spark: SparkSession,
    root: str,
    names: Sequence[str],
    options: WorkOptions,
    told: RoundProgress | None = None,
) -> Iterator[WorkOutcome]:
    """Compact streams on executors; yield the outcome of each, or of a dry run the expected one.

    A range that fails is a failure of its stream; its other ranges are committed.
    """

    def collected(tasks: Sequence[Task], work: TaskWork, schema: pa.Schema, what: str) -> list[Any]:
        return map_tasks(spark, root, tasks=tasks, work=work, schema=schema, told=told, what=what)

    streams = [Task(name) for name in names]
    planned = collected(streams, partial(_plan, options=options), _PLANNED, "streams to plan")
    begun = {row["stream"]: row["outcome"] for row in planned}
    ranges = [Task(row["stream"], text) for row in planned for text in row["ranges"]]
    merged = defaultdict[str, list[Any]](list)
    for row in collected(ranges, partial(_merge, options=options), _MERGED, "ranges"):
        merged[row["stream"]].append(json.loads(row["merged"]))
    ready = [Task(name, to_json([begun.pop(name), found])) for name, found in merged.items()]
    outcomes = [
        *begun.values(),
        *(row["outcome"] for row in collected(ready, _commit, OUTCOME_SCHEMA, "streams to commit")),
    ]
    yield from (WorkOutcome.of_row(json.loads(text)) for text in outcomes)


def _plan(root: str, task: Task, *, options: WorkOptions) -> Iterator[Row]:
    """Yield the outcome so far of a stream, with the ranges to merge; none of a dry run."""
    name, ranges = task.stream, list[MergeRange]()

    def plan(stream: StreamLog, view: StreamView, options: WorkOptions) -> WorkDone:
        now_ms, given = stream.now_ms(), CompactionOptions(options.flags, options.root)
        found = plan_stream(stream, view, given.settings(stream, view))
        if not options.dry_run:
            found.store_record(stream)
        ranges.extend(found.ranges)
        expected = expected_result(stream, found, estimate=options.dry_run)
        return compaction_done(expected, view, now_ms)

    stream = open_stream(root, name)
    stream.log.expect_files()
    try:
        outcome = do_work(stream, COMPACTION, options, plan)
    except NoSuchStream:
        return
    except RootChanged:
        raise
    except Exception as error:
        outcome = failed(name, COMPACTION, f"stream {name}", error)
        yield {"outcome": to_json(outcome.row()), "ranges": []}
        return
    wanted = [] if options.dry_run else ranges
    texts = [to_json(rng.to_json()) for rng in wanted]
    yield {"outcome": to_json(outcome.row()), "ranges": texts}


def _merge(root: str, task: Task, *, options: WorkOptions) -> Iterator[Row]:
    """Yield a merged range or its parts, or why it could not be merged."""
    rng, stream = MergeRange.from_json(json.loads(task.text)), open_stream(root, task.stream)
    what = f"compaction of {rng}"
    try:
        parts = run_within(options.limit_seconds, partial(merge_parts, stream, rng), what, root)
    except RootChanged:
        raise
    except Exception as error:
        failures = failed(task.stream, COMPACTION, str(rng), error).failures
        yield {"merged": to_json({"failed": dict(failures)})}
    else:
        yield from ({"merged": to_json({"merged": part.to_json()})} for part in parts)


def _commit(root: str, task: Task) -> Iterator[Row]:
    """Yield the outcome of a stream after the commit of what was merged."""
    begun, found = json.loads(task.text)
    name, outcome = task.stream, WorkOutcome.of_row(json.loads(begun))
    stream = open_stream(root, name)
    failures: Mapping[str, str] = {
        what: why for part in found for what, why in part.get("failed", {}).items()
    }
    merged = [MergedRange.from_json(part["merged"]) for part in found if "merged" in part]
    try:
        result = commit_merged(stream, merged)
        done = compaction_done(result, stream.view(refresh=False), stream.now_ms())
    except NoSuchStream:
        return
    except RootChanged:
        raise
    except Exception as error:
        failures = {**failures, **failed(name, COMPACTION, f"stream {name}", error).failures}
        ended = replace(outcome, did="", figures={}, failures=failures)
    else:
        failures = {**failures, **done.failures}
        ended = replace(
            outcome, did=done.did, figures=done.figures, failures=failures, due_ms=done.due_ms
        )
    yield {"outcome": to_json(ended.row())}
