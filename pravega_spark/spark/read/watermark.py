"""The watermark of a streaming query's source: from the streams' time windows to ``withWatermark``.

Spark's own watermark is the latest time of the rows that a query has seen, less a delay. A segment
that is read ahead of another one moves it, and late rows of the slow one are dropped. The column
``watermark`` has instead what the writers of the streams say about all that follows the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pravega_spark.config.root_settings import SettingSources
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.clock import read_clock
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.configuration import read_sources
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import (
    known_watermarks,
    marks_of,
    next_advance,
    window_at,
)
from pravega_spark.errors import InvalidInput
from pravega_spark.schemas.sql import quoted_name
from pravega_spark.values.checks import check_text
from pravega_spark.values.segments import StreamCut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK_COLUMN = "watermark"
_SETTINGS_SECONDS: Final = 60
"""How old the settings of the root may be."""
_HELD_SECONDS: Final = 10
"""A watermark that has not moved for this long is reported as held: two notes' time."""


class StreamEnd(NamedTuple):
    """Where a micro-batch ends in one stream."""

    stream: StreamLog
    view: StreamView
    cut: StreamCut


@dataclass(slots=True)
class _Seen:
    """A stream's tail and lower bound, since when they are so by this process, and the tail's age.

    ``age_ms`` is what the tail was old when this process saw it: the age of its version at first,
    which is at least as young as the events, and 0 of one that came later.
    """

    tail: StreamCut
    tail_at: float
    age_ms: int
    lower_us: int | None
    lower_at: float


class SourceWatermark:
    """The watermark of a query's streams in one run; knows which streams are quiet, and who holds.

    A stream that the query has read to its tail is quiet if nothing was written to it for
    ``timestamp_aggregation_timeout``. Then it no longer holds the others back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._known: tuple[float, SettingSources] | None = None
        """The settings of the root, and when they were read."""
        self.held_by: dict[str, list[str]] = {}
        """The streams that hold the watermark, and their writers whose times are behind."""

    def time_us(self, ends: Iterable[StreamEnd]) -> int | None:
        """Return the time before which nothing follows the ends of a batch in any of the streams.

        None while a stream has no watermark there. A sealed stream that was read to its end, and a
        quiet one, count only if there is no other one. Costs no storage call, but for streams that
        hold the watermark: two for each when it first does, and one for all once a minute.
        """
        lowers, ended, names = dict[str, int | None](), dict[str, int | None](), []
        given = list(ends)
        for end in given:
            position = locate(end.view, end.cut).above_head()
            lower_us = window_at(end.view, position).lower_us
            is_at_tail = position.canonical().is_at_or_after(end.view.located_tail)
            self._note(end, lower_us)
            if is_at_tail and end.view.record.state is StreamState.SEALED:
                ended[end.view.stream] = lower_us
                continue
            lowers[end.view.stream] = lower_us
            if is_at_tail:
                names.append(end.view.stream)
        quiet = self._quiet([e for e in given if e.view.stream in names and _holds(e, lowers)])
        found = {name: lower for name, lower in lowers.items() if name not in quiet}
        found = found or lowers or ended
        self.held_by = {e.view.stream: _writers(e.view) for e in given if self._is_held(e, found)}
        known = [lower_us for lower_us in found.values() if lower_us is not None]
        return min(known, default=None) if len(known) == len(found) else None

    def _note(self, end: StreamEnd, lower_us: int | None) -> None:
        now, tail, seen = self._clock(), end.view.tail, self._seen.get(end.view.stream)
        if seen is None:
            self._seen[end.view.stream] = _Seen(tail, now, -1, lower_us, now)
            return
        if seen.tail != tail:
            seen.tail, seen.tail_at, seen.age_ms = tail, now, 0
        if seen.lower_us != lower_us:
            seen.lower_us, seen.lower_at = lower_us, now

    def _quiet(self, ends: Sequence[StreamEnd]) -> set[str]:
        """Return those of the streams to which nothing was written for too long."""
        if not ends:
            return set()
        self._note_ages([end for end in ends if self._seen[end.view.stream].age_ms < 0])
        sources = self._sources(ends[0].stream)
        return {end.view.stream for end in ends if self._is_quiet(end, sources)}

    def _note_ages(self, ends: Sequence[StreamEnd]) -> None:
        """Note what the tails of streams were old when this process saw them."""
        if not ends:
            return
        log = ends[0].stream.log
        now = read_clock(log.store, log.runtime, keep=False)

        def age_ms(end: StreamEnd) -> int:
            ages = VersionAges(end.stream.log, now)
            return ages.now_ms - ages.written_ms(end.view.version)

        for end, found_ms in zip(ends, in_rounds(log.store, age_ms, ends), strict=True):
            seen = self._seen[end.view.stream]
            since_ms = round((self._clock() - seen.tail_at) * 1_000)
            seen.age_ms = max(0, found_ms - since_ms)

    def _sources(self, stream: StreamLog) -> SettingSources:
        """Return the settings of the root, to which all of the streams belong."""
        now = self._clock()
        if self._known is None or now - self._known[0] >= _SETTINGS_SECONDS:
            self._known = now, read_sources(stream)
        return self._known[1]

    def _is_quiet(self, end: StreamEnd, sources: SettingSources) -> bool:
        seen, settings = self._seen[end.view.stream], end.view.record.configuration.settings
        timeout_ms = sources.of_stream(settings).timestamp_aggregation_timeout_ms
        return seen.age_ms + (self._clock() - seen.tail_at) * 1_000 > timeout_ms

    def _is_held(self, end: StreamEnd, counted: Mapping[str, int | None]) -> bool:
        """Return whether a stream holds the watermark, and its own has not moved for some time."""
        name = end.view.stream
        if name not in counted or not _holds(end, counted):
            return False
        return counted[name] is None or self._clock() - self._seen[name].lower_at >= _HELD_SECONDS


def _holds(end: StreamEnd, counted: Mapping[str, int | None]) -> bool:
    """Return whether a stream has the watermark of all that count, and another one is ahead."""
    mine, others = counted[end.view.stream], list(counted.values())
    return len(others) > 1 and (mine is None or mine < max(o or mine for o in others))


def _writers(view: StreamView) -> list[str]:
    advance = next_advance(known_watermarks(view), marks_of(view))
    return sorted(mark.writer_id for mark in advance.held_by)


def with_stream_watermark(
    frame: DataFrame, event_time: str = "timestamp", delay: str = "0 seconds"
) -> DataFrame:
    """Return a streaming frame whose watermark is that of its streams, for the column of times.

    ``frame`` reads the source with ``includeWatermark``, and still has the column ``watermark``,
    which the result lacks. ``event_time`` is its column with the times that the writers note, such
    as one computed from the events; group by windows of it. No row is dropped as late that its
    writer wrote as it promised, even if other segments and streams are ahead. ``delay`` is what is
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
