"""Steps of a stream's story that the public API does not offer yet, made on the engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from pravega_spark.engine import epochs
from pravega_spark.engine.actions import Body
from pravega_spark.engine.logreader import LogReader
from pravega_spark.engine.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    SegmentRecord,
    encode_epoch,
)
from pravega_spark.engine.snapshot import Snapshot, first_snapshot
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.model import Epoch, KeyRange


def scale(stream: Stream, seal: Collection[int], ranges: Sequence[KeyRange]) -> Epoch:
    """Replace the segments ``seal`` by new ones of ``ranges``, in one commit."""
    made: list[Epoch] = []

    def decide(snapshot: Snapshot | None) -> Body:
        assert snapshot is not None
        view = StreamView(snapshot)
        record = view.record
        number = record.next_segment_number
        epoch = epochs.scale(view, seal, ranges, stream.runtime.now_ms(), number)
        made[:] = [epoch]
        after = replace(
            record, active_epoch=epoch.number, next_segment_number=number + len(ranges)
        )
        domains = {
            STREAM_DOMAIN: after.encode(),
            f"{EPOCH_PREFIX}{epoch.number}": encode_epoch(epoch),
        }
        for segment_id in seal:
            sealed = replace(view.segment(segment_id), sealed_epoch=epoch.number)
            domains[f"{SEGMENT_PREFIX}{segment_id}"] = sealed.encode()
        for segment_id in set(epoch.segment_ids) - set(view.active.segment_ids):
            domains[f"{SEGMENT_PREFIX}{segment_id}"] = SegmentRecord(segment_id).encode()
        parameters = {"epoch": epoch.number, "sealed": sorted(seal)}
        return Body("SCALE", parameters=parameters, domains=domains)

    stream.log.commit(decide)
    return made[0]


def snapshots(reader: LogReader, last: int) -> Iterator[Snapshot]:
    """Yield the snapshot of each version from 0 to ``last``; needs a log without gaps."""
    snapshot: Snapshot | None = None
    for commit in reader.span(-1, last):
        snapshot = (
            first_snapshot(commit, reader.where) if snapshot is None else snapshot.apply(commit)
        )
        yield snapshot
