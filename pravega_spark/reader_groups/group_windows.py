"""Time windows of a group: by the earliest position of its readers, as one of them knows it."""

from __future__ import annotations

from collections.abc import Mapping

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.watermarks import latest_window, window_at
from pravega_spark.errors import InvalidInput, InvalidStreamCut, NoSuchStream
from pravega_spark.model import StreamCut, TimeWindow
from pravega_spark.reader_groups.group_state import GroupState, SegmentKey
from pravega_spark.reader_groups.group_table import Streams
from pravega_spark.reader_groups.segment_selector import view_in_life


class GroupWindows:
    """The time windows that a reader has returned for the streams of its group."""

    def __init__(self, streams: Streams) -> None:
        """Begin without windows."""
        self._streams = streams
        self._returned: dict[str, TimeWindow] = {}

    def of_stream(
        self, state: GroupState, stream: str, held: Mapping[SegmentKey, int]
    ) -> TimeWindow:
        """Return the window of a stream: of the recorded positions, and of this reader's own.

        Asks the storage only if another reader is ahead of what this process knows of the stream.
        Raises InvalidInput for a stream that the group does not read, and NoSuchStream.
        """
        if stream not in state.lives:
            raise InvalidInput(
                f"reader group {state.group} does not read stream {stream}, so it has no time "
                f"window there; its streams are {', '.join(sorted(state.lives))}."
            )
        cut = _earliest_cut(state, stream, held)
        try:
            found = self._at(cut, refresh=False)
        except InvalidStreamCut:
            found = self._at(cut, refresh=True)
        self._returned[stream] = latest_window(self._returned.get(stream), found)
        return self._returned[stream]

    def _at(self, cut: StreamCut, *, refresh: bool) -> TimeWindow:
        view = view_in_life(self._streams(cut.stream), cut.life, refresh=refresh)
        if view is None:
            raise NoSuchStream(
                f"stream {cut.stream} was deleted, or created again, since the group began to read "
                "it; it has no time window.",
                stream=cut.stream,
            )
        return window_at(view, locate(view, cut))


def _earliest_cut(state: GroupState, stream: str, held: Mapping[SegmentKey, int]) -> StreamCut:
    """Return the recorded cut of a group, with a reader's segments where the reader is by now."""
    recorded = state.cut(stream)
    cells = dict(recorded.positions)
    for key, offset in held.items():
        if key.stream == stream and cells.get(key.segment_id, -1) >= 0:
            cells[key.segment_id] = max(cells[key.segment_id], offset)
    return StreamCut(stream, recorded.life, cells)
