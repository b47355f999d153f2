"""What a cut has lost whose segments left the stream's log with a truncation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pravega_spark.engine.stream.history import HistoryRow, append_history
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import TruncatedData
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.reader_groups.configuration import StreamCutRange
from pravega_spark.values.events import Event
from pravega_spark.values.segments import END, SegmentRange, StreamCut
from tests.harness.releases import run_release

S = "s/t"
HALVES, WHOLE = [(0.0, 0.5), (0.5, 1.0)], [(0.0, 1.0)]
MIDDLE = 1 << 32 | 1


def world(root: Path | str) -> StreamManager:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(S)
    write(manager, 5)
    return manager


def write(manager: StreamManager, count: int) -> None:
    with manager.create_writer(S) as writer:
        for number in range(count):
            writer.write_event(b"%d" % number, "k")


def scaled(manager: StreamManager, middle: int) -> StreamCut:
    """Scale twice, with some events in between, and truncate at the tail; return the cut before."""
    before = manager.tail(S)
    manager.scale_stream(S, [0], [(0.0, 1.0)])
    write(manager, middle)
    manager.scale_stream(S, [MIDDLE], [(0.0, 1.0)])
    manager.truncate_stream(S, StreamCut.LATEST)
    return before


def test_a_cut_at_the_end_of_a_passed_segment_has_lost_nothing(tmp_path: Path) -> None:
    manager = world(tmp_path)
    cut = scaled(manager, 0)
    write(manager, 3)
    assert len(list(manager.read(S, cut))) == 3
    assert manager.distance(S, cut, manager.tail(S))[0] == 3
    assert sum(map(len, manager.segment_ranges(S, cut))) == 3
    assert len(list(manager.follow(S, cut, timeout=0))) == 3
    manager.save_cut(S, "here", cut)
    manager.subscribe(S, "job", start=cut)
    group = manager.create_reader_group("s/g", {S: StreamCutRange(cut)}, retention="manual")
    with group.create_reader("a") as reader:
        assert len(events(reader)) == 3


def events(reader: object) -> list[Event]:
    found = []
    while (read := reader.read_next_event(0)).event is not None:  # type: ignore[attr-defined]
        found.append(read.event)
    return found


def test_a_truncated_epoch_in_the_middle_is_lost(tmp_path: Path) -> None:
    manager = world(tmp_path)
    cut = scaled(manager, 4)
    lost = (SegmentRange(S, 1, MIDDLE, 0, 4),)
    for call in (
        lambda: list(manager.read(S, cut)),
        lambda: manager.distance(S, cut, manager.tail(S)),
        lambda: manager.segment_ranges(S, cut),
        lambda: list(manager.follow(S, cut, timeout=0)),
        lambda: manager.save_cut(S, "here", cut),
        lambda: manager.subscribe(S, "job", start=cut),
        lambda: manager.create_reader_group("s/g", {S: StreamCutRange(cut)}, retention="manual"),
    ):
        with pytest.raises(TruncatedData) as info:
            call()
        assert info.value.lost == lost


def test_a_group_is_told_of_a_truncated_epoch_in_the_middle_and_of_nothing_else(
    tmp_path: Path,
) -> None:
    for middle in (0, 4):
        manager = world(tmp_path / str(middle))
        group = manager.create_reader_group("s/g", [S])
        reader = group.create_reader("a")
        assert len(events(reader)) == 5
        scaled(manager, middle)
        write(manager, 2)
        if middle:
            with pytest.raises(TruncatedData) as info:
                events(reader)
            assert info.value.lost == (SegmentRange(S, 1, MIDDLE, 0, 4),)
        assert len(events(reader)) == 2


def test_a_group_goes_back_to_a_checkpoint_at_the_end_of_a_passed_segment(tmp_path: Path) -> None:
    manager = world(tmp_path)
    group = manager.create_reader_group("s/g", [S], retention="manual")
    with group.create_reader("a") as reader:
        assert len(events(reader)) == 5
    group.publish(group.stream_cuts())
    scaled(manager, 0)
    write(manager, 2)
    group.reset()
    with group.create_reader("b") as reader:
        assert len(events(reader)) == 2


def test_a_late_row_of_another_life_does_not_win(tmp_path: Path) -> None:
    manager = world(tmp_path)
    cut = scaled(manager, 4)
    epoch = open_stream(root_of(manager).store, S).view().since(0)
    assert epoch is not None
    cells = [[s.segment_id, 0.0, 1.0] for s in epoch.epoch(1).segments]
    value = {"reference": 1, "created": 1, "segments": cells, "splits": 0, "merges": 0}
    late = {**value, "life": 7, "ends": {str(MIDDLE): 0}}
    append_history(
        open_stream(root_of(manager).store, S),
        [HistoryRow("epoch", 10**6, "pravega.epoch.1", json.dumps(late))],
    )
    with pytest.raises(TruncatedData) as info:
        list(StreamManager(tmp_path).read(S, cut))
    assert sum(map(len, info.value.lost)) == 4


def test_what_the_history_has_not_counts_as_lost(tmp_path: Path) -> None:
    manager = world(tmp_path)
    cut = scaled(manager, 0)
    for file in (tmp_path / S / "metadata/data").rglob("epoch-*.parquet"):
        file.write_bytes(b"damaged")
    with pytest.raises(TruncatedData, match="segment 0#0 from 5 was truncated") as info:
        list(StreamManager(tmp_path).read(S, cut))
    assert info.value.lost == (SegmentRange(S, 1, 0, 5, 5),)
    sealed = replace(cut, positions={0: END})
    with pytest.raises(TruncatedData, match="0#0 from its end"):
        list(StreamManager(tmp_path).read(S, sealed))


def test_a_cut_that_the_history_contradicts_counts_as_lost(tmp_path: Path) -> None:
    manager = world(tmp_path)
    cut = scaled(manager, 0)
    beyond = replace(cut, positions={0: 6})
    with pytest.raises(TruncatedData, match="from 6"):
        list(manager.read(S, beyond))


OLD = """
import sys
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamCut, segment_text
manager = StreamManager(sys.argv[1])
(segment,) = manager.segments("s/t")
manager.scale_stream("s/t", [segment.segment_id], [(0.0, 1.0)])
manager.truncate_stream("s/t", StreamCut.LATEST)
print([epoch.number for epoch in manager.epochs("s/t")])
"""


def test_the_previous_release_truncates_beside_this_one(tmp_path: Path) -> None:
    manager = world(tmp_path)
    old = manager.tail(S)
    assert run_release("0.1.0", OLD, tmp_path) == "[0, 1]\n"
    write(manager, 1)
    newer = manager.tail(S)
    scaled_again = StreamManager(tmp_path)
    scaled_again.scale_stream(S, [MIDDLE], [(0.0, 1.0)])
    scaled_again.truncate_stream(S, StreamCut.LATEST)
    assert run_release("0.1.0", OLD, tmp_path) == "[0, 1, 2, 3]\n"
    write(manager, 2)
    assert len(list(manager.read(S, newer))) == 2
    with pytest.raises(TruncatedData) as info:
        list(manager.read(S, old))
    assert info.value.lost == (SegmentRange(S, 1, MIDDLE, 0, 1),)


def test_rows_without_a_life_count_in_the_first_life_alone(tmp_path: Path) -> None:
    manager = world(tmp_path)
    manager.seal_stream(S)
    manager.delete_stream(S)
    manager.create_stream(S)
    cut = manager.tail(S)
    run_release("0.1.0", OLD, tmp_path)
    with pytest.raises(TruncatedData, match="from 0"):
        list(manager.read(S, cut))
