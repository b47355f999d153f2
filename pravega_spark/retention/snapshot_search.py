"""Finds versions of a log by a test on their snapshots: bisects stored states, then commits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.state_part import Span, joined_spans

COMMITS_PAGE = 32
"""Commits read in one go by a search, since its result may be near."""


class SnapshotSearch:
    """Searches one log; remembers the stored states that it has read."""

    def __init__(self, reader: LogReader) -> None:
        """Take a log; reads nothing."""
        self._reader = reader
        self._files: list[int] | None = None
        self._spans: list[Span] = []
        self._states = dict[int, Snapshot]()

    def partition(
        self, low: int, high: int, passes: Callable[[Snapshot], bool]
    ) -> tuple[Snapshot | None, Snapshot | None]:
        """Return the newest version that passes a test, and the oldest one that fails it.

        Looks at the versions from ``low`` to ``high``. The test must hold for all versions up to
        some version, and for none after it. Raises CorruptLog for a log that cannot be read.
        """
        versions = [version for version in self._listed() if low <= version <= high]
        base: Snapshot | None = None
        end = high
        while versions:
            middle = len(versions) // 2
            state = self._state(versions[middle])
            if state is None:
                del versions[middle]
            elif passes(state):
                base, versions = state, versions[middle + 1 :]
            else:
                end, versions = state.version, versions[:middle]
        snapshots = self._snapshots(low, end, base, passes)
        at = bisect_left(snapshots, True, key=lambda snapshot: not passes(snapshot))
        return snapshots[at - 1] if at else None, snapshots[at] if at < len(snapshots) else None

    def _snapshots(
        self, low: int, high: int, base: Snapshot | None, passes: Callable[[Snapshot], bool]
    ) -> list[Snapshot]:
        """Return the snapshots from ``low``, or from the later ``base``, up to ``high``.

        They end earlier with a page of commits whose last one fails the test.
        """
        older = [version for version in self._listed() if version <= low]
        if base is None and older:
            base = self._state(older[-1])
        if base is None:
            base, _ = self._reader.open_known(below=low + 1)
        found = [base]
        while (last := found[-1]).version < high:
            if last.version > low and not passes(last):
                break
            for commit in self._reader.span(
                last.version, min(last.version + COMMITS_PAGE, high), light=True
            ):
                found.append(found[-1].apply(commit))
        return [snapshot for snapshot in found if snapshot.version >= low]

    def _listed(self) -> list[int]:
        """Return the versions of the state files, and those at which a part ends, oldest first."""
        if self._files is None:
            self._files, self._spans = self._reader.listed("state"), self._reader.spans()
        return sorted({*self._files, *(span.version for span in self._spans)})

    def _state(self, version: int) -> Snapshot | None:
        """Return a stored state, or None if its file, or a part up to it, is missing or damaged."""
        if version not in self._states:
            file = max((found for found in self._files or () if found <= version), default=-1)
            spans = [span for span in self._spans if span.version <= version]
            state = self._reader.joined(file, joined_spans(file, spans))
            if state is None or state.version != version:
                return None
            self._states[version] = state
        return self._states[version]
