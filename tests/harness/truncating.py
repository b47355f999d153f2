"""Truncation for tests, which immediately deletes the files that a sweep would delete later."""

from __future__ import annotations

from collections.abc import Mapping

from pravega_spark.engine.stream import truncation
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.values.segments import StreamCut


def truncate(stream: StreamLog, head: Mapping[int, int]) -> None:
    """Move the head of a stream, and delete the files that the new version no longer names."""
    view = stream.view()
    before = _paths(stream)
    truncation.truncate(stream, StreamCut(stream.name, view.life, head))
    stream.store.delete(f"{stream.path}/{path}" for path in before - _paths(stream))


def _paths(stream: StreamLog) -> set[str]:
    with stream.log.files() as files:
        return {add.path for add in files.all()}
