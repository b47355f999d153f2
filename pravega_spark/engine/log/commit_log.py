"""The only module that commits: one table's log, and the protocol of its commits.

**Resolve N before N+1.** The bytes and the token of an attempt at version N are fixed before it is
sent. Unless the store confirms the write, N itself is read. Our token means that we won. Another
token means that we lost: decide again, with a new body, at N+1. An absent N means: send the same
bytes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log import commit_logging
from pravega_spark.engine.log.actions import Body, parse_commit, request_body
from pravega_spark.engine.log.commit_clock import CommitClock
from pravega_spark.engine.log.create_once import create_once
from pravega_spark.engine.log.durable_version import DurableVersion
from pravega_spark.engine.log.file_index import FileIndex
from pravega_spark.engine.log.log_follower import LogFollower
from pravega_spark.engine.log.log_identity import LogIdentity
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime import SYSTEM, ProcessGuard, Runtime
from pravega_spark.engine.store import Store, ensure_probed
from pravega_spark.engine.store.root_marker import check_same
from pravega_spark.engine.tracing import span
from pravega_spark.errors import (
    CommitUnknown,
    PravegaSparkError,
    RootChanged,
    StoreError,
    TooBusy,
)
from pravega_spark.limits import (
    COMMIT_ATTEMPTS,
    REQUEST_AFTER,
    REQUEST_MOST_SECONDS,
    STATE_FILE_COMMITS,
)
from pravega_spark.process_locks import new_rlock

_Value = TypeVar("_Value")

REQUEST_ATTEMPTS = 32
"""How often a request is sent before its author races without one again."""

Proposal = tuple[Body | None, _Value]
"""What to commit (None: nothing), and a value for the caller."""

Decide = Callable[[Snapshot | None], Proposal[_Value]]
"""Propose a commit on the newest snapshot (None: no log). Called again after a lost race."""


@dataclass(frozen=True, slots=True)
class Committed(Generic[_Value]):
    """The snapshot after a commit, and the value of the proposal that was committed."""

    snapshot: Snapshot
    value: _Value


class Log:
    """One table's log in one process: thread-safe, one commit at a time."""

    def __init__(self, store: Store, path: str, runtime: Runtime = SYSTEM) -> None:
        """Name the table at ``path``; nothing is read yet."""
        self.store = store
        self.path = path
        self.runtime = runtime
        self.clock = CommitClock(store, runtime)
        self._guard = ProcessGuard(f"the log of {path}")
        self._lock = new_rlock()
        self._follower = LogFollower(store, path, runtime)
        self.reader = self._follower.reader
        self._identity = LogIdentity(self._follower)
        self.durable = DurableVersion(store, self.reader.folder, runtime)
        self.winner: bytes | None = None
        """The commit that was found where this process last tried to commit."""
        self._has_lost = False
        """Whether the last race was lost."""
        self.maintain: Callable[[Log, int], object] | None = None
        """Called after our commit of every STATE_FILE_COMMITS-th version."""

    # ----------------------------------------------------------------------------------- reading

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot known to this process; the log may have newer versions."""
        return self._follower.snapshot

    @property
    def held_bytes(self) -> int:
        """About how much memory the log takes in this process."""
        return self._follower.held_bytes

    @property
    def operation(self) -> str:
        """What the commit of the newest snapshot did; empty if this process read none yet."""
        return self._follower.operation

    def refresh(self, *, durable: bool = False, verifies: bool = False) -> Snapshot | None:
        """Return the newest snapshot, or None if there is no log.

        ``durable`` makes commits of other processes durable before it returns them. ``verifies``
        notices that a local log was lost or replaced, as after :meth:`watch_identity`.
        """
        self._guard.check()
        with self._lock:
            self._identity.check(always=verifies)
            self._catch_up()
            self._identity.remember(always=verifies)
            if durable:
                self.make_durable()
            return self._follower.snapshot

    def known_durable(self) -> Snapshot | None:
        """Return the known snapshot, made durable; None if there is no log.

        Costs no call, except for a snapshot that is not known to be durable or if none is known.
        """
        known = self._follower.snapshot
        if known is not None and self.durable.covers(known.version):
            return known
        with self._lock:
            if self._follower.snapshot is None:
                return self.refresh(durable=True)
            self.make_durable()
            return self._follower.snapshot

    def on_change(self, call: Callable[[], object]) -> None:
        """From now on, call this after each change of the snapshot; the log is locked then."""
        self._follower.on_change = call

    def proved_newest(self) -> Snapshot | None:
        """Return a snapshot that is proved to be the newest, durably; None if there is no log.

        Deletions are decided on it, so it relies on no listing: after all reads, the next version
        is requested by its name, and the commit of this version must still be ours. Raises TooBusy
        if other processes commit faster than this one can read.
        """
        self._guard.check()
        follower = self._follower
        with self._lock:
            for _ in range(COMMIT_ATTEMPTS):
                known = follower.snapshot
                follower.catch_up()
                if follower.snapshot is not known:
                    continue
                if known is None or follower.has_commit_of(known):
                    self.make_durable()
                    return known
                follower.forget()
            raise TooBusy(
                f"{self.reader.where}: the newest version could not be read in "
                f"{COMMIT_ATTEMPTS} attempts. Nothing was deleted. Try again."
            )

    def was_newest_since(self, elapsed: float) -> bool:
        """Return whether the snapshot was the newest at that time of the boot clock, or later."""
        return self._follower.was_newest_since(elapsed)

    def has_newer_version(self) -> bool:
        """Return whether the log has a version after the known snapshot; one storage call."""
        self.check_root()
        known = self._follower.snapshot
        return known is not None and self.reader.has(known.version + 1)

    def expect_files(self) -> None:
        """Read the files when the log is opened, so that :meth:`files` reads no commit again."""
        self._follower.expects_files = True

    @contextmanager
    def files(self) -> Iterator[FileIndex]:
        """Hold the index of live files as of ``snapshot``; needs a log."""
        self._guard.check()
        self.check_root()
        with self._lock:
            yield self._follower.files()

    def check_root(self) -> None:
        """Raise RootChanged if the root is not the one that this process opened first."""
        check_same(self.store)

    def watch_identity(self) -> None:
        """From now on, notice at each refresh and commit that a local log was lost or replaced."""
        self._identity.is_watched = True

    def is_lost(self) -> bool:
        """Return whether a local log that is watched was lost or replaced; one free call."""
        if self._identity.is_same():  # without the lock, which a commit may hold
            return False
        with self._lock:
            try:
                self._identity.check()
            except (RootChanged, StoreError):
                return True
            return False

    def _catch_up(self) -> None:
        self._follower.catch_up()
        self._identity.remember()

    def forget(self) -> None:
        """Open the log again at its next use, because what is stored of it looks wrong."""
        with self._lock:
            self._follower.forget()
            self.durable.forget()

    def make_durable(self) -> None:
        """Make the snapshot durable: its committer may not have an answer from the disk yet."""
        snapshot = self._follower.snapshot
        if snapshot is not None:
            self.durable.ensure(snapshot.version)

    # -------------------------------------------------------------------------------- committing

    def commit(self, decide: Decide[_Value], *, yields: bool = False) -> Committed[_Value]:
        """Commit what ``decide`` proposes on the newest snapshot; return the outcome.

        ``decide`` runs again after every lost race, on the winner's snapshot. An error or an empty
        proposal counts only if its snapshot was the newest at a moment of this call. A commit that
        lost a few races, or one whose decision took long, commits a request, after which others
        leave the next version to it: for twice as long as its longest attempt, and for twice as
        long again after each request that was not met. One that ``yields`` requests nothing. Raises
        CommitUnknown if the outcome stays unknown, and TooBusy after COMMIT_ATTEMPTS lost races.
        """
        request: str | None = None
        took = seconds = 0.0
        for lost in range(COMMIT_ATTEMPTS):
            is_slow = took > self._follower.request_seconds / 2
            if lost and not yields and (is_slow or lost % REQUEST_AFTER == 0):
                seconds = min(2 * max(took, seconds), REQUEST_MOST_SECONDS) if is_slow else 0.0
                request = self.request(seconds)
            elif lost > 2:
                self.runtime.sleep(self.runtime.random() * min(0.001 * lost, 0.05))
            self._leave_to_requester(request)  # here, since this wait is none of the attempt's time
            begun = self.runtime.monotonic()
            done = self.attempt(decide, request=request)
            if done is not None:
                return done
            took = max(took, self.runtime.monotonic() - begun)
        raise TooBusy(
            f"{self.reader.where}: {COMMIT_ATTEMPTS} races for the next version were lost. "
            "Nothing was committed. Try again."
        )

    def attempt(
        self, decide: Decide[_Value], *, request: str | None = None, needs_newest: bool = True
    ) -> Committed[_Value] | None:
        """Try to commit what ``decide`` proposes, once; return None if another commit was first.

        Without ``needs_newest`` an empty proposal counts on any snapshot, and after a lost race the
        snapshot is that of the winner; otherwise it is read on, while others may go on to commit.
        While another process's request is the newest commit, this call waits for its author, within
        a bound; ``request`` is the token of the caller's own one. Raises what :meth:`commit`
        raises, except TooBusy.
        """
        self._guard.check()
        self._leave_to_requester(request)
        follower = self._follower
        with self._lock:
            if follower.snapshot is None or follower.is_stale():
                self._catch_up()
            if follower.root is not None and not follower.root.is_proved:
                ensure_probed(self.store, self.runtime, refresh=False)
            self._identity.check()
            known, body, value = self._decide(decide, needs_newest=needs_newest)
            if body is None:
                assert known is not None
                self.make_durable()
                return Committed(known, value)
            if follower.snapshot is known and self._send(body, reads_on=needs_newest):
                return Committed(self._after_commit(), value)
            return None

    def read_next(self) -> bytes | None:
        """Apply the next version and return its commit; None if there is none. One storage call."""
        return self._read_on(self._follower.read_next)

    def read_ahead(self) -> int:
        """Apply the next version, on an object store the next few; return how many there were."""
        if self.store.is_local:
            return int(self.read_next() is not None)
        return self._read_on(self._follower.read_ahead)

    def _read_on(self, read: Callable[[], _Value]) -> _Value:
        self._guard.check()
        with self._lock:
            self._identity.check()
            found = read()
            if found:
                self._identity.remember()
            return found

    def _leave_to_requester(self, own: str | None) -> None:
        """Wait until a request of another process is met, or too old; never longer."""
        while (left := self._follower.left_to_requester(own)) > 0:
            self.runtime.sleep(left)
            self.read_next()

    def request(self, seconds: float = 0.0) -> str | None:
        """Commit a request for the next version and return its token; None if that failed.

        It asks others to wait for so long, or for the usual time. It needs no decision, so it is
        sent in the moment in which a winner's commit is read.
        """
        for _ in range(REQUEST_ATTEMPTS):
            self._leave_to_requester(None)
            for _ in range(2):  # most likely the winner of the next race is about to commit
                if self.read_ahead():
                    break
                self.runtime.sleep(0.001)
            with self._lock:
                if self._follower.snapshot is not None and self._send(request_body(seconds)):
                    return self._after_commit().token
        return None

    def _decide(
        self, decide: Decide[_Value], *, needs_newest: bool
    ) -> tuple[Snapshot | None, Body | None, _Value]:
        """Return the proposal, and the snapshot that it was made on.

        An error or an empty proposal counts if its snapshot was the newest at any moment of this
        call, so at most one is made again, however fast other processes commit.
        """
        follower = self._follower
        was_read = False
        while True:
            known = follower.snapshot
            try:
                body, value = decide(known)
                is_final = body is not None or not needs_newest
            except PravegaSparkError:
                if self._is_newest(known, was_read=was_read):
                    raise
            else:
                if is_final or self._is_newest(known, was_read=was_read):
                    return known, body, value
            was_read = True

    def _is_newest(self, known: Snapshot | None, *, was_read: bool) -> bool:
        """Return whether a snapshot is the newest, or was that in this call; else read on."""
        if not was_read:
            self._catch_up()
        return was_read or self._follower.snapshot is known

    def _send(self, body: Body, *, reads_on: bool = True) -> bool:
        """Try to commit ``body`` as the next version; return False if another commit is there."""
        follower, known = self._follower, self._follower.snapshot
        version = 0 if known is None else known.version + 1
        token = self.runtime.token()
        timestamp_ms, clock_ms = self.clock.next_ms(None if known is None else known.timestamp_ms)
        data = body.encode(token, timestamp_ms, clock_ms)
        sent_at = follower.clock_readings()
        failpoint("commit.before")
        check_same(self.store)
        self._identity.check()
        if follower.snapshot is not known:
            return False
        self.winner = None
        self.durable.sent(version)
        with span("commit", self.path, version=version, operation=body.operation):
            won = self._put(version, token, data, body.added_paths)
        if won and known is not None and follower.landed_late(known):
            self.forget()
            raise CommitUnknown(
                f"{self.reader.where}: version {version} was written after cleanup had deleted the "
                "versions before it, so it does not count. Open the object again.",
                version=version,
            )
        if not won:
            self.durable.sent(-1)
            commit_logging.report_lost_race(self.path)
            self._apply_winner(reads_on=reads_on)
            return False
        self._has_lost = False
        if self.maintain is not None and not self.store.is_local:
            self.reader.kept.keep_own(version, data)
        follower.advance(body.committed(version, token, timestamp_ms, clock_ms), sent_at)
        self._identity.remember()
        self.durable.reached(version)
        commit_logging.log_commit(self.reader.where, version, body, self.path)
        return True

    def _apply_winner(self, *, reads_on: bool) -> None:
        """Apply the commit of the winner, which was read already, and after it later ones.

        On an object store that costs a listing, so there it is done after a second lost race.
        """
        known, follower, winner = self._follower.snapshot, self._follower, self.winner
        if winner is None or known is None or not follower.accept(winner):
            self._catch_up()
            return
        self.reader.kept.keep(known.version + 1, winner)
        if reads_on and (self.store.is_local or self._has_lost):
            self._catch_up()
        else:
            self._identity.remember()
        self._has_lost = True

    def _put(self, version: int, token: str, data: bytes, staged: Sequence[str]) -> bool:
        """Send the same bytes to N until its outcome is known; return whether N holds them."""

        def is_ours(found: bytes) -> bool:
            self.winner = found
            return parse_commit(version, found, self.reader.where, light=True).token == token

        return create_once(
            self.store,
            self.runtime,
            self.reader.key(version),
            data,
            is_ours=is_ours,
            unknown=lambda: self._unknown(version),
            after=self.reader.key(version - 1) if version > 0 else None,
            staged=[f"{self.path}/{path}" for path in staged],
        )

    def _unknown(self, version: int) -> CommitUnknown:
        return CommitUnknown(
            f"{self.reader.where}: it is unknown whether version {version} was committed (no clear "
            "answer in time). Staged files are kept. Open the object "
            "again, which decides the outcome, and continue from what it reports.",
            version=version,
        )

    def _after_commit(self) -> Snapshot:
        snapshot = self._follower.snapshot
        assert snapshot is not None
        if self.maintain is not None and snapshot.version % STATE_FILE_COMMITS == 0:
            self.maintain(self, snapshot.version)
        return snapshot
