"""Where segments ended, also those whose records left the stream's log with a truncation."""

from __future__ import annotations

from collections.abc import Collection

from pravega_spark.engine.stream.history_table import read_history
from pravega_spark.engine.stream.records import SEGMENT_PREFIX, decode_segment
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView


def segment_ends(
    stream: StreamLog, view: StreamView, segment_ids: Collection[int]
) -> dict[int, int]:
    """Return the offsets after the last events of segments, as far as they are known.

    Reads the history only for segments without a record. A segment that is in it several times,
    because a truncation was repeated or in several lives, is what was appended last.
    """
    ends = {s: view.segment(s).next_offset for s in segment_ids if view.has_segment(s)}
    missing = {f"{SEGMENT_PREFIX}{s}": s for s in segment_ids if s not in ends}
    if not missing:
        return ends
    for rows in read_history(stream, "segment"):
        for row in rows:
            segment_id = missing.pop(row.name, None)
            if segment_id is not None:
                ends[segment_id] = decode_segment(segment_id, row.value).next_offset
        if not missing:
            break
    return ends
