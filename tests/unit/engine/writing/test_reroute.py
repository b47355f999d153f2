from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pravega_spark.engine.writing.append as append_module
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import Recuts, reroute
from pravega_spark.values.segments import SegmentRange
from tests.harness.small_streams import make_stream, scale, staged

KEYS = st.lists(st.none() | st.sampled_from([f"k{i}" for i in range(12)]), max_size=30)
CUTS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=4)


@given(KEYS, KEYS, CUTS)
def test_after_any_scales_each_key_is_in_its_active_segment_and_in_order(
    first: list[str | None], second: list[str | None], cuts: list[tuple[bool, int]]
) -> None:
    stream = make_stream(segments=2)
    events = [(key, b"%d" % n) for n, key in enumerate([*first, *second])]
    chunks = [*staged(stream, events[: len(first)]), *staged(stream, events[len(first) :])]
    for split, which in cuts:
        segments = stream.view().active.segments
        if split:
            old = segments[which % len(segments)]
            low, high = old.key_range.low, old.key_range.high
            middle = (low + high) / 2
            scale(stream, [old.segment_id], [(low, middle), (middle, high)])
        elif len(segments) > 1:
            a, b = segments[which % (len(segments) - 1) :][:2]
            ranges = [(a.key_range.low, b.key_range.high)]
            scale(stream, [a.segment_id, b.segment_id], ranges)

    view = stream.view()
    moved = reroute(stream, view, 0, chunks, {})

    seen: dict[str | None, list[bytes]] = {}
    for chunk in moved:
        segment = view.active.segment(chunk.segment_id)
        assert segment is not None
        for key, event in _rows(stream, chunk.path):
            seen.setdefault(key, []).append(event)
            if key is not None:
                assert segment.key_range.low <= position(key) < segment.key_range.high
    wanted: dict[str | None, list[bytes]] = {}
    for key, event in events:
        wanted.setdefault(key, []).append(event)
    assert sorted(seen.pop(None, [])) == sorted(wanted.pop(None, []))
    assert seen == wanted


def _rows(stream: StreamLog, path: str) -> list[tuple[str | None, bytes]]:
    table = pq.read_table(stream.store.open(f"{stream.path}/{path}"))
    columns = (table.column("routing_key").to_pylist(), table.column("event").to_pylist())
    return list(zip(*columns, strict=True))


def test_chunk_that_was_cut_for_an_epoch_is_cut_again_after_a_lost_race_to_another_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = make_stream(segments=1)
    life, version = stream.view().life, stream.view().version
    events = [(f"k{n % 40}", b"%d" % n) for n in range(200)]
    chunks = staged(stream, events)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    seen = list[Recuts]()

    def raced(*given: Any) -> list[StagedChunk]:
        """Split the first half again before the commit of what was cut is tried."""
        moved = reroute(*given)
        seen.append({**given[-1]})
        if len(seen) == 1:
            half = stream.view().active.segments[0].segment_id
            scale(stream, [half], [(0.0, 0.25), (0.25, 0.5)])
        return moved

    monkeypatch.setattr(append_module, "reroute", raced)
    append_module.append(stream, life, version, chunks)
    assert len(seen) == 2, "the commit lost its first race"
    view = stream.view()
    found: dict[str, list[bytes]] = {}
    for segment in view.active.segments:
        end = view.segment(segment.segment_id).next_offset
        rng = SegmentRange(stream.name, life, segment.segment_id, 0, end)
        for batch in read_range(stream, rng):
            for row in batch.to_pylist():
                key = row["routing_key"]
                assert segment.key_range.low <= position(key) < segment.key_range.high
                found.setdefault(key, []).append(row["event"])
    assert found == {key: [e for k, e in events if k == key] for key, _ in events}
