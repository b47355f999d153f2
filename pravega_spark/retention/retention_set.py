"""The retention set of a stream, looked up in its log: the tail at each retained version.

The tail at a version follows from the log: a search first bisects the state files, then the commits
between two of them. Samples narrow the search without a storage call, and replace versions whose
commits are deleted. Between two samples that are near each other the commits alone suffice.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial

import immutables

from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.stored_state import Span, joined_spans
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    SampleRecord,
    decode_segment,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog
from pravega_spark.retention.decision import RetentionEntry
from pravega_spark.values.limits import STATE_FILE_COMMITS
from pravega_spark.values.segments import StreamCut

COMMITS_PAGE = 32
"""Commits read in one go by a search, since its result may be near."""


class SnapshotSearch:
    """Searches one log; remembers what it has read.

    A decision and its explanation search the same commits several times.
    """

    def __init__(self, reader: LogReader) -> None:
        """Take a log; reads nothing."""
        self._reader = reader
        self._files: list[int] | None = None
        self._spans: list[Span] = []
        self._states = dict[int, Snapshot]()
        self._ranges: list[list[Snapshot]] = []
        """The snapshots of ranges whose commits were read, each without a gap."""

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
        known = self._range_with(base)
        while (last := known[-1]).version < high:
            if last.version > low and not passes(last):
                break
            for commit in self._reader.span(
                last.version, min(last.version + COMMITS_PAGE, high), light=True
            ):
                known.append(known[-1].apply(commit))
        first = max(low, base.version)
        return [snapshot for snapshot in known if first <= snapshot.version <= high]

    def _range_with(self, base: Snapshot) -> list[Snapshot]:
        """Return the range that has a snapshot, or a new one that begins with it."""
        for known in self._ranges:
            if known[0].version <= base.version <= known[-1].version:
                return known
        self._ranges.append([base])
        return self._ranges[-1]

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


_NEAR = STATE_FILE_COMMITS
"""The most versions between two samples that are searched by commits alone; over a longer distance
a state file may be nearer."""

EntryTest = Callable[[RetentionEntry], bool]
"""Holds for all entries up to some entry, and for none after it."""
Partition = tuple["RetentionEntry | None", "RetentionEntry | None"]
"""The newest entry that passes a test, and the oldest one that fails it."""


def entry_of_sample(view: StreamView, record: SampleRecord) -> RetentionEntry:
    """Return the entry that a sample in the state of a view is."""
    return RetentionEntry(
        version=record.version,
        time_ms=record.time_ms,
        size_bytes=record.size_bytes,
        cut=record.tail.cut(view.stream, view.life),
        sizes=record.tail.sizes,
    )


class LogRetentionSet:
    """The retention set as of one view; a ``truncation_inputs.RetentionSet``."""

    def __init__(self, stream: StreamLog, view: StreamView, ages: VersionAges) -> None:
        """Take a view; reads nothing."""
        self._ages = ages
        self._reader = stream.log.reader
        self._view = view
        self._samples = view.samples
        self._entries = dict[int, RetentionEntry]()
        self._sampled = dict[int, RetentionEntry]()
        self._following = dict[int, _FollowingEntries]()
        self._search = SnapshotSearch(stream.log.reader)
        self.tail = self._entry_of(view.snapshot)
        self.sizes = dict[tuple[int, int], int]()
        """Bytes of segments before offsets, from all entries that were returned."""

    def written_ms(self, entry: RetentionEntry) -> int:
        """Return a time by which all events before the entry were written.

        The time of a sample is used without a storage call. One in the future was written with a
        wrong clock and is ignored.
        """
        sample = self._sampled.get(entry.version)
        if sample is not None and sample.time_ms <= self._ages.now_ms:
            return sample.time_ms
        return self._ages.written_ms(entry.version)

    def partition(self, is_before: EntryTest) -> Partition:
        """Return the newest entry that passes the test, and the oldest one that fails it."""
        if is_before(self.tail):
            return self._remember_sizes(self.tail), None
        samples = self._samples
        at = bisect_left(
            samples, True, key=lambda record: not is_before(self._entry_of_sample(record))
        )
        before = self._entry_of_sample(samples[at - 1]) if at else None
        after = self._entry_of_sample(samples[at]) if at < len(samples) else self.tail
        # The search reads commits and no files, so it may go below the retention mark.
        oldest = self._view.snapshot.commit_deletion_mark
        low = max(oldest, -1 if before is None else before.version)
        if low < after.version:
            # A concurrent clean-up may delete commits in between; then the samples must do.
            with contextlib.suppress(CorruptLog):
                found, missed = self._partition_between(before, low, after.version, is_before)
                before, after = found or before, missed or after
        return self._remember_sizes(before), self._remember_sizes(after)

    def _partition_between(
        self, before: RetentionEntry | None, low: int, high: int, is_before: EntryTest
    ) -> Partition:
        """Do what :meth:`partition` does, for the versions from ``low`` to ``high``."""
        if before is not None and before.version == low and high - low <= _NEAR:
            entries = self._entries_from(before, high, is_before)
            if entries is not None:
                at = bisect_left(entries, True, key=lambda entry: not is_before(entry()))
                after = entries[at]() if at < len(entries) else None
                return entries[at - 1]() if at else None, after
        return self._partition_by_states(low, high, is_before)

    def _entries_from(
        self, entry: RetentionEntry, high: int, is_before: EntryTest
    ) -> list[Callable[[], RetentionEntry]] | None:
        """Return factories of an entry and the next ones, up to a page whose last one fails.

        Returns None if the stream was scaled on the way. A decision asks several times for the
        entries after one sample, so what was read of them stays.
        """
        known = self._following.get(entry.version)
        if known is None:
            known = self._following[entry.version] = _FollowingEntries(entry)
        while known.version < high and is_before(known.entries[-1]()):
            page = self._reader.span(
                known.version, min(known.version + COMMITS_PAGE, high), light=True
            )
            if not all(map(known.add, page)):
                return None
        return known.entries

    def _remember_sizes(self, entry: RetentionEntry | None) -> RetentionEntry | None:
        if entry is not None:
            self.sizes.update({(s, entry.cut.positions[s]): b for s, b in entry.sizes.items()})
        return entry

    def _partition_by_states(self, low: int, high: int, is_before: EntryTest) -> Partition:
        life = self._view.life

        def passes(snapshot: Snapshot) -> bool:
            view = StreamView(snapshot)
            return view.life < life or is_before(self._entry_of(snapshot))

        before, after = self._search.partition(low, high, passes)
        return self._entry_in_life(before), self._entry_in_life(after)

    def _entry_in_life(self, snapshot: Snapshot | None) -> RetentionEntry | None:
        """Return the entry of a snapshot, or None if it is of an earlier life of the stream."""
        if snapshot is None or StreamView(snapshot).life != self._view.life:
            return None
        return self._entry_of(snapshot)

    def _entry_of(self, snapshot: Snapshot) -> RetentionEntry:
        entry = self._entries.get(snapshot.version)
        if entry is None:
            view = StreamView(snapshot)
            sizes = {s: view.segment(s).size_bytes for s in view.active.segment_ids}
            entry = RetentionEntry(
                version=snapshot.version,
                time_ms=snapshot.timestamp_ms,
                size_bytes=view.total_bytes,
                cut=view.tail,
                sizes=sizes,
            )
            self._entries[snapshot.version] = entry
        return entry

    def _entry_of_sample(self, record: SampleRecord) -> RetentionEntry:
        entry = self._sampled.get(record.version)
        if entry is None:
            entry = self._sampled[record.version] = entry_of_sample(self._view, record)
        return entry


class _FollowingEntries:
    """An entry and those of the versions after it, until the stream is scaled.

    They are kept as factories, because a search looks at few of them and an entry names all
    segments.
    """

    def __init__(self, entry: RetentionEntry) -> None:
        self.version = entry.version
        self.entries: list[Callable[[], RetentionEntry]] = [lambda: entry]
        self._first = entry
        self._total = entry.size_bytes
        self._offsets = immutables.Map(dict(entry.cut))
        self._sizes = immutables.Map(dict(entry.sizes))

    def add(self, commit: Commit) -> bool:
        """Add the entry of the next version; return False if that version scaled the stream."""
        for name, text in commit.domains.items():
            if name.startswith(EPOCH_PREFIX) and text is not None:
                return False
            segment_id = int(name[len(SEGMENT_PREFIX) :]) if _is_segment(name) else -1
            if segment_id in self._offsets and text is not None:
                record = decode_segment(segment_id, text)
                self._total += record.size_bytes - self._sizes.get(segment_id, 0)
                self._offsets = self._offsets.set(segment_id, record.next_offset)
                self._sizes = self._sizes.set(segment_id, record.size_bytes)
        self.version = commit.version
        ends = self._total, self._offsets, self._sizes
        self.entries.append(
            partial(_later, self._first, commit.version, commit.timestamp_ms, *ends)
        )
        return True


def _later(
    entry: RetentionEntry,
    version: int,
    time_ms: int,
    size_bytes: int,
    offsets: Mapping[int, int],
    sizes: Mapping[int, int],
) -> RetentionEntry:
    """Return the entry of a later version with the same segments."""
    cut = StreamCut(entry.cut.stream, entry.cut.life, dict(offsets))
    return RetentionEntry(
        version=version, time_ms=time_ms, size_bytes=size_bytes, cut=cut, sizes=dict(sizes)
    )


def _is_segment(domain: str) -> bool:
    return domain.startswith(SEGMENT_PREFIX)
