"""A stream with very many past epochs answers each layout query in a handful of storage reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pravega_spark import StreamConfiguration, StreamManager
from pravega_spark.engine.layout import epochs
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    SegmentRecord,
    decode_stream,
    encode_epoch,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.values.segments import Epoch, KeyRange, Segment, StreamCut, make_segment_id
from tests.harness import stream_cuts as cuts
from tests.harness.small_tables import commit
from tests.harness.tiers import sized

pytestmark = pytest.mark.long

EPOCHS = sized(10_000, 100_000)
STARTED_MS = 1_000


class CountingStore:
    """Delegates every call and counts the reads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.reads: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("get", "list", "exists", "open"):

            def counted(*args: Any, **kwargs: Any) -> Any:
                self.reads[name] += 1
                return found(*args, **kwargs)

            return counted
        if name == "get_many":

            def counted_many(keys: list[str]) -> Any:
                self.reads[name] += len(keys)
                return found(keys)

            return counted_many
        return found


def _segment(epoch: int) -> Segment:
    return Segment(make_segment_id(epoch, epoch), KeyRange(0.0, 1.0))


def _history(snapshot: Snapshot | None) -> Body:
    """Return one commit that sets the stream's state as after as many scales."""
    assert snapshot is not None
    domains: dict[str, str | None] = {}
    for number in range(EPOCHS):
        epoch = Epoch(number, number, STARTED_MS + number, (_segment(number),))
        sealed = number + 1 if number + 1 < EPOCHS else None
        record = SegmentRecord(_segment(number).segment_id, 1, 10, sealed)
        domains[f"{EPOCH_PREFIX}{number}"] = encode_epoch(epoch)
        domains[f"{SEGMENT_PREFIX}{record.segment_id}"] = record.encode()
    before = decode_stream(snapshot.domains[STREAM_DOMAIN])
    last = replace(before, active_epoch=EPOCHS - 1, next_segment_number=EPOCHS)
    return Body("SCALE STREAM", domains={**domains, STREAM_DOMAIN: last.encode()})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("epochs")
    stream = StreamLog(open_store(folder), "a/b")
    StreamManager(folder).create_scope("a")
    lifecycle.create(stream, 1, StreamConfiguration())
    snapshot = commit(stream.log, _once(_history))
    checkpoint.maintain(stream.log.reader, snapshot.version, checkpoint=False)
    return folder


def _once(body: Any) -> Any:
    def decide(snapshot: Snapshot | None) -> Body | None:
        return body(snapshot) if snapshot is not None and snapshot.version == 0 else None

    return decide


def test_layout_queries_take_a_handful_of_reads_after_many_epochs(root: Path) -> None:
    store = CountingStore(open_store(root))
    stream = StreamLog(store, "a/b")
    view = stream.view()
    middle, last = EPOCHS // 2, EPOCHS - 1
    assert view.active.number == last
    assert epochs.segments_at(view, STARTED_MS + middle) == (_segment(middle),)
    assert epochs.segments_at(view, 0) == (_segment(0),)
    assert view.epoch(middle).segments == (_segment(middle),)
    ((successor, predecessors),) = epochs.successors(view, _segment(middle).segment_id)
    assert successor == _segment(middle + 1)
    assert predecessors == (_segment(middle),)
    assert epochs.successors(view, _segment(last).segment_id) == ()
    assert view.segment(_segment(7).segment_id).sealed_epoch == 8
    near = StreamCut("a/b", 1, {_segment(last - 2).segment_id: 0})
    assert len(cuts.segments_between(view, near, view.tail)) == 3
    assert cuts.distance_events(view, near, view.tail) == 3
    # Opening reads the root marker, the hint, the state file and a part of it with their commits,
    # the next version, and the marks; queries read nothing more.
    assert sum(store.reads.values()) <= 9, store.reads


def test_append_writes_no_more_than_one_of_a_new_stream(root: Path) -> None:
    manager = StreamManager(root)
    with manager.create_writer("a/b") as writer:
        writer.write_event(b"x", routing_key="k").result()
    version = manager.stream_info("a/b").version
    commit = root / "a/b/events/_delta_log" / f"{version:020d}.json"
    assert commit.stat().st_size < 4_096
