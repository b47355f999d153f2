"""The cut of a version: where a stream ended at an older version of its Delta table."""

from __future__ import annotations

from pravega_spark.engine.log.reader import snapshot_at
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput, TruncatedData
from pravega_spark.values.checks import check_whole
from pravega_spark.values.segments import StreamCut


def cut_at(stream: StreamLog, view: StreamView, version: int) -> StreamCut:
    """Return the cut after the events of a version and of all before it.

    Raises InvalidInput for a version that does not exist yet, TruncatedData for one that the log
    has no longer, and for one of an earlier life of the stream.
    """
    check_whole("version", version, None)
    oldest = view.snapshot.commit_deletion_mark
    if version > view.version:
        raise InvalidInput(
            f"version {version} of stream {view.stream} does not exist yet: the newest one is "
            f"{view.version}."
        )
    if version < oldest:
        raise TruncatedData(
            f"version {version} of stream {view.stream} is not retained: versions {oldest} "
            f"to {view.version} are. Give a later one, or start at the head.",
            head=view.head,
        )
    if version == view.version:
        return view.tail
    then = StreamView(snapshot_at(stream.log.reader, version))
    then.check_life(view.life)
    return then.tail
