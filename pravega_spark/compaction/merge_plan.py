"""Decides which neighbouring chunks of one segment are merged. Pure and stateless.

A small chunk is one below half the target size; all others are *full* and never written again.
Small chunks between two full ones, and those of a sealed segment, are merged once, to about the
target. Behind the last full chunk the segment grows, and there two costs oppose each other: merging
late leaves many files, and merging early writes the same bytes often. The chunks lie in tiers, each
about ``fan-in`` times as large as the next: the youngest ones are merged as soon as together they
have that many times the size of their largest, or the target. Each event is then written about once
in each tier, and a tier has fewer chunks than the fan-in. So the number of tiers is the least one
whose chunks stay below ``WAITING_CHUNKS``, given how much smaller than the target the chunks are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

WAITING_CHUNKS: Final = 90
"""About this many small chunks of a growing segment wait for others at most."""
FULL_FRACTION: Final = 0.5
"""A chunk with this part of the target is full."""
MAX_INPUTS: Final = 8_192
"""Most chunks in one merge: its commit names each of them."""
CHUNK_OVERHEAD_BYTES: Final = 480
"""What the file of a single event has besides its data; a merge saves it."""

_QUARTER: Final = 4
_MOST_TIERS: Final = 8


@dataclass(frozen=True, slots=True)
class LiveChunk:
    """What a plan needs to know of a live chunk."""

    base_offset: int
    rows: int
    size: int
    modified_ms: int = 0
    """When its commit was made, by the clock of the committer."""

    @property
    def end(self) -> int:
        """The offset after its last event."""
        return self.base_offset + self.rows

    @property
    def weight(self) -> int:
        """About how many bytes it adds to a merged file."""
        return max(self.rows, self.size - CHUNK_OVERHEAD_BYTES)


def settled_count(chunks: Sequence[LiveChunk], since_ms: int, now_ms: int) -> int:
    """Return how many of the first chunks tail readers no longer read.

    These are all except the youngest ones, committed between ``since_ms`` and ``now_ms``. A date
    in the future is from a wrong clock and holds nothing back.
    """
    count = len(chunks)
    while count and since_ms < chunks[count - 1].modified_ms <= now_ms:
        count -= 1
    return count


def plan_merges(
    chunks: Sequence[LiveChunk], target_bytes: int, *, is_sealed: bool, settled: int
) -> list[Sequence[LiveChunk]]:
    """Return the runs of neighbours to merge into one chunk each, in offset order.

    ``chunks`` are the segment's live chunks in offset order, without the one that the head divides.
    Only the first ``settled`` may be merged.
    """
    found: list[Sequence[LiveChunk]] = []
    for first, last in _small_runs(chunks, target_bytes):
        grows = last == len(chunks) and not is_sealed
        if grows:
            found += _merges_of_growing(chunks[first : min(last, settled)], target_bytes)
        elif last <= settled:
            found += _merges_of_final(chunks[first:last], target_bytes)
    return [part for run in found for part in _parts(run)]


def waiting(
    chunks: Sequence[LiveChunk], target_bytes: int, *, is_sealed: bool, divided: bool
) -> tuple[LiveChunk, ...]:
    """Return the chunks that a later plan of the segment may merge, and the last one.

    With them and the chunks that the segment gets, a later plan decides as with all chunks: a run
    ends at a gap, whether or not the plan knows the full chunk that fills it. ``divided``: the head
    divides the chunk before the first one, which its rewrite may make small.
    """
    found: list[LiveChunk] = []
    for first, last in _small_runs(chunks, target_bytes):
        if last - first > 1 or last == len(chunks) or (divided and first == 0):
            found += chunks[first:last]
    if chunks and not is_sealed and (not found or found[-1] != chunks[-1]):
        found.append(chunks[-1])
    return tuple(found)


def _small_runs(chunks: Sequence[LiveChunk], target_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of each longest run of small neighbours."""
    first = None
    for at, chunk in enumerate(chunks):
        is_small = chunk.size < target_bytes * FULL_FRACTION
        follows = at > 0 and chunks[at - 1].end == chunk.base_offset
        if first is not None and not (is_small and follows):
            yield first, at
            first = None
        if is_small and first is None:
            first = at
    if first is not None:
        yield first, len(chunks)


def _merges_of_final(run: Sequence[LiveChunk], target_bytes: int) -> list[Sequence[LiveChunk]]:
    """Return a run that gets no more chunks in about equal parts of about the target."""
    total = sum(chunk.weight for chunk in run)
    count = max(1, round(total / target_bytes))
    found: list[Sequence[LiveChunk]] = []
    first, reached = 0, 0
    for at, chunk in enumerate(run):
        reached += chunk.weight
        if reached * count >= total * (len(found) + 1):
            found.append(run[first : at + 1])
            first = at + 1
    return [part for part in found if len(part) > 1]


def _merges_of_growing(run: Sequence[LiveChunk], target_bytes: int) -> list[Sequence[LiveChunk]]:
    """Return what to merge of a run to which younger chunks will be added."""
    found: list[Sequence[LiveChunk]] = []
    first, reached = 0, 0
    for at, chunk in enumerate(run):
        reached += chunk.weight
        if reached >= target_bytes:
            found.append(run[first : at + 1])
            first, reached = at + 1, 0
    rest = run[first:]
    young = _young_part([chunk.weight for chunk in rest], target_bytes)
    if young is not None:
        found.append(rest[young:])
    return found


def _young_part(weights: Sequence[int], target_bytes: int) -> int | None:
    """Return the first of the young chunks that are merged into one, or None."""
    if len(weights) < 2:
        return None
    typical = sorted(weights)[len(weights) // _QUARTER]
    wanted = _fan_in(target_bytes / typical)
    total = largest = 0
    best, found, best_at = 0.0, None, 0
    for at in reversed(range(len(weights))):
        total += weights[at]
        largest = max(largest, weights[at])
        if total >= wanted * largest:
            found = at
        if total >= best * largest:
            best, best_at = total / largest, at
    if found is None and len(weights) > WAITING_CHUNKS:  # of sizes too different for the tiers
        return best_at
    return found


def _fan_in(ratio: float) -> int:
    """Return how many chunks become one, where the target is ``ratio`` times a typical chunk."""
    tiers = 1
    while tiers * ratio ** (1 / tiers) > WAITING_CHUNKS and tiers < _MOST_TIERS:
        tiers += 1
    fan_in: int = ceil(ratio ** (1 / tiers))
    return max(2, fan_in)


def _parts(run: Sequence[LiveChunk]) -> Iterator[Sequence[LiveChunk]]:
    """Yield a run in parts that one commit can take."""
    for first in range(0, len(run), MAX_INPUTS):
        part = run[first : first + MAX_INPUTS]
        if len(part) > 1:
            yield part
