"""The plan of one segment: what it never merges, and what years of appends cost by it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.compaction.plan import (
    CHUNK_OVERHEAD_BYTES,
    FULL_FRACTION,
    LiveChunk,
    plan_merges,
    settled_count,
)
from tests.harness.tiers import sized

KIB, MIB = 1 << 10, 1 << 20
TARGET = 128 * MIB


def chunks_of(sizes: Sequence[int]) -> list[LiveChunk]:
    """Chunks of ten events each, one after the other."""
    return [LiveChunk(10 * n, 10, size) for n, size in enumerate(sizes)]


def bases(runs: Sequence[Sequence[LiveChunk]]) -> list[list[int]]:
    return [[chunk.base_offset // 10 for chunk in run] for run in runs]


def is_small(chunk: LiveChunk, target: int) -> bool:
    return chunk.size < target * FULL_FRACTION


@given(
    st.lists(st.integers(700, 40_000), max_size=150),
    st.booleans(),
    st.integers(0, 150),
)
def test_a_plan_has_whole_runs_of_settled_small_neighbours(
    sizes: list[int], is_sealed: bool, settled: int
) -> None:
    chunks, target = chunks_of(sizes), 64_000
    runs = plan_merges(chunks, target, is_sealed=is_sealed, settled=settled)
    named = [chunk for run in runs for chunk in run]
    assert named == sorted(named, key=lambda chunk: chunk.base_offset)
    assert len(named) == len({chunk.base_offset for chunk in named})
    for run in runs:
        assert len(run) > 1
        assert all(is_small(chunk, target) for chunk in run)
        assert all(a.end == b.base_offset for a, b in pairwise(run))
    assert set(named) <= set(chunks[:settled])


@given(st.lists(st.integers(700, 40_000), max_size=150))
def test_a_sealed_segment_is_merged_once_to_files_of_about_the_target(sizes: list[int]) -> None:
    chunks, target = chunks_of(sizes), 64_000
    after = merged(chunks, plan_merges(chunks, target, is_sealed=True, settled=len(chunks)))
    assert plan_merges(after, target, is_sealed=True, settled=len(after)) == []
    for before, chunk in pairwise(after):
        assert not (is_small(before, target) and is_small(chunk, target))
    assert max((chunk.size for chunk in after), default=0) < 2 * target


def merged(
    chunks: Sequence[LiveChunk], runs: Sequence[Sequence[LiveChunk]], ratio: float = 1.0
) -> list[LiveChunk]:
    """The chunks after the merges; data of chunks gets smaller by a ratio."""
    left, replaced = [], {chunk for run in runs for chunk in run}
    for run in runs:
        rows = sum(chunk.rows for chunk in run)
        data = sum(chunk.size - CHUNK_OVERHEAD_BYTES for chunk in run)
        left.append(LiveChunk(run[0].base_offset, rows, CHUNK_OVERHEAD_BYTES + int(data * ratio)))
    left += [chunk for chunk in chunks if chunk not in replaced]
    return sorted(left, key=lambda chunk: chunk.base_offset)


def test_full_chunks_are_never_written_again_and_small_ones_between_them_are_merged() -> None:
    sizes = [70 * MIB, KIB, KIB, 70 * MIB, KIB, 90 * MIB, *[KIB] * 3]
    runs = plan_merges(chunks_of(sizes), TARGET, is_sealed=False, settled=9)
    assert bases(runs) == [[1, 2]]
    runs = plan_merges(chunks_of(sizes), TARGET, is_sealed=True, settled=9)
    assert bases(runs) == [[1, 2], [6, 7, 8]]


def test_chunks_are_merged_when_they_reach_the_target_or_the_fan_in() -> None:
    third = [43 * MIB] * 4
    assert bases(plan_merges(chunks_of(third), TARGET, is_sealed=False, settled=4)) == [[0, 1, 2]]
    few = chunks_of([20 * KIB] * 10)
    assert plan_merges(few, TARGET, is_sealed=False, settled=10) == []
    many = chunks_of([20 * KIB] * 30)
    assert bases(plan_merges(many, TARGET, is_sealed=False, settled=30)) == [list(range(30))]


def test_a_gap_between_chunks_is_never_merged_over() -> None:
    chunks = [LiveChunk(0, 10, KIB), LiveChunk(10, 10, KIB), LiveChunk(30, 10, KIB)]
    assert bases(plan_merges(chunks, TARGET, is_sealed=True, settled=3)) == [[0, 1]]


def test_sealed_segment_waits_until_its_last_chunks_are_settled() -> None:
    chunks = chunks_of([KIB] * 5)
    assert plan_merges(chunks, TARGET, is_sealed=True, settled=4) == []
    assert bases(plan_merges(chunks, TARGET, is_sealed=True, settled=5)) == [[0, 1, 2, 3, 4]]


def test_only_the_youngest_chunks_are_unsettled_and_a_wrong_clock_holds_nothing_back() -> None:
    dates = [100, 990, 500, 950, 980]
    chunks = [LiveChunk(n, 1, KIB, date) for n, date in enumerate(dates)]
    assert settled_count(chunks, since_ms=940, now_ms=1_000) == 3
    assert settled_count(chunks, since_ms=0, now_ms=60) == 5
    assert settled_count([], since_ms=0, now_ms=60) == 0


# ------------------------------------------------------------------------------------ years of load


@dataclass
class Year:
    """A segment under appends and compaction: what was written, and how many chunks waited."""

    ratio: float
    """How much smaller data gets by its first merge, since small chunks compress badly."""
    target: int = TARGET
    chunks: list[LiveChunk] = field(default_factory=list)
    merged: set[int] = field(default_factory=set)
    appended: int = 0
    compacted: int = 0
    most_small: int = 0
    full: int = 0

    def append(self, size: int) -> None:
        base = self.chunks[-1].end if self.chunks else 0
        self.chunks.append(LiveChunk(base, max(1, size // 100), size))
        self.appended += size

    def compact(self) -> None:
        for run in plan_merges(self.chunks, self.target, is_sealed=False, settled=len(self.chunks)):
            data = sum(
                (c.size - CHUNK_OVERHEAD_BYTES)
                * (1 if c.base_offset in self.merged else self.ratio)
                for c in run
            )
            made = LiveChunk(
                run[0].base_offset,
                sum(c.rows for c in run),
                CHUNK_OVERHEAD_BYTES + int(data),
            )
            self.compacted += made.size
            self.merged.add(made.base_offset)
            at = self.chunks.index(run[0])
            self.chunks[at : at + len(run)] = [made]
        small = [is_small(chunk, self.target) for chunk in self.chunks]
        while False in small:  # what lies before a full chunk never changes again
            at = small.index(False)
            self.full += 1
            self.most_small = max(self.most_small, at - 1)
            del self.chunks[: at + 1], small[: at + 1]
        self.most_small = max(self.most_small, len(small))

    @property
    def amplification(self) -> float:
        return (self.appended + self.compacted) / self.appended


def steady(size: int, count: int) -> Iterator[int]:
    return iter([size] * count)


def bursty(size: int, count: int) -> Iterator[int]:
    dice = random.Random(5)
    while True:
        factor = 50 if dice.random() < 0.1 else 1
        yield from [min(100 * MIB, size * factor)] * dice.randint(1, 200)


def mixed(size: int, count: int) -> Iterator[int]:
    dice = random.Random(7)
    while True:
        yield int(size * (100 * MIB / size) ** dice.random())


@pytest.mark.long
@pytest.mark.parametrize("per_round", [1, 60])
@pytest.mark.parametrize("size", [1_500, 6 * KIB, 40 * KIB, 5 * MIB])
@pytest.mark.parametrize("load", [steady, bursty, mixed])
def test_years_of_load_keep_amplification_and_the_number_of_small_chunks_low(
    load: Callable[[int, int], Iterator[int]], size: int, per_round: int
) -> None:
    """Small chunks get smaller by their first merge; their files compress badly."""
    count = sized(3_000, 12_000) if load is steady else sized(800, 3_000)
    year = Year(0.6 if size < 16 * KIB else 0.85)
    for n, written in enumerate(islice(load(size, count), count)):
        year.append(written)
        if n % per_round == 0:
            year.compact()
    year.compact()
    assert year.amplification < 3.4
    assert year.most_small <= 100
