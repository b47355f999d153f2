"""What commits brought: of those that a stream's log reads in passing, and of stored ones.

To look at a stream its log reads each new commit. What these brought, and when, is noted then, so
that nobody has to read them again for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.scaling.rates import NO_TRAFFIC, Traffic, traffic_by_segment
from pravega_spark.values.limits import CLOCK_SKEW_MS

Sizes = Mapping[int, Traffic]
"""What was written, by segment number."""

_TRUNCATION: Final = "TRUNCATE STREAM"
BEHIND_MS: Final = 60_000
"""A commit that is so much older than one before it, or than a look before it, has a clock that is
wrong."""
MAX_PASSED: Final = 1_024
"""The most commits that are noted between two looks."""


@dataclass(frozen=True, slots=True)
class CommitTraffic:
    """A commit: its author's time, and what it brought."""

    version: int
    clock_ms: int
    log_ms: int
    """The log's time: later than that of each commit before."""
    added: Sizes
    is_cut: bool
    """Whether it moved the head."""

    def behind_ms(self, looked_ms: int, now_ms: int) -> int:
        """Return how much older it is than a commit before it, or than a look that saw it not."""
        known_ms = self.log_ms if self.log_ms <= now_ms + CLOCK_SKEW_MS else looked_ms
        return max(known_ms, looked_ms) - self.clock_ms

    def seen(self, looked_ms: int, now_ms: int, part: float) -> CommitTraffic:
        """Return it with a time between two looks, of which the second one saw it first.

        A time of its own that lies elsewhere is replaced by that of a ``part`` of their distance.
        """
        if self.clock_ms >= looked_ms - CLOCK_SKEW_MS:
            return self
        return replace(self, clock_ms=looked_ms + round((now_ms - looked_ms) * part))

    def stored(self, after_ms: int, now_ms: int) -> CommitTraffic:
        """Return it with a time that is later than ``after_ms``, and than each commit before it.

        A time in the future stays, and raises none of the commits after it.
        """
        if self.clock_ms > now_ms + CLOCK_SKEW_MS:
            return self
        log_ms = self.log_ms if self.log_ms <= now_ms + CLOCK_SKEW_MS else self.clock_ms
        return replace(self, clock_ms=max(log_ms, after_ms + 1))


def traffic_of(commit: Commit) -> CommitTraffic:
    """Return what a commit brought."""
    added = {
        number: sum((one.traffic for one in found.transactions), found.appends)
        for number, found in traffic_by_segment(commit).items()
    }
    is_cut = _TRUNCATION in commit.operation or commit.restored_to is not None
    return CommitTraffic(commit.version, commit.clock_ms, commit.timestamp_ms, added, is_cut)


def whole(added: Sizes) -> Traffic:
    """Return the traffic of all segments."""
    return sum(added.values(), NO_TRAFFIC)


class PassedCommits:
    """The commits that an open stream's log has read, until they are taken; thread-safe."""

    def __init__(self, log: StreamLog) -> None:
        """Take the stream, whose log tells of each commit from now on."""
        self._found: deque[CommitTraffic] = deque(maxlen=MAX_PASSED)
        log.log.on_commit(self._note)

    def _note(self, commit: Commit) -> None:
        self._found.append(traffic_of(commit))  # atomic: the log is locked, and a look may wait

    def take(self, after: int, last: int) -> list[CommitTraffic] | None:
        """Return all commits of (after, last], and forget them; None if one was not read."""
        found: dict[int, CommitTraffic] = {}
        for _ in range(len(self._found)):
            one = self._found.popleft()
            if one.version > last:
                self._found.append(one)
            else:
                found[one.version] = one  # read again, it counts once
        versions = range(after + 1, last + 1)
        if len(versions) > len(found) or any(version not in found for version in versions):
            return None
        return [found[version] for version in versions]


def passed_commits(log: StreamLog) -> PassedCommits:
    """Return those of an open stream, noted since the first call."""
    return log.kept(PassedCommits, lambda: PassedCommits(log))
