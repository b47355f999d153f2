"""Checks what retention did to a stream, by its log alone and without code of the package.

The checks look at sample keys, one between each two borders of segments. At one key the segments
form a chain, and a cut is a point on it; so cuts are compared without the engine.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from pravega_spark.config.policies import RetentionPolicy
from pravega_spark.engine.log.snapshot import Snapshot, first_snapshot
from pravega_spark.engine.stream.records import SubscriberRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.values.segments import END
from tests.harness.retention_processes import COMMIT_BYTES, EVENT_BYTES, EXPIRE_SECONDS, KEYS

Positions = Mapping[int, int]
Point = tuple[int, int]
"""The index of a segment in the chain of a key, and an offset in it."""


class History:
    """All versions of a stream, and the chains of its segments."""

    def __init__(self, stream: StreamLog) -> None:
        self.versions: list[tuple[StreamView, dict[str, str]]] = []
        self.ranges: dict[int, tuple[float, float]] = {}
        snapshot: Snapshot | None = None
        for commit in stream.log.reader.span(-1, stream.view().version):
            snapshot = snapshot.apply(commit) if snapshot else first_snapshot(commit, stream.name)
            view = StreamView(snapshot)
            self.versions.append((view, commit.info.get("operationParameters", {})))
            for segment in view.active.segments:
                self.ranges[segment.segment_id] = segment.key_range.low, segment.key_range.high
        borders = sorted({border for pair in self.ranges.values() for border in pair})
        self.keys = [(a + b) / 2 for a, b in itertools.pairwise(borders)]
        self.chains = {
            key: [s for s, (low, high) in sorted(self.ranges.items()) if low <= key < high]
            for key in self.keys
        }
        self.last = self.versions[-1][0]
        self.ends = {s: self._end(s) for s in self.ranges}

    def _end(self, segment_id: int) -> int:
        views = (view for view, _ in reversed(self.versions) if view.has_segment(segment_id))
        return next(views).segment(segment_id).next_offset

    def point(self, positions: Positions, key: float) -> Point:
        """Return the point of a cut at a key: the earliest one that the cut names."""
        chain = self.chains[key]
        number, offset = min(
            (chain.index(s) + (mark == END), max(mark, 0))
            for s, mark in positions.items()
            if s in chain
        )
        while number < len(chain) - 1 and offset >= self.ends[chain[number]]:
            number, offset = number + 1, 0
        return number, offset

    def lower_bound(self, cuts: Iterable[Positions]) -> dict[float, Point]:
        """Return the earliest point of all cuts at each key."""
        found = list(cuts)
        return {key: min(self.point(cut, key) for cut in found) for key in self.keys}

    def bytes_after(self, points: Mapping[float, Point], view: StreamView) -> int:
        """Return the bytes of a version after the points, one point for each key."""
        events = 0
        for segment_id in self.ranges:
            keys = [key for key in self.keys if segment_id in self.chains[key]]
            (number, offset), chain = min((points[key], self.chains[key]) for key in keys)
            end = view.segment(segment_id).next_offset if view.has_segment(segment_id) else 0
            index = chain.index(segment_id)
            if index >= number:
                events += end if index > number else max(0, end - offset)
        return events * EVENT_BYTES

    def check(self) -> list[str]:
        """Check each commit; return why subscribers expired and why the head moved."""
        found = []
        for (before, _), (after, parameters) in itertools.pairwise(self.versions):
            staying = {s.name for s in after.subscribers}
            gone = [s for s in before.subscribers if s.name not in staying]
            expired = [s for s in gone if not _has_left(s.name, after)]
            assert all(_is_idle(record, after) for record in expired)
            found += ["expired" for _ in expired]
            if after.record.head != before.record.head:
                assert json.loads(parameters["by"]) == "retention"
                found.append(self._check_head(before, after, staying))
        return found

    def _check_head(self, before: StreamView, after: StreamView, staying: set[str]) -> str:
        policy = before.record.configuration.retention
        assert policy is not None
        head = self.lower_bound([after.record.head])
        old = self.lower_bound([before.record.head])
        assert all(head[key] >= old[key] for key in self.keys), "the head moved back"
        kept = self.bytes_after(head, before)
        assert kept >= min(policy.minimum, before.total_bytes), "less than the minimum is kept"
        held = [s.bound.positions for s in before.subscribers if s.name in staying and s.bound]
        consumed = self.lower_bound(held or [before.record.head])
        bound = {key: max(consumed[key], old[key]) for key in self.keys}
        if all(head[key] <= bound[key] for key in self.keys):
            return "consumed"
        self._check_maximum(policy, before, bound, kept)
        return "maximum"

    def _check_maximum(
        self, policy: RetentionPolicy, before: StreamView, bound: Mapping[float, Point], kept: int
    ) -> None:
        """Check that the head passed the bound only as far as the maximum requires.

        Retention can cut at the tails of retained versions. On a slow machine these may be few.
        """
        most = policy.maximum
        assert most is not None, "the head passed its bound"
        assert self.bytes_after(bound, before) > most, "the head passed a bound within the maximum"
        if kept <= most - COMMIT_BYTES:
            retained = self.versions[before.snapshot.retention_mark : before.version + 1]
            tails = (
                self.lower_bound([{s: view.segment(s).next_offset for s in active}])
                for view, active in ((view, view.active.segment_ids) for view, _ in retained)
            )
            assert not any(kept < self.bytes_after(tail, before) <= most for tail in tails), (
                "more was truncated than the maximum requires"
            )


def _has_left(name: str, view: StreamView) -> bool:
    """Return whether a subscriber left, and was not removed by a run of retention."""
    record = view.subscriber(name)
    return record is not None and record.removed == "unsubscribed"


def _is_idle(record: SubscriberRecord, after: StreamView) -> bool:
    seen_ms = max(record.since_ms, record.published_ms or 0)
    return after.timestamp_ms - seen_ms >= 1_000 * EXPIRE_SECONDS


def check_files(table: Path, version: int) -> int:
    """Read all files of all versions from one on, by Delta's log alone; return their number."""
    paths = {
        uri.partition(f"{table}/")[2] for uri in DeltaTable(table, version=version).file_uris()
    }
    for commit in commits(table):
        if int(commit.stem) > version:
            actions = (json.loads(line) for line in commit.read_text().splitlines())
            paths |= {action["add"]["path"] for action in actions if "add" in action}
    for path in sorted(paths):
        rows = pq.read_table(table / path, partitioning=None)
        assert rows.num_rows > 0
    return len(paths)


def commits(table: Path) -> Iterator[Path]:
    """Yield the commits of a table's log, oldest first."""
    yield from sorted((table / "_delta_log").glob("0*.json"))


def check_events(events: Iterable[tuple[str, bytes]]) -> dict[str, int]:
    """Check that each writer's numbers on each key have no gap; return the last ones."""
    last: dict[tuple[str, str], int] = {}
    for key, data in events:
        writer, number = data.decode().split()
        before = last.get((key, writer))
        assert before is None or int(number) == before + len(KEYS), (
            f"{key} of {writer}: {before}, {number}"
        )
        last[key, writer] = int(number)
    return {f"{writer}/{key}": number for (key, writer), number in last.items()}
