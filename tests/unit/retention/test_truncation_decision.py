"""The tables of truncation decisions, with a test for each cell, on a small retention set."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import LimitUnit, RetentionPolicy, RetentionType
from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.retention.decision import (
    RetentionEntry,
    RetentionRule,
    RetentionSet,
    TruncationInputs,
    decide_truncation,
)
from pravega_spark.values.segments import StreamCut
from tests.harness import stream_cuts as cuts
from tests.harness.strategies import MemoryStream, cut_of, journeys
from tests.harness.stream_cuts import lower_bound_of, raised

NOW_MS = 10_000


class ListedEntries:
    """A retention set that is a list of entries."""

    def __init__(self, entries: Sequence[RetentionEntry]) -> None:
        self.entries = list(entries)

    def written_ms(self, entry: RetentionEntry) -> int:
        return entry.time_ms

    def partition(
        self, is_before: Callable[[RetentionEntry], bool]
    ) -> tuple[RetentionEntry | None, RetentionEntry | None]:
        at = bisect_left(self.entries, True, key=lambda entry: not is_before(entry))
        following = self.entries[at] if at < len(self.entries) else None
        return (self.entries[at - 1] if at else None), following


class TenByteEvents(MemoryStream):
    """A stream whose events are ten bytes each."""

    def bytes_at(self, segment_id: int, offset: int) -> int:
        return 10 * offset

    @staticmethod
    def offset_after(segment_id: int, start: int, end: int, size_bytes: int) -> int:
        return min(end, max(start, -(-size_bytes // 10)))


def two_segments() -> TenByteEvents:
    """Return a stream of two segments with 50 events each."""
    stream = TenByteEvents.of(2)
    assert isinstance(stream, TenByteEvents)
    for segment_id in (0, 1):
        stream.append(segment_id, 50)
        stream.records[segment_id] = type(stream.records[segment_id])(segment_id, 50, 500)
    return stream


def cut(left: int, right: int) -> StreamCut:
    return cut_of(f"0#0={left},1#0={right}")


def entry(age: int, left: int, right: int, version: int | None = None) -> RetentionEntry:
    """Return an entry of the given age in ms, with its events in the two segments."""
    at = NOW_MS - age if version is None else version
    return RetentionEntry(at, NOW_MS - age, 10 * (left + right), cut(left, right))


SAMPLES = [entry(90, 5, 5), entry(70, 15, 15), entry(50, 25, 25), entry(30, 35, 35)]
"""After these 900, 700, 500 and 300 of 1,000 bytes follow."""


class Decided(NamedTuple):
    """A decision with a plain stream cut."""

    rule: RetentionRule
    cut: StreamCut | None


def decide(
    stream: Layout,
    policy: RetentionPolicy,
    entries: RetentionSet,
    bound: StreamCut | None,
    *others: Any,
) -> Decided:
    located = None if bound is None else locate(stream, bound)
    found = decide_truncation(TruncationInputs(stream, policy, entries, located, *others))
    return Decided(found.rule, None if found.cut is None else found.cut.cut)


def decided(
    policy: RetentionPolicy, bound: StreamCut | None, entries: Sequence[RetentionEntry] = SAMPLES
) -> Decided:
    stream = two_segments()
    tail = RetentionEntry(NOW_MS + 1, NOW_MS - 10, 1_000, cut(50, 50))
    listed = ListedEntries([*entries, tail])
    sizes = stream.bytes_at, stream.offset_after
    return decide(stream, policy, listed, bound, NOW_MS, *sizes)


def by_time(minimum: int, maximum: int | None = None) -> RetentionPolicy:
    return RetentionPolicy(RetentionType.TIME, LimitUnit.TIME_MS, minimum, maximum)


def by_size(minimum: int, maximum: int | None = None) -> RetentionPolicy:
    return RetentionPolicy(RetentionType.SIZE, LimitUnit.SIZE_BYTES, minimum, maximum)


def by_consumption(
    unit: LimitUnit, minimum: int = 0, maximum: int | None = None
) -> RetentionPolicy:
    return RetentionPolicy(RetentionType.CONSUMPTION, unit, minimum, maximum)


def in_time(minimum: int, maximum: int | None = None) -> RetentionPolicy:
    return by_consumption(LimitUnit.TIME_MS, minimum, maximum)


def in_size(minimum: int, maximum: int | None = None) -> RetentionPolicy:
    return by_consumption(LimitUnit.SIZE_BYTES, minimum, maximum)


NONE, TIME, SIZE = LimitUnit.NONE, LimitUnit.TIME_MS, LimitUnit.SIZE_BYTES

CELLS = [
    # No bound: the newest entry with at least the minimum, or nothing.
    ("time: the minimum entry", by_time(40), None, RetentionRule.MINIMUM, (25, 25)),
    ("time: exactly the minimum", by_time(50), None, RetentionRule.MINIMUM, (25, 25)),
    ("time: no minimum entry", by_time(91), None, RetentionRule.NOTHING_BEYOND, None),
    (
        "time: the maximum alone limits nothing",
        by_time(40, 60),
        None,
        RetentionRule.MINIMUM,
        (25, 25),
    ),
    ("time: all events are old", by_time(10), None, RetentionRule.MINIMUM, (50, 50)),
    ("size: the minimum entry", by_size(400), None, RetentionRule.MINIMUM, (25, 25)),
    ("size: exactly the minimum", by_size(500), None, RetentionRule.MINIMUM, (25, 25)),
    ("size: no minimum entry", by_size(901), None, RetentionRule.NOTHING_BEYOND, None),
    # Consumption within limits of time, with a bound.
    (
        "in time: none beyond the minimum",
        in_time(91),
        (50, 50),
        RetentionRule.NOTHING_BEYOND,
        None,
    ),
    (
        "in time: subscribers are further",
        in_time(40),
        (30, 40),
        RetentionRule.MINIMUM,
        (25, 25),
    ),
    (
        "in time: they overlap",
        in_time(40),
        (20, 30),
        RetentionRule.CONSUMED_BEYOND,
        (20, 25),
    ),
    (
        "in time: no maximum",
        in_time(40),
        (3, 4),
        RetentionRule.CONSUMED,
        (3, 4),
    ),
    (
        "in time: the bound is the minimum",
        in_time(40),
        (25, 25),
        RetentionRule.CONSUMED,
        (25, 25),
    ),
    (
        "in time: none beyond the maximum",
        in_time(40, 95),
        (3, 4),
        RetentionRule.CONSUMED,
        (3, 4),
    ),
    (
        "in time: the bound is not beyond",
        in_time(40, 80),
        (5, 20),
        RetentionRule.CONSUMED,
        (5, 20),
    ),
    (
        "in time: the bound is beyond",
        in_time(40, 80),
        (3, 4),
        RetentionRule.MAXIMUM,
        (15, 15),
    ),
    (
        "in time: no entry within",
        in_time(71, 80),
        (3, 4),
        RetentionRule.MAXIMUM,
        (5, 5),
    ),
    (
        "in time: partly beyond",
        in_time(40, 80),
        (3, 20),
        RetentionRule.MAXIMUM,
        (5, 20),
    ),
    (
        "in time: at the maximum is within",
        in_time(40, 90),
        (3, 4),
        RetentionRule.CONSUMED,
        (3, 4),
    ),
    (
        "in time: overlaps both",
        in_time(40, 60),
        (10, 40),
        RetentionRule.MAXIMUM,
        (15, 25),
    ),
    # Consumption within limits of size, with a bound.
    (
        "in size: r < minimum, no entry",
        in_size(901),
        (50, 50),
        RetentionRule.NOTHING_BEYOND,
        None,
    ),
    (
        "in size: r < minimum, further",
        in_size(400),
        (40, 41),
        RetentionRule.MINIMUM,
        (25, 25),
    ),
    (
        "in size: r < minimum, overlap",
        in_size(400),
        (20, 45),
        RetentionRule.CONSUMED_BEYOND,
        (20, 25),
    ),
    (
        "in size: r = minimum",
        in_size(500),
        (10, 40),
        RetentionRule.CONSUMED,
        (10, 40),
    ),
    (
        "in size: between",
        in_size(400),
        (20, 20),
        RetentionRule.CONSUMED,
        (20, 20),
    ),
    (
        "in size: r = maximum is not more",
        in_size(100, 700),
        (10, 20),
        RetentionRule.CONSUMED,
        (10, 20),
    ),
    (
        "in size: r > maximum",
        in_size(100, 500),
        (10, 20),
        RetentionRule.MAXIMUM,
        (25, 25),
    ),
    (
        "in size: between two entries",
        in_size(100, 600),
        (10, 20),
        RetentionRule.MAXIMUM,
        (20, 20),
    ),
    (
        "in size: on two keys",
        in_size(100, 510),
        (5, 15),
        RetentionRule.MAXIMUM,
        (25, 24),
    ),
    (
        "in size: consumed events go first",
        in_size(100, 600),
        (0, 40),
        RetentionRule.CONSUMED,
        (0, 40),
    ),
    (
        "in size: then unconsumed ones",
        in_size(100, 550),
        (0, 40),
        RetentionRule.MAXIMUM,
        (5, 40),
    ),
    (
        "in size: no cut within both limits",
        in_size(603, 605),
        (2, 2),
        RetentionRule.MAXIMUM,
        (24, 15),
    ),
    (
        "in size: one event is too much",
        in_size(698, 699),
        (15, 15),
        RetentionRule.CONSUMED,
        (15, 15),
    ),
    # Time and size: subscribers change nothing, wherever their bound is.
    ("time: a slow subscriber", by_time(40), (3, 4), RetentionRule.MINIMUM, (25, 25)),
    ("time: a fast subscriber", by_time(40), (30, 40), RetentionRule.MINIMUM, (25, 25)),
    ("time: they overlap", by_time(40), (20, 30), RetentionRule.MINIMUM, (25, 25)),
    ("time: a slow one, maximum", by_time(40, 60), (3, 4), RetentionRule.MINIMUM, (25, 25)),
    ("time: consumed, young", by_time(91), (50, 50), RetentionRule.NOTHING_BEYOND, None),
    ("size: a slow subscriber", by_size(400), (3, 4), RetentionRule.MINIMUM, (25, 25)),
    ("size: a fast subscriber", by_size(400), (40, 41), RetentionRule.MINIMUM, (25, 25)),
    ("size: a slow one, maximum", by_size(501, 600), (3, 4), RetentionRule.MAXIMUM, (25, 15)),
    ("size: consumed, small", by_size(901), (50, 50), RetentionRule.NOTHING_BEYOND, None),
    ("size: no subscriber, maximum", by_size(501, 600), None, RetentionRule.MAXIMUM, (25, 15)),
    # Consumption: as Pravega documents it; its code differs.
    ("consumption: no subscriber", by_consumption(NONE), None, RetentionRule.NO_SUBSCRIBER, None),
    ("consumption: the bound", by_consumption(NONE), (7, 8), RetentionRule.CONSUMED, (7, 8)),
    (
        "consumption: no subscriber, minimum",
        by_consumption(TIME, 40),
        None,
        RetentionRule.NO_SUBSCRIBER,
        None,
    ),
    (
        "consumption: no subscriber, young",
        by_consumption(TIME, 0, 95),
        None,
        RetentionRule.NO_SUBSCRIBER,
        None,
    ),
    (
        "consumption: no subscriber, old",
        by_consumption(TIME, 0, 80),
        None,
        RetentionRule.MAXIMUM,
        (15, 15),
    ),
    (
        "consumption: no subscriber, small",
        by_consumption(SIZE, 0, 1_000),
        None,
        RetentionRule.NO_SUBSCRIBER,
        None,
    ),
    (
        "consumption: no subscriber, large",
        by_consumption(SIZE, 0, 600),
        None,
        RetentionRule.MAXIMUM,
        (25, 15),
    ),
    (
        "consumption: minimum 0 is the tail",
        by_consumption(TIME),
        (50, 50),
        RetentionRule.CONSUMED,
        (50, 50),
    ),
    (
        "consumption: minimum time",
        by_consumption(TIME, 40),
        (30, 40),
        RetentionRule.MINIMUM,
        (25, 25),
    ),
    (
        "consumption: minimum size",
        by_consumption(SIZE, 400),
        (40, 41),
        RetentionRule.MINIMUM,
        (25, 25),
    ),
    (
        "consumption: maximum",
        by_consumption(SIZE, 0, 600),
        (10, 20),
        RetentionRule.MAXIMUM,
        (20, 20),
    ),
]


@pytest.mark.parametrize(
    ("policy", "bound", "rule", "at"), [cell[1:] for cell in CELLS], ids=[c[0] for c in CELLS]
)
def test_each_cell_of_the_tables(
    policy: RetentionPolicy,
    bound: tuple[int, int] | None,
    rule: RetentionRule,
    at: tuple[int, int] | None,
) -> None:
    found = decided(policy, None if bound is None else cut(*bound))
    assert found.rule is rule
    assert found.cut == (None if at is None else cut(*at))


def test_maximum_truncates_nothing_within_it_if_every_version_is_an_entry() -> None:
    entries = [entry(90 - n, n, n, version=n) for n in range(40)]
    found = decided(in_time(10, 80), cut(3, 4), entries)
    assert (found.rule, found.cut) == (RetentionRule.MAXIMUM, cut(9, 9)), (
        "81 ms old, and the next is 80"
    )
    found = decided(in_size(0, 850), cut(3, 4), entries)
    assert (found.rule, found.cut) == (RetentionRule.MAXIMUM, cut(8, 7)), "850 bytes, to the event"


@pytest.mark.parametrize(
    ("policy", "bound"),
    [(by_size(400), None), (in_size(400), (50, 50))],
)
def test_minimum_counts_only_bytes_after_the_head(
    policy: RetentionPolicy, bound: tuple[int, int] | None
) -> None:
    stream = two_segments()
    stream.head = cut(0, 40)
    listed, bound_cut = ListedEntries(SAMPLES), None if bound is None else cut(*bound)
    sizes = stream.bytes_at, stream.offset_after
    found = decide(stream, policy, listed, bound_cut, NOW_MS, *sizes)
    assert (found.rule, found.cut) == (RetentionRule.MINIMUM, cut(15, 40)), (
        "450 bytes; the next: 350"
    )


def test_only_consumption_truncates_without_entries() -> None:
    stream = two_segments()
    sizes = stream.bytes_at, stream.offset_after
    for policy, bound, rule in (
        (by_time(1), None, RetentionRule.NOTHING_BEYOND),
        (by_time(1, 2), cut(3, 4), RetentionRule.NOTHING_BEYOND),
        (in_time(1, 2), cut(3, 4), RetentionRule.NOTHING_BEYOND),
        (by_size(1), None, RetentionRule.NOTHING_BEYOND),
        (by_consumption(NONE), cut(3, 4), RetentionRule.CONSUMED),
    ):
        found = decide(stream, policy, ListedEntries([]), bound, NOW_MS, *sizes)
        assert found.rule is rule


@given(st.data())
def test_minimum_stays_and_subscribers_lose_data_only_to_the_maximum(
    data: st.DataObject,
) -> None:
    """On scaled streams, with entries and subscribers at the positions of readers."""
    stream, positions = data.draw(journeys())
    known = [
        RetentionEntry(n, 10 * n, size_of(stream, cut), cut)
        for n, (_, cut) in enumerate(positions, start=1)
    ]
    now_ms = 10 * len(known) + 10
    readers = [reader for reader, _ in data.draw(st.lists(st.sampled_from(positions), max_size=2))]
    subscribers = [reader.cut(stream) for reader in readers]
    bound = lower_bound_of(stream, subscribers) if subscribers else None
    kind = data.draw(st.sampled_from(list(RetentionType)))
    unit = {RetentionType.TIME: TIME, RetentionType.SIZE: SIZE}.get(kind)
    unit = unit or data.draw(st.sampled_from([TIME, SIZE]))
    least = data.draw(st.integers(0, now_ms))
    most = data.draw(st.none() | st.integers(max(1, least), now_ms + 10))
    policy = RetentionPolicy(kind, unit, least, most)
    total = size_of(stream, StreamCut.LATEST)

    def retained(start: StreamCut) -> int:
        return total - size_of(stream, start)

    def offset_after(segment_id: int, start: int, end: int, size_bytes: int) -> int:
        offsets = range(start, end + 1)
        return next(o for o in offsets if stream.bytes_at(segment_id, o) >= size_bytes)

    sizes = stream.bytes_at, offset_after
    found = decide(stream, policy, ListedEntries(known), bound, now_ms, *sizes)
    if kind is not RetentionType.CONSUMPTION:
        assert found == decide(stream, policy, ListedEntries(known), None, now_ms, *sizes)
        bound, subscribers = None, []
    if found.cut is None:
        return
    assert cuts.equal_or_after(stream, found.cut, stream.head)
    if unit is TIME:
        old = [entry.cut for entry in known if now_ms - entry.time_ms >= least]
        assert cuts.equal_or_after(stream, raised(stream, old[-1]), found.cut)
    if bound is not None or kind is not RetentionType.CONSUMPTION:
        assert unit is TIME or retained(found.cut) >= min(least, total)
    if bound is not None and found.rule is not RetentionRule.MAXIMUM:
        for cut in subscribers:
            assert cuts.equal_or_after(stream, cuts.canonical(stream, cut), found.cut)
    if found.rule is RetentionRule.MAXIMUM:
        assert most is not None
        assert kind is not RetentionType.TIME, "nothing older than the minimum is left"
    if found.rule is RetentionRule.MAXIMUM and unit is SIZE:
        assert cuts.equal_or_after(stream, found.cut, stream.head if bound is None else bound)


@given(st.data())
def test_limits_by_size_hold_to_the_event_over_splits_and_merges(data: st.DataObject) -> None:
    stream, positions = data.draw(journeys())
    total, largest = size_of(stream, StreamCut.LATEST), 11
    found = [cut for _, cut in positions if data.draw(st.booleans())]
    known = [
        RetentionEntry(n, n, size_of(stream, cut), cut) for n, cut in enumerate(found, start=1)
    ]
    bound = data.draw(st.none() | st.sampled_from([cut for _, cut in positions]))
    least = data.draw(st.integers(0, total))
    most = data.draw(st.integers(max(1, least), total + 10))
    kind = data.draw(st.sampled_from([RetentionType.SIZE, RetentionType.CONSUMPTION]))

    def offset_after(segment_id: int, start: int, end: int, size_bytes: int) -> int:
        offsets = range(start, end + 1)
        return next(o for o in offsets if stream.bytes_at(segment_id, o) >= size_bytes)

    policy = RetentionPolicy(kind, SIZE, least, most)
    bound = None if bound is None else raised(stream, bound)
    sizes = stream.bytes_at, offset_after
    cut = decide(stream, policy, ListedEntries(known), bound, 10, *sizes).cut or stream.head
    if kind is RetentionType.SIZE:
        bound = None  # it has no effect
    start = total - size_of(stream, bound or stream.head)
    kept = total - size_of(stream, cut)
    cuts.check(stream, cut)
    assert kept >= min(least, start)
    if start > most:
        assert kept <= most or kept - largest < least
        is_by_minimum = bound is None and kind is RetentionType.SIZE
        assert is_by_minimum or kept > most - largest


def size_of(stream: MemoryStream, end: StreamCut) -> int:
    return cuts.distance_bytes(stream, StreamCut.EARLIEST, end, stream.bytes_at)
