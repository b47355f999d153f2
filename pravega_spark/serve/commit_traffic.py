"""What commits brought: of those that a stream's log reads in passing, and of stored ones.

To look at a stream its log reads each new commit. What these brought, and when, is noted then, so
that nobody has to read them again for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.scaling.rates import NO_TRAFFIC, Traffic, traffic_by_segment

Sizes = Mapping[int, Traffic]
"""What was written, by segment number."""

_TRUNCATION: Final = "TRUNCATE STREAM"
MAX_PASSED: Final = 1_024
"""The most commits that are noted between two looks."""


@dataclass(frozen=True, slots=True)
class CommitTraffic:
    """A commit: its author's time, and what it brought."""

    version: int
    clock_ms: int
    added: Sizes
    is_cut: bool
    """Whether it moved the head."""


def traffic_of(commit: Commit) -> CommitTraffic:
    """Return what a commit brought."""
    added = {
        number: sum((one.traffic for one in found.transactions), found.appends)
        for number, found in traffic_by_segment(commit).items()
    }
    is_cut = _TRUNCATION in commit.operation or commit.restored_to is not None
    return CommitTraffic(commit.version, commit.clock_ms, added, is_cut)


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
