"""Commits merged ranges: the merged chunks take the places of the chunks that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pravega_spark.compaction.compaction_result import CompactionResult, SkippedRange
from pravega_spark.compaction.live_chunks import (
    APPENDED_TAG,
    WRITTEN_TAG,
    FileBytes,
    live_chunk,
    live_count,
)
from pravega_spark.compaction.merge_plan import LiveChunk
from pravega_spark.compaction.merge_range import MergedRange
from pravega_spark.compaction.plan_record import note_commit
from pravega_spark.compaction.range_merge import MERGED_BY_OTHERS, TRUNCATED
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.file_index import position_of
from pravega_spark.engine.stream.chunk_actions import chunk_add
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput
from pravega_spark.limits import CHECKPOINT_GROWTH, STATE_FILE_COMMITS

COMPACT, REWRITE_HEAD = "COMPACT", "REWRITE HEAD"
"""Operations: a merge changes no row for any reader; the rewrite of a head drops truncated rows."""
COMMIT_ACTIONS = 16_384
"""Most files that one commit adds and removes; a reader of the log reads it as a whole."""
_REPLACED_FILES = STATE_FILE_COMMITS * CHECKPOINT_GROWTH
"""After so many replaced files a state file is due: a process that opens the log would read them
all, which costs it as much as the commits between two state files (ADR 31)."""


@dataclass(slots=True)
class _Replaced:
    """The merged ranges of one commit with the files that they replace, and those left out."""

    ranges: list[tuple[MergedRange, list[Add]]] = field(default_factory=list)
    skipped: list[SkippedRange] = field(default_factory=list)
    adds: list[Add] = field(default_factory=list)


def commit_merged(stream: StreamLog, merged: Sequence[MergedRange]) -> CompactionResult:
    """Commit merged ranges of one stream, as few commits as the number of files allows.

    Each commit decides on the newest version. A range whose chunks are no longer live, whose begin
    was truncated, or whose staged chunk is below the horizon is left out, and the others are
    committed. The rewritten heads are one commit. Safe to repeat. Raises StaleIdentity,
    NoSuchStream, InvalidInput for ranges of another stream, and what a commit raises.
    """
    others = {found.range.stream for found in merged} - {stream.name}
    if others:
        raise InvalidInput(
            f"merged ranges of {', '.join(sorted(others))} cannot be committed to stream "
            f"{stream.name}; commit them to their own stream."
        )
    result = CompactionResult(
        stream.name,
        skipped=tuple(
            SkippedRange(found.range, found.reason, found.is_damaged)
            for found in merged
            if found.chunk is None
        ),
    )
    committed: list[tuple[int, LiveChunk]] = []
    for group in _groups([found for found in merged if found.chunk is not None]):
        done, chunks = _commit(stream, group)
        result = result.plus(done)
        committed += chunks
    note_commit(stream, stream.view(refresh=False), committed, result.skipped)
    if result.files_removed >= _REPLACED_FILES and stream.log.maintain is not None:
        stream.log.maintain(stream.log, result.versions[-1])
    after = live_count(stream)
    return replace(result, files_before=after + result.files_removed, files_after=after)


def _groups(merged: Sequence[MergedRange]) -> Iterator[list[MergedRange]]:
    """Yield the ranges of each commit: of one life and kind, and not too many files."""
    group: list[MergedRange] = []
    actions = 0
    for found in sorted(merged, key=_kind):
        size = 1 + len(found.inputs)
        if group and (_kind(found) != _kind(group[0]) or actions + size > COMMIT_ACTIONS):
            yield group
            group, actions = [], 0
        group.append(found)
        actions += size
    if group:
        yield group


def _kind(found: MergedRange) -> tuple[int, bool]:
    return found.range.life, found.range.is_head


def _commit(
    stream: StreamLog, group: Sequence[MergedRange]
) -> tuple[CompactionResult, list[tuple[int, LiveChunk]]]:
    """Commit ranges of one life and kind.

    Returns what was committed and what was left out, and the merged chunks by segment.
    """
    life, is_head = _kind(group[0])

    def decide(view: StreamView) -> Proposal[_Replaced]:
        replaced = _fitting(stream, view, group)
        if not replaced.ranges:
            return None, replaced
        now_ms = stream.now_ms()
        replaced.adds = [_merged_add(found, adds, now_ms) for found, adds in replaced.ranges]
        removes = [
            Remove.of(add, now_ms, data_change=is_head)
            for _, adds in replaced.ranges
            for add in adds
        ]
        body = Body(
            REWRITE_HEAD if is_head else COMPACT,
            {"head": str(view.head)} if is_head else {},
            _metrics(replaced.adds, removes),
            adds=replaced.adds,
            removes=removes,
        )
        return body, replaced

    failpoint("compact.commit")
    committed = stream.commit(decide, life=life, yields=True)
    failpoint("compact.committed")
    replaced = committed.value
    inputs = [add for _, adds in replaced.ranges for add in adds]
    total = FileBytes.of(replaced.adds)
    result = CompactionResult(
        stream.name,
        ranges=len(replaced.ranges),
        heads=len(replaced.ranges) if is_head else 0,
        events=sum(len(found.range.events) for found, _ in replaced.ranges),
        files_before=len(inputs),
        files_after=len(replaced.adds),
        bytes_read=sum(add.size for add in inputs),
        bytes_written=sum(add.size for add in replaced.adds),
        appended_bytes=total.appended,
        lifetime_bytes=total.written,
        versions=(committed.snapshot.version,) if replaced.ranges else (),
        skipped=tuple(replaced.skipped),
    )
    return result, [(position_of(add)[0], live_chunk(add)) for add in replaced.adds]


def _fitting(stream: StreamLog, view: StreamView, group: Sequence[MergedRange]) -> _Replaced:
    """Return the ranges that fit the view, with the files that they replace."""
    result = _Replaced()
    with stream.log.files() as files:
        for found in group:
            rng = found.range
            adds = files.find(rng.segment_id, rng.start, rng.end)
            reason = _refusal(view, found, adds)
            if reason:
                result.skipped.append(SkippedRange(rng, reason))
            else:
                result.ranges.append((found, adds))
    return result


def _refusal(view: StreamView, found: MergedRange, adds: Sequence[Add]) -> str:
    """Return why a range cannot be committed on a view; empty if it can."""
    rng = found.range
    if not view.has_segment(rng.segment_id) or view.is_truncated(rng.segment_id, rng.start):
        return TRUNCATED
    if [add.path for add in adds] != list(found.inputs):
        return MERGED_BY_OTHERS
    horizon = view.snapshot.horizon
    if found.staging_version < horizon:
        return (
            f"its merged chunk was staged at version {found.staging_version}, below the staging "
            f"horizon, version {horizon}"
        )
    return ""


def _merged_add(found: MergedRange, adds: Sequence[Add], now_ms: int) -> Add:
    chunk = found.chunk
    assert chunk is not None
    total = FileBytes.of(adds)
    add = chunk_add(chunk, found.range.start, found.base_bytes, now_ms, data_change=False)
    written = {APPENDED_TAG: str(total.appended), WRITTEN_TAG: str(total.written + add.size)}
    return replace(add, tags={**(add.tags or {}), **written})


def _metrics(adds: Sequence[Add], removes: Sequence[Remove]) -> dict[str, object]:
    """Return the figures of a commit under the names of Delta's OPTIMIZE."""
    return {
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove.size for remove in removes),
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(add.size for add in adds),
        "writeAmplification": f"{FileBytes.of(adds).amplification:.2f}",
    }
