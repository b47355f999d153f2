"""The only module that commits: one table's log, its snapshot, and the rule of the unknown answer.

**Resolve N before N+1.** The bytes and the token of an attempt at version N are fixed before it
is sent. After any answer but a clean yes, N itself is read: our token means that we won, another
one that we lost (decide again, with a new body, at N+1), absent means the same bytes once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pravega_spark.config import (
    COMMIT_ATTEMPTS,
    COMMIT_DEADLINE_SECONDS,
    STALE_HEAD_SECONDS,
    STATE_FILE_COMMITS,
)
from pravega_spark.engine.actions import Body, Commit, parse_commit
from pravega_spark.engine.crashpoints import crash_point
from pravega_spark.engine.files import FileIndex, RecentLayer
from pravega_spark.engine.logreader import LogReader
from pravega_spark.engine.runtime import SYSTEM, ProcessGuard, Runtime
from pravega_spark.engine.snapshot import Snapshot, first_snapshot, guard
from pravega_spark.engine.store import Put, Store
from pravega_spark.errors import CommitUnknown, PravegaSparkError, StoreError, TooBusy

Decide = Callable[[Snapshot | None], Body | None]
"""Given the newest snapshot (None: no log yet), what to commit; None: nothing is left to do."""


class Log:
    """One table's log in one process: thread-safe, one commit at a time."""

    def __init__(self, store: Store, path: str, runtime: Runtime = SYSTEM) -> None:
        """Name the table at ``path``; nothing is read yet."""
        self.reader = LogReader(store, path)
        self.store = store
        self.path = path
        self.runtime = runtime
        self._guard = ProcessGuard(f"the log of {path}")
        self._lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._base = -1
        """The state file's version below which no commit was read here."""
        self._files: FileIndex | None = None
        self._head_seen = 0.0
        self._settled = -1
        """The newest version that is known to be durable."""
        self.maintain: Callable[[Log, int], object] | None = None
        """Called after our commit of every STATE_FILE_COMMITS-th version."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The last snapshot known here; it may be behind the head."""
        return self._snapshot

    def refresh(self, *, settle: bool = False) -> Snapshot | None:
        """Return the snapshot of the head, or None if there is no log.

        ``settle`` makes commits of others durable before they are shown to the caller.
        """
        self._guard.check()
        with self._lock:
            self._catch_up()
            snapshot = self._snapshot
            if settle and snapshot is not None and snapshot.version != self._settled:
                self.store.settle(self.reader.folder)
                self._settled = snapshot.version
            return snapshot

    @contextmanager
    def files(self) -> Iterator[FileIndex]:
        """Hold the index of live files as of ``snapshot``; needs a log."""
        self._guard.check()
        with self._lock:
            if self._files is None:
                self._files = self._index()
            yield self._files

    def _index(self) -> FileIndex:
        assert self._snapshot is not None, "files of a table without a log"
        recent = RecentLayer(self._base)
        for commit in self.reader.span(self._base, self._snapshot.version):
            recent.apply(commit)
        return FileIndex(recent, self.reader.layer)

    def _catch_up(self) -> None:
        """Apply what follows the snapshot, or open the log."""
        self._check_not_cleaned()
        if self._snapshot is None:
            opened = self.reader.open()
            if opened is None:
                return
            self._snapshot, self._base = opened
            self._files = None
        for commit in self.reader.forward(self._snapshot.version, light=self._files is None):
            self._apply(commit)
        self._head_seen = self.runtime.monotonic()

    def _apply(self, commit: Commit) -> None:
        if self._snapshot is None:
            self._snapshot = first_snapshot(commit, self.reader.where)
            self._base = -1
        else:
            self._snapshot = self._snapshot.apply(commit)
            if commit.protocol is not None:
                guard(self._snapshot, self.reader.where)
        if self._files is not None:
            self._files.apply(commit)

    def _stale(self) -> bool:
        return self.runtime.monotonic() - self._head_seen > STALE_HEAD_SECONDS

    def _gone(self, version: int) -> bool:
        """Tell whether clean-up has passed the version that we took for the head."""
        if version > 0:
            return not self.store.exists(self.reader.key(version))
        return bool(self.store.list(self.reader.folder, after=self.reader.key(version + 1)))

    def _check_not_cleaned(self) -> None:
        """After a long pause, forget a snapshot whose successors may have been cleaned away."""
        known = self._snapshot
        if known is not None and self._stale() and self._gone(known.version):
            self._snapshot, self._files, self._base = None, None, -1

    def commit(self, decide: Decide) -> Snapshot:
        """Commit what ``decide`` says of the newest snapshot; return the snapshot afterwards.

        ``decide`` runs again after every lost race, on the winner's snapshot. What it raises,
        or its None, counts only on a snapshot that is the head's. Raises CommitUnknown when
        nobody can tell whether the commit landed, TooBusy after COMMIT_ATTEMPTS lost races.
        """
        self._guard.check()
        with self._lock:
            if self._snapshot is None:
                self._catch_up()
            for attempt in range(COMMIT_ATTEMPTS):
                body = self._decide(decide)
                if body is None:
                    assert self._snapshot is not None
                    return self._snapshot
                if self._send(body):
                    return self._after_commit()
                if attempt > 2:
                    self.runtime.sleep(self.runtime.random() * min(0.001 * attempt, 0.05))
            raise TooBusy(
                f"{self.reader.where}: {COMMIT_ATTEMPTS} races for the next version were lost; "
                "nothing was committed; try again."
            )

    def _decide(self, decide: Decide) -> Body | None:
        known = self._snapshot
        try:
            body = decide(known)
        except PravegaSparkError:
            self._catch_up()
            if self._snapshot is known:
                raise
        else:
            if body is not None:
                return body
            self._catch_up()
            if self._snapshot is known:
                return None
        return self._decide(decide)

    def _send(self, body: Body) -> bool:
        """Try to make ``body`` the next version; False if another's commit is there."""
        known = self._snapshot
        version = 0 if known is None else known.version + 1
        earliest = 0 if known is None else known.timestamp_ms + 1
        token = self.runtime.token()
        timestamp_ms = max(self.runtime.now_ms(), earliest)
        data = body.encode(token, timestamp_ms)
        late = known is not None and self._stale()
        crash_point("commit.before")
        landed = self._put(version, token, data)
        if landed and late and self._gone(version - 1):
            raise CommitUnknown(
                f"{self.reader.where}: version {version} was written after the log before it had "
                "been cleaned away; it does not count. Open the object anew."
            )
        if not landed:
            self._catch_up()
            return False
        self._apply(body.committed(version, token, timestamp_ms))
        self._settled = version
        self._head_seen = self.runtime.monotonic()
        return True

    def _put(self, version: int, token: str, data: bytes) -> bool:
        """Send the same bytes to N until N is settled; True if they are what it holds."""
        key = self.reader.key(version)
        deadline = self.runtime.monotonic() + COMMIT_DEADLINE_SECONDS
        pause, in_doubt = 0.005, False
        while True:
            try:
                if self.store.put_if_absent(key, data) is Put.CREATED:
                    crash_point("commit.applied")
                    return True
                in_doubt = True
                found = self.store.get(key)
                return parse_commit(version, found, self.reader.where, light=True).token == token
            except FileNotFoundError:
                pass
            except StoreError as error:
                if not in_doubt:
                    raise
                if self.runtime.monotonic() > deadline:
                    raise self._unknown(version) from error
            if self.runtime.monotonic() > deadline:
                raise self._unknown(version)
            self.runtime.sleep(pause)
            pause = min(pause * 2, 1.0)

    def _unknown(self, version: int) -> CommitUnknown:
        return CommitUnknown(
            f"{self.reader.where}: nobody can tell whether version {version} was committed "
            f"(no clear answer for {COMMIT_DEADLINE_SECONDS:.0f} s); staged files are kept. Open "
            "the object anew, which settles it, and go on from what it then reports."
        )

    def _after_commit(self) -> Snapshot:
        snapshot = self._snapshot
        assert snapshot is not None
        if self.maintain is not None and snapshot.version % STATE_FILE_COMMITS == 0:
            self.maintain(self, snapshot.version)
        return snapshot
