"""When a stream's newest commit was made, also where a host's clock was ahead.

Times of commits never decrease. So after one commit by a host whose clock is ahead, the log's time
lies in the future until that time has come, whoever commits.
"""

from __future__ import annotations

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import CLOCK_SKEW_MS


def clock_ahead_seconds(stream: StreamLog, view: StreamView) -> float:
    """Return how far the log's time lies in the future; 0 within the usual skew of clocks."""
    ahead_ms = view.timestamp_ms - stream.runtime.now_ms()
    return ahead_ms / 1_000 if ahead_ms > CLOCK_SKEW_MS else 0.0


def committed_ms(stream: StreamLog, view: StreamView) -> int:
    """Return the time of the newest commit; that of its object if the log's lies in the future.

    Only then this asks the storage, once.
    """
    if not clock_ahead_seconds(stream, view):
        return view.timestamp_ms
    dated_ms = stream.store.modified_ms(stream.log.reader.key(view.version))
    return view.timestamp_ms if dated_ms is None else dated_ms
