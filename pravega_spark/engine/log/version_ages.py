"""Lower bounds for the ages of a log's versions, for code that deletes by age.

The age of a version is the time since its commit's object was written, by the storage's clock. The
time inside the commit is only the writer's. Versions are created in order, so the date of one is an
upper bound for all earlier ones. A date that is certainly wrong is replaced by a later version's.
"""

from __future__ import annotations

from pravega_spark.engine.log.clock_record import Now, read_now
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.limits import CLOCK_SKEW_MS

UNDATED = (
    "The dates of their commits' objects cannot be right: they lie in the future, or far before "
    "the times in the commits. Correct the clock that dates the objects; the next commit then has "
    "a right date, from which the age of all of them counts."
)
"""What to do about versions without a right date."""


class VersionAges:
    """The ages of one log's versions at one moment."""

    def __init__(self, log: Log, now: Now) -> None:
        """Fix the moment; nothing is read yet."""
        self._log = log
        self.now = now
        self._found = dict[int, int | None]()
        self._dates = dict[int, int | None]()

    @classmethod
    def read(cls, log: Log, *, now_ms: int | None = None, keep: bool = True) -> VersionAges:
        """Return the ages at the present time, or at ``now_ms``.

        ``keep`` renews the root's clock record; a dry run must not.
        """
        if now_ms is not None:
            return cls(log, Now(now_ms, now_ms))
        return cls(log, read_now(log.store, log.runtime, keep=keep))

    @property
    def now_ms(self) -> int:
        """The time for decisions by age; never later than the real time."""
        return self.now.earliest_ms

    @property
    def latest_ms(self) -> int:
        """The time for new records; never earlier than the storage's clock."""
        return self.now.latest_ms

    def written_ms(self, version: int) -> int:
        """Return a time by which the version, and all before it, had been committed.

        If the version's commit was deleted or has a wrong date, a later version's date is
        returned, and ``now_ms`` if there is none. Never later than ``now_ms``.
        """
        dated = self.dated_version(version)
        dated_ms = None if dated is None else self._known_date_ms(dated)
        return self.now_ms if dated_ms is None else dated_ms

    def dated_version(self, version: int) -> int | None:
        """Return the version whose date counts for this one: itself, or a later one.

        Where neighbours have wrong dates for the same reason, it is the next one with a right date;
        None if the search finds none up to the newest version.
        """
        if version not in self._found:
            self._found[version] = self._search(version)
        return self._found[version]

    def _search(self, version: int) -> int | None:
        newest = self._log.snapshot
        assert newest is not None, "a version's age needs a log"
        undated, step = version - 1, 1
        while version <= newest.version:
            if self._known_date_ms(version) is not None:
                return self._first_dated(undated, version)
            # Multiples of powers of two: the searches of neighbours meet, and read no commit twice.
            undated, version, step = version, (version // step + 1) * step, 2 * step
            if version > newest.version:  # begin again with short steps: some versions are left
                version, step = undated + 1, 2
        return None

    def _first_dated(self, undated: int, dated: int) -> int:
        """Bisect to a version with a right date after one without; the steps passed over some."""
        while dated - undated > 1:
            middle = (undated + dated) // 2
            if self._known_date_ms(middle) is None:
                undated = middle
            else:
                dated = middle
        return dated

    def _known_date_ms(self, version: int) -> int | None:
        if version not in self._dates:
            self._dates[version] = self._dated_ms(version)
        return self._dates[version]

    def _dated_ms(self, version: int) -> int | None:
        """Return the date of a version's object; None if it was deleted, or a clock was wrong.

        A date in the future is wrong. A date far before the time in the commit is wrong as well:
        commit times never decrease, so the storage's clock was behind. The exception is a commit
        time in the future: then the writer's clock was ahead, and the date is used.
        """
        reader = self._log.reader
        dated_ms = self._log.store.modified_ms(reader.key(version))
        if dated_ms is None or dated_ms > self.now_ms:
            return None
        commit = reader.commit(version, light=True)
        if commit is None:
            return None
        commit_ms = commit.timestamp_ms
        if commit_ms <= self.now_ms and commit_ms - dated_ms > CLOCK_SKEW_MS:
            return None
        if self._log.store.has_clock:
            return dated_ms
        committed_ms = max(dated_ms, min(commit_ms, dated_ms + CLOCK_SKEW_MS))
        return min(committed_ms, self.now_ms)  # a disk's dates are coarse, and a clock may be ahead

    def version_at(self, time_ms: int) -> int:
        """Return the newest version committed by a time, or the oldest one whose commit is stored.

        That is the commit-deletion mark: the objects of older versions may be deleted any time,
        while those between it and the retention mark still show their age.
        """
        snapshot = self._log.refresh()
        assert snapshot is not None
        low, high = snapshot.commit_deletion_mark, snapshot.version
        while low < high:
            middle = (low + high + 1) // 2
            if self.written_ms(middle) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low
