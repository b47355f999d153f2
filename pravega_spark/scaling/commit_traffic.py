"""What a commit brought to each segment: its events, their bytes, and the lives of transactions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.model import parse_segment, segment_number


@dataclass(frozen=True, slots=True)
class SegmentTraffic:
    """Events and their bytes."""

    events: int = 0
    size_bytes: int = 0

    def __add__(self, other: SegmentTraffic) -> SegmentTraffic:
        """Return the sum of both."""
        return SegmentTraffic(self.events + other.events, self.size_bytes + other.size_bytes)


NO_EVENT: Final = SegmentTraffic()


@dataclass(frozen=True, slots=True)
class Merged:
    """What a committed transaction brought to one segment, and when the transaction was begun."""

    created_ms: int
    amount: SegmentTraffic


@dataclass(frozen=True, slots=True)
class CommitTraffic:
    """What one commit brought to one segment: plain appends together, transactions one by one."""

    plain: SegmentTraffic = NO_EVENT
    merged: tuple[Merged, ...] = ()


def traffic_of(commit: Commit) -> dict[int, CommitTraffic]:
    """Return what a commit brought to each segment, by segment number.

    Read from its metrics; only segments whose record the commit moved on count, so that a rewrite
    of files does not. Transactions are told apart by the parameter ``transactions``.
    """
    parameters = commit.info.get("operationParameters") or {}
    found: dict[int, CommitTraffic] = {}
    if "transactions" in parameters:
        for transaction in json.loads(parameters["transactions"]):
            rows = _ids(transaction["rowsBySegment"])
            sizes = _ids(transaction["bytesBySegment"])
            for number, amount in _amounts(commit, rows, sizes):
                merged = Merged(transaction["created"], amount)
                before = found.get(number, _NOTHING)
                found[number] = CommitTraffic(before.plain, (*before.merged, merged))
        return found
    metrics = commit.info.get("operationMetrics") or {}
    rows = _ids(_cells(metrics.get("rowsBySegment", "")))
    sizes = _ids(_cells(metrics.get("bytesBySegment", "")))
    for number, amount in _amounts(commit, rows, sizes):
        found[number] = CommitTraffic(found.get(number, _NOTHING).plain + amount)
    return found


_NOTHING: Final = CommitTraffic()


def _amounts(
    commit: Commit, rows: Mapping[int, int], sizes: Mapping[int, int]
) -> Iterator[tuple[int, SegmentTraffic]]:
    for segment_id, events in rows.items():
        if f"{SEGMENT_PREFIX}{segment_id}" in commit.domains:
            yield segment_number(segment_id), SegmentTraffic(events, sizes.get(segment_id, 0))


def _cells(text: str) -> dict[str, str]:
    """Read ``0#0=12,1#0=3``."""
    return dict(cell.split("=") for cell in text.split(",") if cell)


def _ids(cells: Mapping[str, int | str]) -> dict[int, int]:
    return {_segment_id(segment): int(number) for segment, number in cells.items()}


_segment_id = lru_cache(maxsize=8192)(parse_segment)
"""Every commit of a stream names the same few segments."""
