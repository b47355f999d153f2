"""The batch reader as Spark's processes use it, without Spark: plan, pickle, read."""

from __future__ import annotations

import pytest

from pravega_spark.engine.store.local import LocalStore
from pravega_spark.errors import (
    InvalidInput,
    InvalidOption,
)
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.spark.read import partitions
from pravega_spark.values.segments import StreamCut, make_segment_id
from tests.harness.counted_chunks import process_on
from tests.harness.small_streams import created, scale
from tests.harness.spark_reading import batch_reader, events, fill, rows


def test_batch_read_is_split_by_offset_in_order(root: str) -> None:
    stream = created(root)
    for i in range(4):
        fill(stream, 10 * i, 10 * i + 10)
    reader = batch_reader(root, minpartitions="3")
    partitions = reader.partitions()
    assert len(partitions) == 3
    assert events(rows(reader, partitions)) == list(range(40))


def test_batch_read_continues_over_scale_events(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 30)
    scale(stream, [0, 1], [(0.0, 0.5), (0.5, 1.0)])
    fill(stream, 30, 60)
    reader = batch_reader(root)
    found = rows(reader, reader.partitions())
    assert sorted(events(found)) == list(range(60))
    assert {row["segment_id"] for row in found} >= {make_segment_id(2, 1), make_segment_id(3, 1)}


def test_task_reads_the_storage_past_what_readers_of_its_process_keep(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(created(root), 0, 5)
    ours, store = process_on(LocalStore(root))
    monkeypatch.setattr(partitions, "open_stream", lambda _, name: root_of(ours).stream(name))
    assert len([*ours.read("s/a")]) == 5
    assert store.gets()[0] == 1
    reader = batch_reader(root)
    for _ in range(2):
        assert events(rows(reader, reader.partitions())) == list(range(5))
        assert store.gets()[0] == 1


def test_end_before_start_is_refused(root: str) -> None:
    fill(created(root), 0, 5)
    offsets = {"startingoffsets": '{"s/a": {"0#0": 3}}', "endingoffsets": '{"s/a": {"0#0": 2}}'}
    with pytest.raises(InvalidOption, match=r"end s/a@1:0#0=2 is before the start s/a@1:0#0=3"):
        batch_reader(root, **offsets).partitions()


def test_a_read_between_saved_cuts_takes_their_names(root: str) -> None:
    manager = StreamManager(root)
    for name in ("s/a", "s/b"):
        fill(created(root, name), 0, 5)
        manager.save_cut(name, "monday", StreamCut(name, 1, {0: 2}))
    manager.save_cut("s/a", "friday", StreamCut("s/a", 1, {0: 4}))
    reader = batch_reader(root, startingstreamcut="monday", endingstreamcut="friday")
    assert events(rows(reader, reader.partitions())) == [2, 3]
    with pytest.raises(InvalidOption, match="stream s/a has no saved cut tuesday; it has friday"):
        batch_reader(root, startingstreamcut="tuesday").partitions()


def test_cut_of_an_earlier_life_or_another_stream_is_refused(root: str) -> None:
    fill(created(root), 0, 5)
    with pytest.raises(InvalidInput, match="life"):
        batch_reader(root, startingstreamcut="s/a@7:0#0=1").partitions()
    with pytest.raises(InvalidOption, match="also reads s/a"):
        batch_reader(root, startingstreamcut="s/b@1:0#0=1").partitions()
