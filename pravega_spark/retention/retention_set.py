"""The retention set of a stream: its tail at every retained version, and samples from before.

A version's state is in the log, so that the tail of any retained version can be looked up: first
the state files are bisected, then the commits between two of them. Samples narrow the search
without a call to storage, and stand for the versions whose commits are deleted; between two that
are near each other the commits alone tell.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial

import immutables

from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    SampleRecord,
    decode_segment,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog
from pravega_spark.limits import STATE_FILE_COMMITS
from pravega_spark.model import StreamCut
from pravega_spark.retention.truncation_decision import RetentionEntry

_NEAR = STATE_FILE_COMMITS
"""So many commits are read from a sample on; farther on, a state file may be nearer."""
_PAGE = 32
"""So many of them at once, since the place looked for may be near."""

Test = Callable[[RetentionEntry], bool]


class RetentionHistory:
    """The retention set as of one view; a ``decision.RetentionSet``."""

    def __init__(self, stream: StreamLog, view: StreamView, ages: VersionAges) -> None:
        """Look at nothing yet."""
        self._ages = ages
        self._reader = stream.log.reader
        self._view = view
        self._samples = view.samples
        self._entries = dict[int, RetentionEntry]()
        self._sampled = dict[int, RetentionEntry]()
        self._states: list[int] | None = None
        self._read = dict[int, Snapshot]()
        self.tail = self._entry(view.snapshot)
        self.sizes = dict[tuple[int, int], int]()
        """Bytes of segments before offsets, of the entries that were returned."""

    def written_ms(self, entry: RetentionEntry) -> int:
        """Return a time before which all that is before the entry was written.

        A sample tells it without a call, unless it lies in the future: a wrong clock wrote it.
        """
        sample = self._sampled.get(entry.version)
        if sample is not None and sample.time_ms <= self._ages.now_ms:
            return sample.time_ms
        return self._ages.written_ms(entry.version)

    def around(self, is_before: Test) -> tuple[RetentionEntry | None, RetentionEntry | None]:
        """Return the newest entry for which the test holds, the oldest for which it does not."""
        if is_before(self.tail):
            return self._known(self.tail), None
        samples = self._samples
        at = bisect_left(samples, True, key=lambda record: not is_before(self._of_sample(record)))
        before = self._of_sample(samples[at - 1]) if at else None
        after = self._of_sample(samples[at]) if at < len(samples) else self.tail
        low = max(self._view.snapshot.cleanup, -1 if before is None else before.version)
        if low < after.version:
            with contextlib.suppress(CorruptLog):  # clean-up went on, and deleted what was read
                found, missed = self._between(before, low, after.version, is_before)
                before, after = found or before, missed or after
        return self._known(before), self._known(after)

    def _between(
        self, before: RetentionEntry | None, low: int, high: int, is_before: Test
    ) -> tuple[RetentionEntry | None, RetentionEntry | None]:
        """Do what :meth:`around` does for the versions from ``low`` to ``high``."""
        if before is not None and before.version == low and high - low <= _NEAR:
            entries = self._following(before, high, is_before)
            if entries is not None:
                at = bisect_left(entries, True, key=lambda entry: not is_before(entry()))
                following = entries[at]() if at < len(entries) else None
                return entries[at - 1]() if at else None, following
        return self._search(low, high, is_before)

    def _following(
        self, entry: RetentionEntry, high: int, is_before: Test
    ) -> list[Callable[[], RetentionEntry]] | None:
        """Return what makes an entry and those after it, up to a page that ends beyond the test.

        Few of them are looked at, so what names all segments is not made for each commit. None if
        the segments change on the way.
        """
        found: list[Callable[[], RetentionEntry]] = [lambda: entry]
        last, total = entry.version, entry.size_bytes
        marks, sizes = immutables.Map(dict(entry.cut)), immutables.Map(dict(entry.sizes))
        while last < high and is_before(found[-1]()):
            for commit in self._reader.span(last, min(last + _PAGE, high), light=True):
                for name, text in commit.domains.items():
                    if name.startswith(EPOCH_PREFIX) and text is not None:
                        return None
                    segment_id = int(name[len(SEGMENT_PREFIX) :]) if _is_segment(name) else -1
                    if segment_id in marks and text is not None:
                        record = decode_segment(segment_id, text)
                        total += record.size_bytes - sizes.get(segment_id, 0)
                        marks = marks.set(segment_id, record.next_offset)
                        sizes = sizes.set(segment_id, record.size_bytes)
                last = commit.version
                told = last, commit.timestamp_ms, total, marks, sizes
                found.append(partial(_after, entry, *told))
        return found

    def _known(self, entry: RetentionEntry | None) -> RetentionEntry | None:
        if entry is not None:
            self.sizes.update({(s, entry.cut.positions[s]): b for s, b in entry.sizes.items()})
        return entry

    def _search(
        self, low: int, high: int, is_before: Test
    ) -> tuple[RetentionEntry | None, RetentionEntry | None]:
        """Do what :meth:`around` does for the versions from ``low`` to ``high``."""
        life = self._view.life

        def passes(snapshot: Snapshot) -> bool:
            view = StreamView(snapshot)
            return view.life < life or is_before(self._entry(snapshot))

        states = [version for version in self._listed() if low <= version <= high]
        base: Snapshot | None = None
        end = high
        while states:
            middle = len(states) // 2
            state = self._state(states[middle])
            if state is None:
                del states[middle]
            elif passes(state):
                base, states = state, states[middle + 1 :]
            else:
                end, states = state.version, states[:middle]
        path = self._path(low, end, base)
        at = bisect_left(path, True, key=lambda snapshot: not passes(snapshot))
        before = self._of_life(path[at - 1]) if at else None
        after = self._of_life(path[at]) if at < len(path) else None
        return before, after

    def _of_life(self, snapshot: Snapshot) -> RetentionEntry | None:
        is_ours = StreamView(snapshot).life == self._view.life
        return self._entry(snapshot) if is_ours else None

    def _path(self, low: int, high: int, base: Snapshot | None) -> list[Snapshot]:
        """Return the snapshots of the versions from a base at or below ``low`` to ``high``."""
        older = [version for version in self._listed() if version <= low]
        if base is None and older:
            base = self._state(older[-1])
        if base is None:
            opened = self._reader.open(below=low + 1)
            assert opened is not None, f"{self._reader.where} has lost its log"
            base = opened[0]
        path = [base]
        for commit in self._reader.span(base.version, high, light=True):
            path.append(path[-1].apply(commit))
        return [snapshot for snapshot in path if snapshot.version >= low]

    def _listed(self) -> list[int]:
        """Return the versions of the state files, oldest first."""
        if self._states is None:
            self._states = sorted(self._reader.listed("state"))
        return self._states

    def _state(self, version: int) -> Snapshot | None:
        if version not in self._read:
            state = self._reader.state(version)
            if state is None:
                return None
            self._read[version] = state.snapshot
        return self._read[version]

    def _entry(self, snapshot: Snapshot) -> RetentionEntry:
        entry = self._entries.get(snapshot.version)
        if entry is None:
            view = StreamView(snapshot)
            sizes = {s: view.segment(s).size_bytes for s in view.active.segment_ids}
            told = snapshot.timestamp_ms, view.total_bytes, view.tail, sizes
            entry = self._entries[snapshot.version] = RetentionEntry(snapshot.version, *told)
        return entry

    def _of_sample(self, record: SampleRecord) -> RetentionEntry:
        entry = self._sampled.get(record.version)
        if entry is None:
            cut = record.tail.cut(self._view.stream, self._view.life)
            told = record.version, record.time_ms, record.size_bytes, cut, record.tail.sizes
            entry = self._sampled[record.version] = RetentionEntry(*told)
        return entry


def _after(
    entry: RetentionEntry,
    version: int,
    time_ms: int,
    size_bytes: int,
    marks: Mapping[int, int],
    sizes: Mapping[int, int],
) -> RetentionEntry:
    """Return a later entry of the same segments."""
    cut = StreamCut(entry.cut.stream, entry.cut.life, dict(marks))
    return RetentionEntry(version, time_ms, size_bytes, cut, dict(sizes))


def _is_segment(domain: str) -> bool:
    return domain.startswith(SEGMENT_PREFIX)
