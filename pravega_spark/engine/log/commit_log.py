"""The only module that commits: one table's log, its snapshot, and the rule of the unknown answer.

**Resolve N before N+1.** The bytes and the token of an attempt at version N are fixed before it
is sent. After any answer but a clean yes, N itself is read: our token means that we won, another
one that we lost (decide again, with a new body, at N+1), absent means the same bytes once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log import operator_log
from pravega_spark.engine.log.actions import Body, Commit, parse_commit
from pravega_spark.engine.log.commit_clock import CommitClock
from pravega_spark.engine.log.create_once import create_once
from pravega_spark.engine.log.file_index import FileIndex, RecentLayer
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot, first_snapshot, guard
from pravega_spark.engine.runtime import SYSTEM, ProcessGuard, Runtime
from pravega_spark.engine.store import Store, ensure_probed
from pravega_spark.engine.store.root_marker import Root, check_same, look
from pravega_spark.errors import (
    CommitUnknown,
    CorruptLog,
    PravegaSparkError,
    TooBusy,
)
from pravega_spark.limits import (
    CLOCK_STEP_MS,
    COMMIT_ATTEMPTS,
    COMMIT_DEADLINE_SECONDS,
    RECENT_FILES,
    STALE_SNAPSHOT_SECONDS,
    STATE_FILE_COMMITS,
)

_Value = TypeVar("_Value")

Proposal = tuple[Body | None, _Value]
"""What to commit (None: nothing is left to do), and a value for the caller."""

Decide = Callable[[Snapshot | None], Proposal[_Value]]
"""Given the newest snapshot (None: no log yet), what to commit. Runs again after a lost race."""


@dataclass(frozen=True, slots=True)
class Committed(Generic[_Value]):
    """The snapshot after a commit, and the value of the decision that counted."""

    snapshot: Snapshot
    value: _Value


class _Clocks(NamedTuple):
    """What all clocks that are at hand say at one moment: one of them may jump or stand still."""

    elapsed: float
    wall_ms: int
    storage_ms: int | None

    def is_long_after(self, earlier: _Clocks) -> bool:
        """Tell whether any clock says so, or went back, so that it tells nothing."""
        limit_ms = STALE_SNAPSHOT_SECONDS * 1_000
        passed_ms = self.wall_ms - earlier.wall_ms
        if self.elapsed - earlier.elapsed > STALE_SNAPSHOT_SECONDS:
            return True
        if not -CLOCK_STEP_MS <= passed_ms <= limit_ms:
            return True
        if self.storage_ms is None or earlier.storage_ms is None:
            return False
        return self.storage_ms - earlier.storage_ms > limit_ms


class Log:
    """One table's log in one process: thread-safe, one commit at a time."""

    def __init__(self, store: Store, path: str, runtime: Runtime = SYSTEM) -> None:
        """Name the table at ``path``; nothing is read yet."""
        self.reader = LogReader(store, path)
        self.store = store
        self.path = path
        self.runtime = runtime
        self.clock = CommitClock(store, runtime)
        self._guard = ProcessGuard(f"the log of {path}")
        self._lock = threading.RLock()
        self._root: Root | None = None
        """The root as it was found when the log was opened."""
        self._snapshot: Snapshot | None = None
        self._files: FileIndex | None = None
        self._files_limit = RECENT_FILES
        self._head_seen: _Clocks | None = None
        """A time at or before which the snapshot was last known to be the head."""
        self._durable_version = -1
        """The newest version that is known to be durable."""
        self.maintain: Callable[[Log, int], object] | None = None
        """Called after our commit of every STATE_FILE_COMMITS-th version."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The last snapshot known here; it may be behind the head."""
        return self._snapshot

    def refresh(self, *, durable: bool = False) -> Snapshot | None:
        """Return the snapshot of the head, or None if there is no log.

        ``durable`` makes commits of others durable before they are shown to the caller.
        """
        self._guard.check()
        with self._lock:
            self._catch_up()
            if durable:
                self._make_durable()
            return self._snapshot

    def proved_newest(self) -> Snapshot | None:
        """Return a snapshot that is proved to be the head's; None if there is no log.

        What is deleted is decided on it, so no listing is believed: after all that was read the
        next version is asked for by its name, and the commit of this one is still ours. Raises
        TooBusy if others commit faster than the log can be read.
        """
        self._guard.check()
        with self._lock:
            for _ in range(COMMIT_ATTEMPTS):
                known = self._snapshot
                self._catch_up()
                if self._snapshot is not known:
                    continue
                if known is None or self._holds(known):
                    self._make_durable()
                    return known
                self._snapshot, self._files = None, None
            raise TooBusy(
                f"{self.reader.where}: its newest version could not be read for "
                f"{COMMIT_ATTEMPTS} times; nothing was deleted; try again."
            )

    def check_root(self) -> None:
        """Raise RootChanged if the root is another one than was opened here first."""
        check_same(self.store)

    def forget(self) -> None:
        """Open the log anew at its next use: something is wrong with what is stored of it."""
        with self._lock:
            self._snapshot, self._files = None, None

    def has_newer_version(self) -> bool:
        """Tell by one call whether the log has gone on behind the snapshot that is known here."""
        self.check_root()
        known = self._snapshot
        return known is not None and self.reader.has(known.version + 1)

    def _make_durable(self) -> None:
        """Make what is known here durable: it may be another's whose answer is still to come."""
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version != self._durable_version:
            self.store.make_durable(self.reader.folder)
            self._durable_version = snapshot.version

    @contextmanager
    def files(self) -> Iterator[FileIndex]:
        """Hold the index of live files as of ``snapshot``; needs a log."""
        self._guard.check()
        self.check_root()
        with self._lock:
            if self._stale():
                self._catch_up()
            if self._files is None or self._files.recent > self._files_limit:
                self._files = FileIndex(self._recent(), self.reader.layer, self._recent)
                self._files_limit = max(RECENT_FILES, 2 * self._files.recent)
            yield self._files

    def _recent(self) -> RecentLayer:
        """Return the files of the commits since the newest base that is kept."""
        snapshot = self._snapshot
        assert snapshot is not None, "files of a table without a log"
        opened = self.reader.open(below=snapshot.version + 1)
        recent = RecentLayer(-1 if opened is None else opened[1])
        for commit in self.reader.span(recent.older, snapshot.version):
            recent.apply(commit)
        return recent

    def _catch_up(self) -> None:
        """Apply what follows the snapshot, or open the log; anew if it was cleaned meanwhile.

        Whether it was is looked up after reading, however long the process was stopped before.
        A gap may be the work of clean-up at this moment, so a log with one is opened twice.
        """
        self.check_root()
        gaps = 0
        while True:
            asked = self._clocks()
            base, opened, dropped = self._snapshot, False, False
            if base is None:
                self._root = look(self.store)
                found = self.reader.open()
                if found is None:
                    return
                self._snapshot = base = found[0]
                self._files, opened = None, True
            try:
                light = self._files is None
                for commit in self.reader.forward(base.version, light=light):
                    dropped = commit.restored_to is not None and commit.restored_to < base.version
                    if dropped:  # what is known here was dropped by a restore
                        break
                    self._apply(commit)
            except CorruptLog:
                if not self._cleaned(base, opened):
                    raise
            else:
                if not dropped and not self._cleaned(base, opened):
                    if not opened or self._ends(refuse=gaps > 0):
                        self._head_seen = asked
                        return
                    gaps += 1
            self._snapshot, self._files = None, None

    def _ends(self, *, refuse: bool) -> bool:
        """Tell whether the log ends here, or refuse it, for a commit in a gap buries the rest."""
        head, self._snapshot = self._snapshot, None
        assert head is not None
        gap = self.reader.has_gap(head.version)
        if gap and refuse:
            raise self.reader.missing(head.version + 1, head.version + 2)
        self._snapshot = head
        return not gap

    def _cleaned(self, base: Snapshot, opened: bool) -> bool:
        """Tell whether clean-up may have passed the version from which the log was read on.

        Deletion goes upward and leaves version 0. A log that was opened at version 0 was never
        cleaned.
        """
        if base.version == 0:
            return not opened and self._stale()
        if not opened and not self._stale():
            return False
        if not self._holds(base):
            return True
        head = self._snapshot
        assert head is not None
        return not (opened or self.store.is_local) and self.reader.has_gap(head.version)

    def _holds(self, known: Snapshot) -> bool:
        """Tell whether the log still has a snapshot's commit, and no stray one in its place.

        On a local store it then has all that follows, too: deletion goes upward. An object store
        deletes what is in one page in any order; what is at or above the clean-up mark stays, so
        whether something was deleted is seen by what a listing shows behind the gap.
        """
        commit = self.reader.commit(known.version, light=True)
        return commit is not None and commit.token == known.token

    def _apply(self, commit: Commit) -> None:
        if self._snapshot is None:
            after = first_snapshot(commit, self.reader.where)
        else:
            after = self._snapshot.apply(commit)
            if commit.protocol is not None:
                guard(after, self.reader.where)
        files, self._files = self._files, None  # an interrupt in between costs a new index
        self._snapshot = after
        if files is not None:
            files.apply(commit)
            self._files = files

    def _clocks(self) -> _Clocks:
        dated = self.store.dated
        storage_ms = None if dated is None else dated.storage_ms
        return _Clocks(self.runtime.monotonic(), self.runtime.now_ms(), storage_ms)

    def _stale(self) -> bool:
        """Tell whether any clock says that the head was last seen long ago."""
        return self._head_seen is None or self._clocks().is_long_after(self._head_seen)

    def _gone(self, known: Snapshot) -> bool:
        """Tell whether clean-up has passed the version that our commit was put behind.

        Where deletion has no order, whatever follows our commit so late makes that unknown.
        """
        ours = known.version + 1
        if not self.store.is_local and self.reader.last_listed(ours) > ours:
            return True
        if known.version > 0:
            return not self._holds(known)
        opened = self.reader.open()  # version 0 stays, so the log itself must tell
        if opened is None or opened[0].version <= 1:
            return False
        return opened[0].cleanup > 0 or not self.store.exists(self.reader.key(2))

    def commit(self, decide: Decide[_Value]) -> Committed[_Value]:
        """Commit what ``decide`` proposes on the newest snapshot; return what it came to.

        ``decide`` runs again after every lost race, on the winner's snapshot. What it raises,
        or no body, counts only on a snapshot that is the head's. Raises CommitUnknown when
        nobody can tell whether the commit landed, TooBusy after COMMIT_ATTEMPTS lost races.
        """
        self._guard.check()
        with self._lock:
            if self._snapshot is None or self._stale():
                self._catch_up()
            if self._root is not None and not self._root.is_proved:
                ensure_probed(self.store, self.runtime)
            for attempt in range(COMMIT_ATTEMPTS):
                known, body, value = self._decide(decide)
                if body is None:
                    assert known is not None
                    self._make_durable()
                    return Committed(known, value)
                if self._snapshot is known and self._send(body):
                    return Committed(self._after_commit(), value)
                if attempt > 2:
                    self.runtime.sleep(self.runtime.random() * min(0.001 * attempt, 0.05))
            raise TooBusy(
                f"{self.reader.where}: {COMMIT_ATTEMPTS} races for the next version were lost; "
                "nothing was committed; try again."
            )

    def _decide(self, decide: Decide[_Value]) -> tuple[Snapshot | None, Body | None, _Value]:
        """Return the snapshot that was decided on, and the proposal."""
        while True:
            known = self._snapshot
            try:
                body, value = decide(known)
            except PravegaSparkError:
                self._catch_up()
                if self._snapshot is known:
                    raise
                continue
            if body is None:
                self._catch_up()
                if self._snapshot is not known:
                    continue
            return known, body, value

    def _send(self, body: Body) -> bool:
        """Try to make ``body`` the next version; False if another's commit is there."""
        known = self._snapshot
        version = 0 if known is None else known.version + 1
        earliest = 0 if known is None else known.timestamp_ms + 1
        token = self.runtime.token()
        clock_ms = self.clock.now_ms()
        timestamp_ms = max(clock_ms, earliest)
        data = body.encode(token, timestamp_ms, clock_ms)
        sent = self._clocks()
        failpoint("commit.before")
        self.check_root()
        landed = self._put(version, token, data)
        if landed and known is not None and self._stale() and self._gone(known):
            raise CommitUnknown(
                f"{self.reader.where}: version {version} was written after the log before it had "
                "been cleaned away; it does not count. Open the object anew.",
                version=version,
            )
        if not landed:
            self._catch_up()
            return False
        self._apply(body.committed(version, token, timestamp_ms, clock_ms))
        self._durable_version = version
        self._head_seen = sent
        operator_log.log_commit(self.reader.where, version, body)
        return True

    def _put(self, version: int, token: str, data: bytes) -> bool:
        """Send the same bytes to N until N is settled; True if they are what it holds."""

        def is_ours(found: bytes) -> bool:
            return parse_commit(version, found, self.reader.where, light=True).token == token

        return create_once(
            self.store,
            self.runtime,
            self.reader.key(version),
            data,
            is_ours=is_ours,
            unknown=lambda: self._unknown(version),
            after=self.reader.key(version - 1) if version > 0 else None,
        )

    def _unknown(self, version: int) -> CommitUnknown:
        return CommitUnknown(
            f"{self.reader.where}: nobody can tell whether version {version} was committed "
            f"(no clear answer for {COMMIT_DEADLINE_SECONDS:.0f} s); staged files are kept. Open "
            "the object anew, which settles it, and go on from what it then reports.",
            version=version,
        )

    def _after_commit(self) -> Snapshot:
        snapshot = self._snapshot
        assert snapshot is not None
        if self.maintain is not None and snapshot.version % STATE_FILE_COMMITS == 0:
            self.maintain(self, snapshot.version)
        return snapshot
