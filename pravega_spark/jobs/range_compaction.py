"""Compaction on Spark's executors, which share the ranges of all streams, also of a large one.

Three passes: plan each stream, merge each range, commit what was merged of each stream.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pravega_spark.compaction.compaction_options import CompactionOptions
from pravega_spark.compaction.compaction_plan import plan_compaction
from pravega_spark.compaction.merge_commit import commit_merged
from pravega_spark.compaction.merge_range import MergedRange, MergeRange
from pravega_spark.compaction.range_merge import merge_range
from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.time_limit import run_within
from pravega_spark.errors import NoSuchStream, RootChanged
from pravega_spark.maintenance.stream_work import (
    WorkOptions,
    compaction_done,
    do_work,
    failed,
)
from pravega_spark.maintenance.work_outcome import WorkOutcome
from pravega_spark.model import MaintenanceKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

COMPACTION = MaintenanceKind.COMPACTION
_TASKS_PER_CORE = 4
"""More tasks than cores, so that one task with slow work does not decide how long a round is."""
_PASSED = pa.schema([("stream", pa.string()), ("value", pa.string())])

Row = tuple[str, str]
"""A stream, and a JSON text."""
Work = Callable[[str, str, str], Iterator[str]]
"""Takes root, stream and text, and yields texts. Must be picklable."""


def compact_streams(
    spark: SparkSession, root: str, names: Sequence[str], options: WorkOptions
) -> Iterator[WorkOutcome]:
    """Compact streams on executors; yield the outcome of each, or of a dry run the expected one.

    A range that fails is a failure of its stream; its other ranges are committed.
    """
    planned = map_rows(spark, root, [(n, "") for n in names], partial(_plan, options=options))
    ranges, begun = list[Row](), dict[str, WorkOutcome]()
    for name, text in planned:
        found = json.loads(text)
        if "range" in found:
            ranges.append((name, to_json(found["range"])))
        else:
            begun[name] = WorkOutcome.of_row(found)
    merged = defaultdict[str, list[Any]](list)
    for name, text in map_rows(spark, root, ranges, partial(_merge, options=options)):
        merged[name].append(json.loads(text))
    yield from (outcome for name, outcome in begun.items() if name not in merged)
    rows = [(name, to_json([begun[name].row(), found])) for name, found in merged.items()]
    for _, text in map_rows(spark, root, rows, _commit):
        yield WorkOutcome.of_row(json.loads(text))


def map_rows(spark: SparkSession, root: str, rows: Sequence[Row], work: Work) -> list[Row]:
    """Return the texts that ``work`` yields for each row, with its stream, from executors."""
    from pyspark.sql.pandas.types import from_arrow_schema

    if not rows:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                texts = [(row["stream"], text) for text in work(root, row["stream"], row["value"])]
                made = [{"stream": name, "value": text} for name, text in texts]
                yield pa.RecordBatch.from_pylist(made, schema=_PASSED)

    tasks = min(len(rows), _TASKS_PER_CORE * cores(spark))
    frame = spark.createDataFrame(list(rows), "stream string, value string").repartition(tasks)
    found = frame.mapInArrow(run, from_arrow_schema(_PASSED)).toArrow().to_pylist()
    return [(row["stream"], row["value"]) for row in found]


def cores(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at the same time, as far as the session knows it."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context
        return int(spark.conf.get("spark.sql.shuffle.partitions", "8") or 8)


def _plan(root: str, name: str, _: str, *, options: WorkOptions) -> Iterator[str]:
    """Yield the outcome so far of a stream, and its ranges; only the outcome of a dry run."""
    stream = open_stream(root, name)
    try:
        # A dry run looks at the stream as the other ways of maintenance do.
        outcome = do_work(stream, COMPACTION, replace(options, dry_run=True))
        given = CompactionOptions(options.flags, options.root)
        ranges = [] if options.dry_run or not outcome.did else plan_compaction(stream, given)
    except NoSuchStream:
        return
    except RootChanged:
        raise
    except Exception as error:
        yield to_json(failed(name, COMPACTION, f"stream {name}", error).row())
        return
    yield to_json(outcome.row())
    yield from (to_json({"range": rng.to_json()}) for rng in ranges)


def _merge(root: str, name: str, text: str, *, options: WorkOptions) -> Iterator[str]:
    """Yield a merged range, or why it could not be merged."""
    rng, stream = MergeRange.from_json(json.loads(text)), open_stream(root, name)
    what = f"compaction of {rng}"
    try:
        merged = run_within(options.limit_seconds, partial(merge_range, stream, rng), what, root)
    except RootChanged:
        raise
    except Exception as error:
        yield to_json({"failed": failed(name, COMPACTION, str(rng), error).failures})
    else:
        yield to_json({"merged": merged.to_json()})


def _commit(root: str, name: str, text: str) -> Iterator[str]:
    """Yield the outcome of a stream after the commit of what was merged."""
    begun, found = json.loads(text)
    outcome, stream = WorkOutcome.of_row(begun), open_stream(root, name)
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
        yield to_json(replace(outcome, did="", figures={}, failures=failures).row())
        return
    failures = {**failures, **done.failures}
    yield to_json(
        replace(
            outcome, did=done.did, figures=done.figures, failures=failures, due_ms=done.due_ms
        ).row()
    )
