"""The stream of the dead letters of a typed stream: its name, and what it must be like."""

from __future__ import annotations

from typing import Final

from pravega_spark.engine.stream.view import StreamView
from pravega_spark.policies import ScalingPolicy, StreamConfiguration

SUFFIX: Final = "-dlq"
"""What follows the name of the stream in that of its letters' stream."""


def letter_configuration(written: StreamView) -> StreamConfiguration:
    """Return that of a new stream of letters: as many segments, and as secret as the stream."""
    segments = ScalingPolicy.fixed(len(written.active.segment_ids))
    return StreamConfiguration(scaling=segments, encryption=written.record.configuration.encryption)


def letter_problem(written: StreamView, letters: StreamView) -> str | None:
    """Return why dead letters cannot go to a stream, with what to do; None if they can."""
    stream, name = written.record.stream, letters.record.stream
    if not letters.event_format.is_raw:
        return f"stream {name} is typed, and dead letters are bytes. Delete it"
    encryption = written.record.configuration.encryption
    if encryption is not None and letters.record.configuration.encryption is None:
        return f"stream {stream} is encrypted, and stream {name} is not. Create that one so"
    return None
