from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    IllegalState,
    InvalidConfiguration,
    InvalidInput,
    NoSuchSegment,
    NoSuchStream,
    ScaleConflict,
    StreamSealed,
)
from pravega_spark.scaling import commit as scaling_commit
from pravega_spark.scaling.commit import check_scale, scale_stream
from pravega_spark.txn import lifecycle as txn_lifecycle
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction
from pravega_spark.values.segments import Epoch, KeyRange, make_segment_id
from tests.harness import stream_cuts as cuts
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import all_events, make_stream, reopen, write
from tests.harness.spy_store import Spy

Ranges = Sequence[tuple[float, float]]
HALVES: Ranges = [(0, 0.25), (0.25, 0.5)]


@pytest.fixture
def stream() -> StreamLog:
    """A stream of two segments, whose policy needs only one."""
    made = make_stream(Spy(), segments=2)
    lifecycle.update(made, StreamConfiguration(ScalingPolicy.by_event_rate(10, minimum=1)))
    return made


def scaled(stream: StreamLog, seal: Sequence[int], ranges: Ranges, **options: Any) -> Epoch:
    return scale_stream(stream, seal, [KeyRange(*r) for r in ranges], **options)


def layout(stream: StreamLog) -> list[tuple[str, float, float]]:
    segments = reopen(stream).view().active.segments
    return [(str(s), s.key_range.low, s.key_range.high) for s in segments]


def commits(stream: StreamLog) -> list[Commit]:
    fresh = reopen(stream)
    return list(fresh.log.reader.span(-1, fresh.view().version))


def scales(stream: StreamLog) -> int:
    return sum(commit.operation == "SCALE STREAM" for commit in commits(stream))


def roll(stream: StreamLog, late: Transaction) -> None:
    """Commit a rolling transaction, which duplicates the active epoch."""
    before = reopen(stream).view().active.number
    late.commit()
    assert reopen(stream).view().active.number == before + 2


def late_transaction(stream: StreamLog) -> Transaction:
    other = reopen(stream)
    opened = txn_lifecycle.begin(other, 1, lease_ms=60_000, execution_ms=600_000)
    txn = Transaction(other, opened.transaction_id)
    for n in range(20):
        txn.write_event(b"late", f"k{n}")
    txn.flush()
    return txn


# Scales


def test_split_is_one_commit_that_seals_opens_and_begins_an_epoch(stream: StreamLog) -> None:
    epoch = scaled(stream, [0], HALVES)
    assert layout(stream) == [("2#1", 0, 0.25), ("3#1", 0.25, 0.5), ("1#0", 0.5, 1)]
    view = reopen(stream).view()
    assert (epoch, epoch.splits, epoch.merges) == (view.active, 1, 0)
    assert (view.segment(0).sealed_epoch, view.segment(1).sealed_epoch) == (1, None)
    last = commits(stream)[-1]
    assert last.operation == "SCALE STREAM"
    assert last.info["operationParameters"]["sealed"] == '["0#0"]'
    assert "3#1=[0.25, 0.5)" in last.info["operationParameters"]["opened"]
    assert view.version == 2


def test_one_request_splits_and_merges_in_any_order(stream: StreamLog) -> None:
    scaled(stream, [1, 0], [(0.75, 1), (0, 0.25), (0.25, 0.75)])
    assert layout(stream) == [("2#1", 0, 0.25), ("3#1", 0.25, 0.75), ("4#1", 0.75, 1)]
    epoch = scaled(stream, reopen(stream).view().active.segment_ids, [(0, 1)])
    assert (epoch.number, epoch.merges, epoch.splits) == (2, 1, 0)
    assert layout(stream) == [("5#2", 0, 1)]


def test_segment_is_replaced_by_one_of_the_same_range(stream: StreamLog) -> None:
    scaled(stream, [1], [(0.5, 1)])
    assert layout(stream) == [("0#0", 0, 0.5), ("2#1", 0.5, 1)]


def test_events_of_a_key_stay_in_order_over_a_scale(stream: StreamLog) -> None:
    keys = [f"k{n}" for n in range(10)]
    write(stream, [(key, b"1") for key in keys])
    scaled(reopen(stream), [0], HALVES)
    write(stream, [(key, b"2") for key in keys])
    found = all_events(reopen(stream))
    assert all([e for k, e in found if k == key] == [b"1", b"2"] for key in keys)


# Refused scales


@pytest.mark.parametrize(
    ("seal", "ranges", "match"),
    [
        ([0], [(0, 0.25)], "both must cover the same keys"),
        ([0], [(0, 0.2), (0.25, 0.5)], "both must cover the same keys"),
        ([0], [(0, 0.25), (0.25, 0.75)], "both must cover the same keys"),
        ([0, 1], [(0, 0.5)], "both must cover the same keys"),
        ([0], [(0, 0.3), (0.2, 0.5)], r"\[0, 0.3\) and \[0.2, 0.5\) overlap"),
        ([0], [(0, 0.5), (0, 0.5)], "overlap"),
        ([0], [], "the new ranges cover nothing"),
        ([], [(0, 0.5)], "names no segment to seal"),
        ([], [], "names no segment to seal"),
    ],
)
def test_ranges_that_do_not_tile_the_sealed_ones_are_refused_and_change_nothing(
    stream: StreamLog, seal: list[int], ranges: Ranges, match: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=f"scale of s/t.*{match}"):
        scaled(stream, seal, ranges)
    assert scales(stream) == 0


def test_scale_below_the_policys_minimum_is_refused(stream: StreamLog) -> None:
    lifecycle.update(stream, StreamConfiguration(ScalingPolicy.by_event_rate(10, minimum=2)))
    with pytest.raises(InvalidConfiguration, match="leave 1 segment; its policy asks for at leas"):
        scaled(stream, [0, 1], [(0, 1)])
    assert scales(stream) == 0


@pytest.mark.parametrize("unknown", [7, make_segment_id(0, 5), make_segment_id(1, 1)])
def test_error_for_an_unknown_segment_names_the_active_ones(
    stream: StreamLog, unknown: int
) -> None:
    scaled(stream, [0], HALVES)
    with pytest.raises(NoSuchSegment, match=r"segment \d#\d does not exist; epoch 1 has 2#1, 3#1"):
        scaled(stream, [unknown], HALVES)


def test_scale_of_a_sealed_segment_is_a_conflict(stream: StreamLog) -> None:
    scaled(stream, [0], HALVES)
    with pytest.raises(ScaleConflict, match=r"0#0 was sealed by epoch 1, so another scale came fi"):
        scaled(stream, [0], [(0, 0.5)])
    with pytest.raises(ScaleConflict, match="decide again on these segments"):
        scaled(stream, [0, 1], [(0, 1)])
    assert scales(stream) == 1


def test_scale_of_a_truncated_segment_is_a_conflict(stream: StreamLog) -> None:
    for segment_id in (0, make_segment_id(2, 1)):
        keys = next(
            s.key_range for s in stream.view().active.segments if s.segment_id == segment_id
        )
        middle = (keys.low + keys.high) / 2
        scaled(stream, [segment_id], [(keys.low, middle), (middle, keys.high)])
    scaled(stream, [1], [(0.5, 1)])
    truncate(stream, cuts.tail(stream.view()))
    assert stream.view().oldest_epoch > 0
    with pytest.raises(ScaleConflict, match="0#0 is no longer active; epoch 3 has"):
        scaled(stream, [0], HALVES)


def test_sealed_or_deleted_stream_is_not_scaled(stream: StreamLog) -> None:
    scaled(stream, [0], HALVES)
    lifecycle.seal(reopen(stream))
    with pytest.raises(StreamSealed, match="s/t was sealed"):
        scaled(stream, [1], [(0.5, 1)])
    assert scaled(stream, [0], HALVES).number == 1  # a repetition of the first request
    lifecycle.delete(reopen(stream))
    with pytest.raises(NoSuchStream):
        scaled(stream, [1], [(0.5, 1)])
    with pytest.raises(NoSuchStream):
        scaled(StreamLog(stream.store, "s/none", FakeRuntime()), [0], HALVES)


def test_stream_in_sealing_is_not_scaled(stream: StreamLog) -> None:
    late_transaction(stream).prepare()
    with pytest.raises(IllegalState, match="prepared"):
        lifecycle.seal(reopen(stream), sweeper.end_all_transactions)
    with pytest.raises(StreamSealed, match="s/t was sealed"):
        scaled(stream, [1], [(0.5, 1)])


# Repeated and concurrent scales


def test_repeated_request_finds_its_epoch_and_makes_no_second_one(stream: StreamLog) -> None:
    first = scaled(stream, [0], HALVES)
    scaled(reopen(stream), [1], [(0.5, 1)])
    assert scaled(reopen(stream), [0], list(reversed(HALVES))) == first
    assert scales(stream) == 2


@pytest.mark.parametrize(
    "fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND, Fault.DELAY]
)
def test_unknown_outcome_of_a_put_makes_no_second_epoch(stream: StreamLog, fault: Fault) -> None:
    store = stream.store
    assert isinstance(store, Spy)
    store.rules.add(Rule(fault, "put_if_absent", "*/_delta_log/*", nth=1))
    assert scaled(stream, [0], HALVES).number == 1
    store.deliver()
    assert scaled(reopen(stream), [0], HALVES).number == 1
    assert scales(stream) == 1


def test_concurrent_scale_is_a_conflict_unless_it_is_disjoint(
    stream: StreamLog,
) -> None:
    store = stream.store
    assert isinstance(store, Spy)

    def scale_concurrently(seal: list[int], ranges: Ranges) -> None:
        def hook(operation: str, key: str) -> None:
            if operation == "put_if_absent":
                store.hook = None
                scaled(reopen(stream), seal, ranges)

        store.hook = hook

    scale_concurrently([1], [(0.5, 1)])
    assert scaled(stream, [0], HALVES).number == 2
    quarter = make_segment_id(3, 2)
    scale_concurrently([quarter], [(0, 0.125), (0.125, 0.25)])
    with pytest.raises(ScaleConflict, match="3#2 was sealed by epoch 3"):
        scaled(stream, [quarter], [(0, 0.1), (0.1, 0.25)])
    assert scales(stream) == 3


def test_concurrent_equal_scales_make_one_epoch(stream: StreamLog) -> None:
    store = stream.store
    assert isinstance(store, Spy)

    def hook(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            scaled(reopen(stream), [0], HALVES)

    store.hook = hook
    assert scaled(stream, [0], HALVES).number == 1
    assert scales(stream) == 1


# Rolling transactions


def test_old_id_of_a_duplicated_segment_names_the_duplicate(
    stream: StreamLog,
) -> None:
    several = [late_transaction(stream) for _ in range(2)]
    scaled(stream, [0], HALVES)
    for late in several:
        roll(stream, late)
    epoch = scaled(stream, [make_segment_id(2, 1)], [(0, 0.125), (0.125, 0.25)])
    assert layout(stream) == [
        ("4#6", 0, 0.125),
        ("5#6", 0.125, 0.25),
        ("3#5", 0.25, 0.5),
        ("1#5", 0.5, 1),
    ]
    for name in (make_segment_id(2, 1), make_segment_id(2, 3), make_segment_id(2, 5)):
        assert scaled(reopen(stream), [name], [(0, 0.125), (0.125, 0.25)]) == epoch
    assert scales(stream) == 2


def test_repeated_request_finds_its_epoch_over_a_rolling_transaction(stream: StreamLog) -> None:
    late = late_transaction(stream)
    first = scaled(stream, [0], HALVES)
    roll(stream, late)
    assert scaled(reopen(stream), [0], HALVES) == first
    assert scales(stream) == 1


def test_request_may_mix_old_and_new_ids_of_one_layout(stream: StreamLog) -> None:
    late = late_transaction(stream)
    scaled(stream, [0], HALVES)
    roll(stream, late)
    scaled(stream, [make_segment_id(2, 1), make_segment_id(3, 3)], [(0, 0.5)])
    assert layout(stream) == [("4#4", 0, 0.5), ("1#3", 0.5, 1)]


def test_duplicate_of_an_old_layout_for_late_events_is_not_active(
    stream: StreamLog,
) -> None:
    late = late_transaction(stream)
    scaled(stream, [0], HALVES)
    roll(stream, late)
    for segment_id in (0, make_segment_id(0, 2)):
        with pytest.raises(ScaleConflict, match="was sealed by epoch"):
            scaled(stream, [segment_id], [(0, 0.5)])


def test_automatic_request_is_refused_after_a_rolling_transaction(
    stream: StreamLog,
) -> None:
    late = late_transaction(stream)
    scaled(stream, [0], HALVES)
    roll(stream, late)
    with pytest.raises(ScaleConflict, match="2#1 was sealed by epoch 2"):
        scaled(stream, [make_segment_id(2, 1)], [(0, 0.125), (0.125, 0.25)], automatic=True)
    with pytest.raises(
        ScaleConflict
    ):  # the epoch of the rolling transaction is no scale of a request
        scaled(
            stream,
            [make_segment_id(2, 1), make_segment_id(3, 1), 1],
            [(0, 0.5), (0.5, 1)],
            automatic=True,
        )
    assert scales(stream) == 1
    last = make_segment_id(2, 3)
    scaled(stream, [last], [(0, 0.125), (0.125, 0.25)], automatic=True)
    assert commits(stream)[-1].info["operationParameters"]["automatic"] == "true"


# Segments and ranges as users give them


def test_segment_is_given_by_id_by_text_or_by_the_number_of_an_active_one(
    stream: StreamLog,
) -> None:
    scaled(stream, [0], HALVES)
    view = stream.view()
    named = {
        name: scaling_commit.resolve_segment_id(view, name)
        for name in (0, 1, 2, "3#1", (1 << 32) + 2)
    }
    two, three = make_segment_id(2, 1), make_segment_id(3, 1)
    assert named == {0: 0, 1: 1, 2: two, "3#1": three, two: two}
    assert scaling_commit.resolve_segment_id(view, 9) == 9
    for segment in view.active.segments:
        assert scaling_commit.resolve_segment_id(view, segment) == segment.segment_id


@pytest.mark.parametrize("name", [-1, True, None, 1.5, "x", "1", "1#", b"1#0"])
def test_value_that_names_no_segment_is_refused(stream: StreamLog, name: Any) -> None:
    with pytest.raises(InvalidInput, match="3#1"):
        scaling_commit.resolve_segment_id(stream.view(), name)


@pytest.mark.parametrize(
    "given", [(0.5, 0.5), (0.5, 0.2), (-0.1, 1), (0, 1.1), (0,), 0.5, None, "01", "ab", (0, "1")]
)
def test_value_that_is_no_range_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"\(low, high\) with 0 <= low < high <= 1, got"):
        scaling_commit.to_key_range(given)


def test_range_is_given_as_numbers_or_as_a_key_range() -> None:
    assert scaling_commit.to_key_range((0, 1)) == KeyRange(0.0, 1.0)
    assert scaling_commit.to_key_range([0.25, 0.5]) == KeyRange(0.25, 0.5)
    assert scaling_commit.to_key_range(KeyRange(0.0, 0.5)) == KeyRange(0.0, 0.5)
    with pytest.raises(InvalidInput):
        scaling_commit.to_key_range((float("nan"), 1))


def test_check_scale_returns_whether_a_later_epoch_is_active(stream: StreamLog) -> None:
    assert not check_scale(stream.view(), 0)
    scaled(stream, [0], HALVES)
    assert check_scale(stream.view(), 0)
    assert not check_scale(stream.view(), 1)
    with pytest.raises(InvalidInput, match=r"s/t has no epoch 2 yet; the active one is 1"):
        check_scale(stream.view(), 2)
    for epoch in (-1, "0", None):
        with pytest.raises(InvalidInput, match=r"an epoch must be a whole number of at least 0"):
            check_scale(stream.view(), epoch)  # type: ignore[arg-type]


# Scales by the manager and by changes of the policy


@pytest.fixture
def manager() -> StreamManager:
    made = StreamManager(f"memory://{uuid4().hex}", runtime=FakeRuntime())
    made.create_scope("s")
    made.create_stream("s/t", StreamConfiguration(ScalingPolicy.by_event_rate(10, minimum=2)))
    return made


def numbers(manager: StreamManager) -> list[int]:
    return [segment.number for segment in manager.segments("s/t")]


def test_manager_scales_by_names_and_ranges(manager: StreamManager) -> None:
    epoch = manager.scale_stream("s/t", [1], [(0.5, 0.75), (0.75, 1)])
    assert epoch.number == 1
    assert manager.scale_stream("s/t", ["1#0"], [(0.5, 0.75), (0.75, 1)]) == epoch
    manager.scale_stream("s/t", [2, 3], [(0.5, 1)])
    assert numbers(manager) == [0, 4]
    assert manager.check_scale("s/t", 1)
    with pytest.raises(NoSuchStream):
        manager.scale_stream("s/none", [0], HALVES)


def test_fixed_policy_with_another_number_scales_immediately_to_equal_ranges(
    manager: StreamManager,
) -> None:
    with manager.create_writer("s/t") as writer:
        for n in range(20):
            writer.write_event(f"{n}", f"k{n}")
    assert manager.update_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(3)))
    segments = manager.segments("s/t")
    assert [(s.number, s.key_range.low) for s in segments] == [(2, 0.0), (3, 1 / 3), (4, 2 / 3)]
    assert manager.stream_info("s/t").version == 2
    assert not manager.update_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(3)))
    manager.update_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(3), tags={"x"}))
    assert numbers(manager) == [2, 3, 4]
    manager.update_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1)))
    assert numbers(manager) == [5]
    assert len(list(manager.read("s/t"))) == 20


def test_higher_minimum_scales_immediately_and_a_lower_one_merges_nothing(
    manager: StreamManager,
) -> None:
    rates = [ScalingPolicy.by_event_rate(10, minimum=n) for n in (1, 2, 3)]
    manager.update_stream("s/t", StreamConfiguration(rates[0]))
    assert numbers(manager) == [0, 1]
    manager.update_stream("s/t", StreamConfiguration(rates[2]))
    assert numbers(manager) == [2, 3, 4]
    manager.update_stream("s/t", StreamConfiguration(rates[1]))
    assert numbers(manager) == [2, 3, 4]


def test_open_transaction_commits_over_an_update_that_scaled(manager: StreamManager) -> None:
    with manager.create_transactional_writer("s/t") as writer:
        with writer.begin_transaction() as txn:
            for n in range(20):
                txn.write_event(f"{n}", f"k{n}")
            manager.update_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(3)))
        assert numbers(manager) == [2, 3, 4]
    assert len(list(manager.read("s/t"))) == 20
