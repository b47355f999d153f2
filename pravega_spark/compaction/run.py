"""Compacts one stream in one process: plan, merge each range, commit."""

from __future__ import annotations

from dataclasses import replace

from pravega_spark.compaction.merge import (
    COMMIT_ACTIONS,
    commit_merged,
    estimate_bytes,
    merge_parts,
    present_bytes,
)
from pravega_spark.compaction.plan import DEFAULTS, CompactionOptions, CompactionPlan, plan_stream
from pravega_spark.compaction.result import CompactionResult, MergedRange
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog

logger = own_logger(__name__)

_COMMIT_BYTES = 4 << 30
"""A long run commits each time it has merged this size of files, so that a kill loses less."""


def run_compaction(
    stream: StreamLog,
    options: CompactionOptions = DEFAULTS,
    *,
    dry_run: bool = False,
    life: int | None = None,
) -> CompactionResult:
    """Merge small chunks and rewrite the chunks at the head; safe to kill and to run twice.

    The result of a dry run says what a run would do; nothing is changed. It reads a few files, to
    estimate what the run would write. ``life`` is the life that the call is made for, by default
    the present one. Raises NoSuchStream, StaleIdentity, and StoreError if the storage refuses to
    write; what was committed before stays.
    """
    stream.log.expect_files()
    view = stream.view(life=life)
    plan = plan_stream(
        stream, view, options.settings(stream, view), include_newest=options.include_newest
    )
    if dry_run:
        return expected_result(stream, plan)
    plan.store_record(stream)
    failpoint("compact.planned")
    result = CompactionResult(stream.name)
    merged: list[MergedRange] = []
    files = size = 0
    for rng in plan.ranges:
        merged += merge_parts(stream, rng)
        files += rng.files
        size += rng.size_bytes
        if files >= COMMIT_ACTIONS or size >= _COMMIT_BYTES:
            result = result.plus(commit_merged(stream, merged))
            merged, files, size = [], 0, 0
    if merged:
        result = result.plus(commit_merged(stream, merged))
    files_after = plan.files - result.files_removed
    result = replace(result, files_before=plan.files, files_after=files_after)
    if plan.ranges:
        logger.info("compacted %s", result, extra=log_fields("compact", stream.name))
    return result


def expected_result(
    stream: StreamLog, plan: CompactionPlan, *, estimate: bool = True
) -> CompactionResult:
    """Return what a run would do by a plan.

    The written size is estimated from samples of the stream's files; without ``estimate`` it is the
    size that all data has now.
    """
    ranges, files = plan.ranges, plan.files
    merged = sum(rng.files for rng in ranges)
    result = CompactionResult(stream.name, dry_run=True, files_before=files, files_after=files)
    return replace(
        result,
        ranges=len(ranges),
        heads=sum(rng.is_head for rng in ranges),
        events=sum(len(rng.events) for rng in ranges),
        files_after=files - merged + len(ranges),
        bytes_read=sum(rng.size_bytes for rng in ranges),
        bytes_written=(
            estimate_bytes(stream, ranges)
            if estimate
            else sum(present_bytes(rng) for rng in ranges)
        ),
    )
