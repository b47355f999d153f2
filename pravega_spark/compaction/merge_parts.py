"""Merges a range in which chunks may be damaged or lost: the parts between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from pravega_spark.compaction.merge_range import MergedRange, MergeRange
from pravega_spark.compaction.range_merge import merge_range
from pravega_spark.engine.chunks import chunk_reader
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import Damaged, KeyUnavailable

logger = own_logger(__name__)


def merge_parts(stream: StreamLog, rng: MergeRange) -> list[MergedRange]:
    """Merge a range; if chunks of it are damaged or lost, merge the parts between them.

    Returns a result for each part and for each damaged chunk; to find these, all chunks of the
    range are read a second time. Raises what :func:`merge_range` raises.
    """
    whole = merge_range(stream, rng)
    refs = stream.known_chunks(rng.events) if whole.is_damaged else []
    bad = {ref.path: why for ref in refs if (why := _damage(stream, ref))}
    if len(refs) < 2 or not bad:
        return [whole]
    if len(bad) > 1:
        why = next(iter(bad.values()))
        logger.warning(
            "%d chunks of %s are damaged or lost, and are not merged; the first: %s",
            len(bad),
            rng,
            why,
            extra=log_fields("compact", rng.stream),
        )
    found: list[MergedRange] = []
    for is_bad, group in groupby(refs, key=lambda ref: ref.path in bad):
        part = list(group)
        if is_bad:
            found += [
                MergedRange(_range(rng, [ref]), reason=bad[ref.path], is_damaged=True)
                for ref in part
            ]
        elif len(part) > 1:
            found.append(merge_range(stream, _range(rng, part)))
    return found


def _range(rng: MergeRange, part: Sequence[ChunkRef]) -> MergeRange:
    size = sum(ref.size for ref in part)
    return replace(
        rng, start=part[0].base_offset, end=part[-1].end, files=len(part), size_bytes=size
    )


def _damage(stream: StreamLog, ref: ChunkRef) -> str:
    """Return why a chunk cannot be read; empty if it can."""
    try:
        for _ in chunk_reader.read(
            stream.store,
            stream.path,
            ref,
            ref.base_offset,
            ref.end,
            event_format=stream.event_format,
        ):
            pass
    except (Damaged, KeyUnavailable) as error:
        return str(error)
    except FileNotFoundError as error:
        return f"a file that the log names is lost ({error}). Restore it from a copy."
    return ""
