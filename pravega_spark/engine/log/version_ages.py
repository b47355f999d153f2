"""How old the versions of a log are at least, for whoever deletes by age.

A version's age is the time since its commit's object was written, by the clock of the storage that
dates objects, not by the time that a writer put into the commit. Versions are created in order, so
the date of one bounds all before it: a date that cannot be right is replaced by a later version's.
"""

from __future__ import annotations

from pravega_spark.engine.log.clock_record import Now, read_now
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.limits import CLOCK_FAR_MS


class VersionAges:
    """The ages of one log's versions, as of one moment."""

    def __init__(self, log: Log, now: Now) -> None:
        """Look at nothing yet."""
        self._log = log
        self.now = now
        self._known = dict[int, int]()

    @classmethod
    def read(cls, log: Log, *, now_ms: int | None = None, keep: bool = True) -> VersionAges:
        """Ask what time it is; ``now_ms`` decides for that time instead.

        ``keep`` renews the root's clock record, which a dry run leaves alone.
        """
        if now_ms is not None:
            return cls(log, Now(now_ms, now_ms))
        return cls(log, read_now(log.store, log.runtime, keep=keep))

    @property
    def now_ms(self) -> int:
        """The time for decisions by age: never later than it is."""
        return self.now.earliest_ms

    @property
    def latest_ms(self) -> int:
        """The time for what is dated now: never earlier than the storage's clock."""
        return self.now.latest_ms

    def written_ms(self, version: int) -> int:
        """Return a time before which the version, and all before it, were committed.

        At most ``now_ms``. The date of a later version stands for one whose commit was deleted or
        is not dated rightly; without such a version the answer is ``now_ms``.
        """
        head = self._log.snapshot
        assert head is not None, "the age of a version of no log"
        asked, step = version, 1
        if asked in self._known:
            return self._known[asked]
        found = self.now_ms
        while version <= head.version:
            dated_ms = self._dated_ms(version)
            if dated_ms is not None:
                found = dated_ms
                break
            version, step = version + step, 2 * step
        self._known[asked] = found
        return found

    def _dated_ms(self, version: int) -> int | None:
        """Return the date of a version's object; None if it is gone, or a clock was wrong.

        A date in the future is wrong. So is one that is far before the time in the commit, which
        never falls behind an earlier commit's: the clock that dates objects was behind. Only where
        that time lies in the future itself, a host was ahead, and the date may be believed.
        """
        reader = self._log.reader
        dated_ms = self._log.store.modified_ms(reader.key(version))
        if dated_ms is None or dated_ms > self.now_ms:
            return None
        commit = reader.commit(version, light=True)
        if commit is None:
            return None
        said_ms = commit.timestamp_ms
        if said_ms <= self.now_ms and said_ms - dated_ms > CLOCK_FAR_MS:
            return None
        if self._log.store.has_clock:
            return dated_ms
        return max(dated_ms, min(said_ms, dated_ms + CLOCK_FAR_MS))  # a disk dates by ticks

    def version_at(self, time_ms: int) -> int:
        """Return the newest version committed at or before a time; the oldest retained if none."""
        snapshot = self._log.refresh()
        assert snapshot is not None
        low, high = snapshot.cleanup, snapshot.version
        while low < high:
            middle = (low + high + 1) // 2
            if self.written_ms(middle) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low
