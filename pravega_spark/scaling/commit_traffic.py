"""The events and bytes that a commit added to each segment, from the commit's metrics."""

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
class Traffic:
    """Events and their bytes."""

    events: int = 0
    size_bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of both."""
        return Traffic(self.events + other.events, self.size_bytes + other.size_bytes)


NO_TRAFFIC: Final = Traffic()


@dataclass(frozen=True, slots=True)
class TransactionTraffic:
    """The events that a committed transaction added to one segment, and when it began."""

    created_ms: int
    traffic: Traffic


@dataclass(frozen=True, slots=True)
class SegmentTraffic:
    """The events that a commit added to one segment: all appends, and each transaction."""

    appends: Traffic = NO_TRAFFIC
    transactions: tuple[TransactionTraffic, ...] = ()


_NOTHING: Final = SegmentTraffic()


def traffic_by_segment(commit: Commit) -> dict[int, SegmentTraffic]:
    """Return the traffic of a commit by segment number.

    Only segments whose record the commit changes count, so that a rewrite of files does not. The
    parameter ``transactions`` has the traffic of each transaction.
    """
    parameters = commit.info.get("operationParameters") or {}
    found: dict[int, SegmentTraffic] = {}
    if "transactions" in parameters:
        for transaction in json.loads(parameters["transactions"]):
            rows = _by_id(transaction["rowsBySegment"])
            sizes = _by_id(transaction["bytesBySegment"])
            for number, traffic in _traffic(commit, rows, sizes):
                added = TransactionTraffic(transaction["created"], traffic)
                before = found.get(number, _NOTHING)
                found[number] = SegmentTraffic(before.appends, (*before.transactions, added))
        return found
    metrics = commit.info.get("operationMetrics") or {}
    rows = _by_id(_parse_cells(metrics.get("rowsBySegment", "")))
    sizes = _by_id(_parse_cells(metrics.get("bytesBySegment", "")))
    for number, traffic in _traffic(commit, rows, sizes):
        found[number] = SegmentTraffic(found.get(number, _NOTHING).appends + traffic)
    return found


def _traffic(
    commit: Commit, rows: Mapping[int, int], sizes: Mapping[int, int]
) -> Iterator[tuple[int, Traffic]]:
    """Yield the number and the traffic of each segment whose record the commit changes."""
    for segment_id, events in rows.items():
        if f"{SEGMENT_PREFIX}{segment_id}" in commit.domains:
            yield segment_number(segment_id), Traffic(events, sizes.get(segment_id, 0))


def _parse_cells(text: str) -> dict[str, str]:
    """Read ``0#0=12,1#0=3``."""
    return dict(cell.split("=") for cell in text.split(",") if cell)


def _by_id(cells: Mapping[str, int | str]) -> dict[int, int]:
    return {_segment_id(segment): int(number) for segment, number in cells.items()}


_segment_id = lru_cache(maxsize=8192)(parse_segment)
"""Cached, since all commits of a stream name the same few segments."""
