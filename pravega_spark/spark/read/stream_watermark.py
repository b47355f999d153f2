"""The watermark of a streaming query's source: from the streams' time windows to ``withWatermark``.

Spark's own watermark is the latest time of the rows that a query has seen, less a delay. A segment
that is read ahead of another one moves it, and late rows of the slow one are dropped. The column
``watermark`` has instead what the writers of the streams say about all that follows the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pravega_spark.arguments import check_text
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import window_at
from pravega_spark.errors import InvalidInput
from pravega_spark.model import StreamCut
from pravega_spark.schemas.sql_types import quoted_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK_COLUMN = "watermark"


def source_watermark_us(ends: Iterable[tuple[StreamView, StreamCut]]) -> int | None:
    """Return the time before which nothing follows the ends of a batch in any of the streams.

    None while a stream has no watermark there. A sealed stream that was read to its end counts only
    if there is no other one.
    """
    open_us, ended_us = list[int | None](), list[int | None]()
    for view, cut in ends:
        position = locate(view, cut).clipped_to_head()[0]
        lower_us = window_at(view, position).lower_us
        is_sealed = view.record.state is StreamState.SEALED
        is_ended = is_sealed and position.canonical().is_at_or_after(view.located_tail)
        (ended_us if is_ended else open_us).append(lower_us)
    found = open_us or ended_us
    known = [time_us for time_us in found if time_us is not None]
    return min(known, default=None) if len(known) == len(found) else None


def with_stream_watermark(
    frame: DataFrame, event_time: str = "timestamp", delay: str = "0 seconds"
) -> DataFrame:
    """Return a streaming frame whose watermark is that of its streams, for the column of times.

    ``frame`` reads the source with ``includeWatermark``, and still has the column ``watermark``,
    which the result lacks. ``event_time`` is its column with the times that the writers note, such
    as one computed from the events; group by windows of it. No row is dropped as late that its
    writer wrote as it promised, whatever other segments and streams are ahead. ``delay`` is what is
    allowed beyond that. Raises InvalidInput for a frame without these columns.
    """
    from pyspark.sql import functions as F

    check_text("the column of event times", event_time)
    for column in (WATERMARK_COLUMN, event_time):
        if column not in frame.columns:
            raise InvalidInput(
                f"the frame has no column {column!r}, only {', '.join(frame.columns)}; read the "
                "stream with .option('includeWatermark', 'true') and keep that column."
            )
    marked = frame.withWatermark(WATERMARK_COLUMN, delay)
    # Spark knows the column of times by a tag, and moves the watermark by the column that
    # withWatermark names. So the tag goes to the times, and the streams' watermark moves it.
    tag = marked.schema[WATERMARK_COLUMN].metadata
    kept = [name for name in marked.columns if name not in (WATERMARK_COLUMN, event_time)]
    times = {**marked.schema[event_time].metadata, **tag}
    tagged = F.col(quoted_name(event_time)).alias(event_time, metadata=times)
    return marked.select(*(F.col(quoted_name(name)) for name in kept), tagged)
