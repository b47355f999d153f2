"""The times that writers noted, and watermarks, as JSON values of the log's domain metadata.

| domain | record |
| --- | --- |
| ``pravega.mark.<writer id>`` | WriterMark: the time, the position, whether the writer is there |
| ``pravega.watermark.<version>`` | Watermark: both bounds, and the cut |
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from pravega_spark.arguments import MAX_TIME_US, MIN_TIME_US
from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.text_cache import cached_by_text
from pravega_spark.errors import CorruptLog
from pravega_spark.limits import DECODED_TEXT_CHARACTERS
from pravega_spark.model import StreamCut, Watermark, WriterMark

MARK_PREFIX = "pravega.mark."
WATERMARK_PREFIX = "pravega.watermark."
REMOVED_US = -(1 << 63)
"""The time of a mark that was removed: it counts for no bound, only its position for the cut."""


@dataclass(frozen=True, slots=True)
class TimeNote:
    """What a commit says about its writer's time: the time (None: as before), or that it leaves."""

    writer_id: str
    time_us: int | None
    leaves: bool = False
    began: int | None = None
    """The version that began the transaction, if it is the note of one."""

    def after(self, earlier: TimeNote | None) -> TimeNote:
        """Return one note that says what an earlier one and then this one say."""
        if earlier is None:
            return self
        times = [time for time in (earlier.time_us, self.time_us) if time is not None]
        began = [version for version in (earlier.began, self.began) if version is not None]
        return TimeNote(
            self.writer_id, max(times, default=None), self.leaves, max(began, default=None)
        )


def encode_mark(mark: WriterMark) -> str:
    """Return the JSON text of a mark."""
    return to_json([mark.time_us, mark.version, mark.is_alive, _cells(mark.cut)])


def encode_watermark(watermark: Watermark) -> str:
    """Return the JSON text of a watermark; its version is in the name of the domain."""
    return to_json([watermark.lower_us, watermark.upper_us, _cells(watermark.cut)])


def mark_of(view: StreamView, writer_id: str) -> WriterMark | None:
    """Return the mark of a writer as it is stored, or None."""
    text = view.snapshot.domains.get(f"{MARK_PREFIX}{writer_id}")
    return None if text is None else _decode_mark(view, writer_id, text)


def marks_of(view: StreamView) -> list[WriterMark]:
    """Return the marks of all writers, by id.

    A writer that has left is there as long as a transaction that it began before is open.
    """
    domains = view.snapshot.domains
    marks = [
        _decode_mark(view, name.removeprefix(MARK_PREFIX), domains[name])
        for name in sorted(view.snapshot.names(MARK_PREFIX))
    ]
    if not view.snapshot.open or all(mark.is_alive for mark in marks):
        return marks
    began: dict[str, int] = {}
    for opened in view.transactions.values():
        if opened.writer_id is not None:
            first = began.get(opened.writer_id, opened.version)
            began[opened.writer_id] = min(first, opened.version)
    return [
        replace(mark, is_alive=True) if left_after(mark, began.get(mark.writer_id)) else mark
        for mark in marks
    ]


def left_after(mark: WriterMark | None, began: int | None) -> bool:
    """Return whether a stored mark's writer has left after it began a transaction, if it did."""
    if mark is None or began is None or mark.is_alive or mark.time_us == REMOVED_US:
        return False
    return began < mark.version


def watermarks_of(view: StreamView) -> list[Watermark]:
    """Return the watermarks that the log's state holds, oldest first."""
    domains = view.snapshot.domains
    found = (
        (int(name.removeprefix(WATERMARK_PREFIX)), domains[name])
        for name in view.snapshot.names(WATERMARK_PREFIX)
    )
    try:
        return [_decode_watermark(view.stream, view.life, v, text) for v, text in sorted(found)]
    except DECODE_ERRORS as error:
        raise _damaged(view, "a watermark", error) from error


def _decode_mark(view: StreamView, writer_id: str, text: str) -> WriterMark:
    try:
        return _decoded_mark(view.stream, view.life, writer_id, text)
    except DECODE_ERRORS as error:
        raise _damaged(view, f"the mark of writer {writer_id}", error) from error


@cached_by_text(DECODED_TEXT_CHARACTERS)
def _decoded_mark(stream: str, life: int, writer_id: str, text: str) -> WriterMark:
    time_us, version, is_alive, cells = json.loads(text)
    cut = StreamCut(stream, life, dict(cells))
    known_us = time_us if time_us == REMOVED_US else _clamped(time_us)
    return WriterMark(writer_id, known_us, cut, typed(version, int), bool(is_alive))


@cached_by_text(DECODED_TEXT_CHARACTERS)
def _decode_watermark(stream: str, life: int, version: int, text: str) -> Watermark:
    lower_us, upper_us, cells = json.loads(text)
    cut = StreamCut(stream, life, dict(cells))
    return Watermark(_clamped(lower_us), _clamped(upper_us), cut, version)


def _clamped(time_us: object) -> int:
    """Return a stored time within the years 1 to 9999; early commits did not check theirs."""
    return min(max(typed(time_us, int), MIN_TIME_US), MAX_TIME_US)


def _damaged(view: StreamView, what: str, error: Exception) -> CorruptLog:
    return CorruptLog(
        f"{view.snapshot.where}: version {view.version} of the log holds a damaged record of "
        f"{what}: {error!r}; restore it from a copy.",
        path=view.snapshot.where,
        version=view.version,
    )


def _cells(cut: StreamCut) -> list[list[int]]:
    return [[segment_id, offset] for segment_id, offset in cut]
