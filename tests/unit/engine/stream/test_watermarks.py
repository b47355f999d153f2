"""The rules of watermarks, on marks of every kind; commits are in tests/unit/event_time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.descriptions import TimeWindow, WriterMark
from pravega_spark.engine.stream.watermarks import (
    REMOVED_US,
    Bounds,
    TimeNote,
    advance,
    latest_window,
)
from pravega_spark.values.segments import StreamCut

CUT = StreamCut("s/t", 1, {0: 0})


def mark(writer: str, time_us: int, version: int = 1, *, alive: bool = True) -> WriterMark:
    return WriterMark(writer, time_us, CUT, version, alive)


def names(marks: Sequence[WriterMark]) -> set[str]:
    return {found.writer_id for found in marks}


MARKS = st.lists(
    st.builds(
        mark,
        st.sampled_from("abcdef"),
        st.integers(-5, 12),
        st.integers(1, 9),
        alive=st.booleans(),
    )
    | st.builds(mark, st.sampled_from("abcdef"), st.just(REMOVED_US), alive=st.just(False)),
    unique_by=lambda found: found.writer_id,
)
BOUNDS = st.none() | st.tuples(st.integers(-5, 9), st.integers(0, 5)).map(
    lambda pair: Bounds(pair[0], sum(pair))
)


def test_bounds_are_the_lowest_and_the_highest_time_of_all_writers() -> None:
    found = advance(None, [mark("a", 100), mark("b", 300), mark("c", 200)])
    assert (found.bounds, found.unneeded) == (Bounds(100, 300), ())
    assert names(found.held_by) == {"a"}, "it cannot go on before a does"


@pytest.mark.parametrize("marks", [[], [mark("a", 5)], [mark("a", 10)], [mark("a", REMOVED_US)]])
def test_nothing_follows_without_a_writer_ahead_of_the_watermark(marks: list[WriterMark]) -> None:
    assert advance(Bounds(10, 20), marks).bounds is None


def test_a_writer_that_is_behind_holds_the_watermark_until_it_caught_up() -> None:
    ahead = mark("b", 50)
    assert advance(Bounds(10, 20), [mark("a", 10), ahead]).bounds is None
    assert advance(Bounds(10, 20), [mark("a", 11), ahead]).bounds == Bounds(11, 50)


def test_a_silent_writer_counts_until_it_is_behind() -> None:
    marks = [mark("a", 30), mark("b", 50)]
    found = advance(Bounds(10, 20), marks, lambda found: found.writer_id == "a")
    assert (found.bounds, names(found.unneeded)) == (Bounds(50, 50), {"a"})


def test_a_writer_that_left_is_used_and_dropped() -> None:
    found = advance(Bounds(10, 20), [mark("a", 30, alive=False), mark("b", 50)])
    assert (found.bounds, names(found.unneeded)) == (Bounds(50, 50), {"a"})
    alone = advance(Bounds(10, 20), [mark("a", 30, alive=False)])
    assert (alone.bounds, names(alone.unneeded)) == (Bounds(30, 30), {"a"})


def test_the_position_of_a_dropped_writer_stays_until_a_cut_has_it() -> None:
    left, held = mark("a", 5, 9, alive=False), mark("b", 10)
    assert advance(Bounds(10, 20), [left, held]).unneeded == ()
    assert advance(Bounds(10, 20), [left, mark("b", 11)]).unneeded == (left,)


@pytest.mark.medium
def test_many_writers_that_left_cost_no_more_than_their_number() -> None:
    """If the cost grew with its square, this would take hours, and the timeout would end it."""
    marks = [mark(f"w{n}", n, alive=False) for n in range(100_000)]
    found = advance(None, marks)
    assert found.bounds == Bounds(99_999, 99_999)
    assert len(found.unneeded) == len(marks)


def test_a_removed_mark_holds_nothing_and_bounds_nothing() -> None:
    found = advance(None, [mark("a", REMOVED_US, alive=False), mark("b", 50)])
    assert (found.bounds, names(found.unneeded)) == (Bounds(50, 50), {"a"})


@given(BOUNDS, MARKS, st.sets(st.sampled_from("abcdef")))
def test_bounds_never_go_back_and_hold_for_every_writer_that_counts(
    previous: Bounds | None, marks: list[WriterMark], silent: set[str]
) -> None:
    found = advance(previous, marks, lambda found: found.writer_id in silent)
    now = found.bounds or previous
    if found.bounds is not None:
        assert found.bounds.lower_us <= found.bounds.upper_us
        if previous is not None:
            assert found.bounds.lower_us > previous.lower_us
            assert found.bounds.upper_us >= previous.upper_us
        assert all(one.time_us <= found.bounds.upper_us for one in marks)
    living = [one for one in marks if one.is_alive and one.time_us != REMOVED_US]
    counting = [one for one in living if one.writer_id not in silent]
    if found.bounds is not None:
        assert all(one.time_us >= found.bounds.lower_us for one in counting)
    left = [one for one in marks if one not in found.unneeded]
    again = advance(now, left, lambda found: found.writer_id in silent)
    assert (again.bounds, again.unneeded) == (None, ()), "one step does what many would"


@given(BOUNDS, MARKS)
def test_what_is_dropped_can_hold_and_tell_nothing_any_more(
    previous: Bounds | None, marks: list[WriterMark]
) -> None:
    found = advance(previous, marks)
    now = found.bounds or previous
    for one in found.unneeded:
        assert not one.is_alive
        assert one.time_us == REMOVED_US or (now is not None and one.time_us <= now.lower_us)
    living = {one.writer_id for one in marks if one.is_alive}
    assert names(found.unneeded).isdisjoint(living)


def test_notes_of_one_batch_become_one() -> None:
    first, second = TimeNote("w", 5), TimeNote("w", 9)
    assert second.after(first) == second
    assert TimeNote("w", None, leaves=True).after(second) == TimeNote("w", 9, leaves=True)
    assert first.after(None) is first


def test_a_window_that_was_returned_never_goes_back() -> None:
    assert latest_window(None, TimeWindow(1, 2)) == TimeWindow(1, 2)
    assert latest_window(TimeWindow(5, 9), TimeWindow(4, 8)) == TimeWindow(5, 9)
    assert latest_window(TimeWindow(5, 9), TimeWindow(None, None)) == TimeWindow(5, None)
    assert latest_window(TimeWindow(5, None), TimeWindow(6, 8)) == TimeWindow(6, 8)
