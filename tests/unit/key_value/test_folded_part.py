"""Which changes a fold reflects, and an index that is behind several folds."""

from __future__ import annotations

import pytest

from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.key_value.changes import Change, FoldedPart
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.manager import StreamManager
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange, StreamCut, make_segment_id
from tests.harness.fake_runtime import FakeRuntime, manager_of

T = "s/t"
CUT = StreamCut("s/_kv_tables/t", 1, {make_segment_id(3, 1): 7, make_segment_id(5, 2): 0})


@pytest.mark.parametrize(
    ("number", "epoch", "offset", "held"),
    [
        (3, 1, 6, True),
        (3, 1, 7, False),
        (5, 2, 0, False),
        (0, 0, 99, True),  # sealed before the cut
        (4, 2, 99, True),  # opened with a segment of the cut, and sealed before it
        (6, 3, 0, False),  # opened later
    ],
)
def test_a_change_is_folded_if_it_lies_before_the_cut(
    number: int, epoch: int, offset: int, held: bool
) -> None:
    change = Change(make_segment_id(number, epoch), offset, 0, b"")
    assert FoldedPart(CUT).holds(change) is held


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("scales", [False, True])
def test_an_index_that_slept_over_a_fold_finds_everything(truncates: bool, scales: bool) -> None:
    runtime = FakeRuntime()
    manager = manager_of(runtime)
    manager.create_scope("s")
    policy = ScalingPolicy.by_event_rate(1_000)
    manager.create_key_value_table(T, KeyValueTableConfiguration("string", scaling=policy))
    table = manager.key_value_table(T)
    sleeper = StreamManager(manager.root, runtime=runtime).key_value_table(T)
    for n in range(4):
        table.put(f"k{n}", "old").result()
    assert sleeper.get("k0", fresh=True)
    log = table._stream
    for step in range(3):
        table.put(f"before {step}", "1").result()
        if scales:
            view = log.view()
            ranges = split(KeyRange(0.0, 1.0), 1 + step % 2)
            scale_stream(log, view.active.segment_ids, ranges, life=1)
            table.put(f"scaled {step}", "1").result()
        done = fold(log, folded_table(log, table.configuration), life=1)
        table.put(f"after {step}", "1").result()
        table.remove(f"k{step}").result()
        if truncates:
            truncate(log, done.cut, life=1)
    runtime.sleep(2)
    expected = {"k3"} | {f"{when} {n}" for when in ("before", "after") for n in range(3)}
    expected |= {f"scaled {n}" for n in range(3)} if scales else set()
    for one in (sleeper, table):
        assert {key for key in expected if one.get(key)} == expected
        assert [one.get(f"k{n}") for n in range(3)] == [None] * 3
        assert set(one.keys()) == expected
    changes, folded = sleeper._index.tables
    assert folded is not None
    assert {key.primary for key in changes} == {b"k2", b"after 2"}, "what is folded left the memory"
    assert sleeper.replace("before 0", "2", table.get("before 0").version)  # type: ignore[union-attr]
