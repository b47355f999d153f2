"""Release 0.1.0 and this code use one stream whose history has rows of the layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.history import history_log, read_history
from pravega_spark.engine.stream.layout_rows import LAYOUT
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.manager import root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.releases import run_release

S = "s/t"
HALVES, WHOLE = [(0.0, 0.5), (0.5, 1.0)], [(0.0, 1.0)]

SCALE = """
import sys
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
for number in range(int(sys.argv[2])):
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"old", routing_key="k").result()
    active = manager.segments("s/t")
    ranges = [(0.0, 0.5), (0.5, 1.0)] if len(active) == 1 else [(0.0, 1.0)]
    manager.scale_stream("s/t", [s.segment_id for s in active], ranges)
print(len(manager.epochs("s/t")))
"""
TRUNCATE = """
import sys
from pravega_spark import StreamManager
from pravega_spark.engine.store import open_store
from pravega_spark.integrity.root_integrity import check_root
manager = StreamManager(sys.argv[1])
with manager.create_writer("s/t") as writer:
    writer.write_event(b"old", routing_key="k").result()
manager.truncate_stream("s/t", manager.tail("s/t"))
manager.sweep_stream("s/t", grace=0)
found = [one.damage for one in check_root(open_store(sys.argv[1]), deep=True) if one.damage]
print(len(manager.epochs("s/t")), found)
"""
COPY = """
import sys
from pravega_spark import StreamManager
StreamManager(sys.argv[1]).backup(sys.argv[2])
restored = StreamManager(sys.argv[2])
restored.restore()
print(len(restored.epochs("s/t")))
"""


def scale(manager: StreamManager) -> None:
    with manager.create_writer(S) as writer:
        writer.write_event(b"new", routing_key="k").result()
    active = manager.segments(S)
    ranges = HALVES if len(active) == 1 else WHOLE
    manager.scale_stream(S, [s.segment_id for s in active], ranges)


def assert_rows_tell_all(manager: StreamManager, *, sizes: bool = True) -> None:
    """Assert that the newest row of each name is of the present life and as the log has it."""
    stream = root_of(manager).stream(S)
    rows = [row for part in read_history(stream, LAYOUT) for row in part]
    newest = {row.name: row.value for row in sorted(rows, key=lambda row: row.version)}
    values = [json.loads(value) for value in newest.values()]
    life, epochs = stream.view().life, manager.epochs(S)
    assert {value[1] for value in values} == {life}
    made = {(v[2], v[4], v[5], v[6]) for v in values if v[0] == "epoch"}
    assert made == {(e.number, e.created_ms, e.splits, e.merges) for e in epochs}
    segments = {s.segment_id: s for epoch in epochs for s in epoch.segments}
    told = {v[2]: v for v in values if v[0] == "segment"}
    assert told.keys() == segments.keys()
    for segment_id, value in told.items():
        info = manager.segment(S, segment_id)
        assert info.key_range is not None
        cells = [info.key_range.low, info.key_range.high, info.created_ms]
        assert value[4:9] == [*cells, info.sealed_epoch, info.sealed_ms]
        if sizes and info.sealed_epoch is not None:
            assert value[9:] == [info.next_offset, info.size_bytes]


def test_scales_of_the_previous_release_get_their_rows_with_the_next_sweep(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.by_event_rate(1)))
    scale(manager)
    assert run_release("0.1.0", SCALE, tmp_path, 3) == "5\n"
    manager.sweep_stream(S)
    assert_rows_tell_all(manager)
    assert run_release("0.1.0", SCALE, tmp_path, 1) == "6\n"
    scale(manager)
    assert_rows_tell_all(manager)
    manager.close()


@pytest.mark.medium
def test_previous_release_reads_truncates_sweeps_and_copies_beside_the_rows(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.by_event_rate(1)))
    for _ in range(17):  # so many appends that the sweep of 0.1.0 merges files of the history
        scale(manager)
    manager.truncate_stream(S, StreamCut.LATEST)
    scale(manager)
    assert run_release("0.1.0", TRUNCATE, root) == "19 []\n"
    log = history_log(root_of(manager).stream(S))
    assert log.refresh() is not None
    assert log.operation in {"COMPACT", "SWEEP"}
    assert_rows_tell_all(manager)
    scale(manager)
    assert_rows_tell_all(manager)
    assert [found.damage for found in check_root(open_store(root), deep=True) if found.damage] == []
    assert run_release("0.1.0", COPY, root, copy) == "20\n"
    restored = StreamManager(copy)
    restored.sweep_stream(S)
    assert_rows_tell_all(restored)
    scale(restored)
    assert_rows_tell_all(restored)
    for one in (manager, restored):
        one.close()


@pytest.mark.medium
def test_a_stream_whose_early_epochs_the_previous_release_truncated_gets_all_of_its_rows(
    tmp_path: Path,
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.by_event_rate(1)))
    assert run_release("0.1.0", SCALE, tmp_path, 3) == "4\n"
    assert run_release("0.1.0", TRUNCATE, tmp_path) == "4 []\n"
    assert root_of(manager).stream(S).view().oldest_epoch > 0
    manager.sweep_stream(S)
    assert_rows_tell_all(manager, sizes=False)
    manager.close()
