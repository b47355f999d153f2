"""Truncation as one commit, for tests: the head moves, and chunks wholly below it go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.engine.actions import Body, Remove
from pravega_spark.engine.records import STREAM_DOMAIN
from pravega_spark.engine.snapshot import Snapshot
from pravega_spark.engine.stream import Stream, StreamView


def truncate(stream: Stream, head: Mapping[int, int], *, delete: bool = True) -> None:
    """Move the head of a stream; delete what the new version does not name any more."""
    gone: list[str] = []

    def decide(snapshot: Snapshot | None) -> Body:
        assert snapshot is not None
        record = replace(StreamView(snapshot).record, head=dict(head))
        with stream.log.files() as files:
            adds = [a for s, o in head.items() if o > 0 for a in files.find(s, 0, o)]
        old = [a for a in adds if _end(a) <= head[int(a.partition["segment_id"])]]
        gone[:] = [add.path for add in old]
        removes = [Remove.of(add, stream.runtime.now_ms()) for add in old]
        return Body("TRUNCATE", domains={STREAM_DOMAIN: record.encode()}, removes=removes)

    stream.view()
    stream.log.commit(decide)
    if delete:
        stream.store.delete(f"{stream.path}/{path}" for path in gone)


def _end(add: object) -> int:
    return int(add.partition["base_offset"]) + int(add.tags["rows"])  # type: ignore[attr-defined]
