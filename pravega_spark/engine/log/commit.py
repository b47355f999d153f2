"""The only module that commits: one table's log, and the protocol of its commits.

**Resolve N before N+1.** The bytes and the token of an attempt at version N are fixed before it is
sent. Unless the store confirms the write, N itself is read. Our token means that we won. Another
token means that we lost: decide again, with a new body, at N+1. An absent N means: send the same
bytes again. ``create_once`` does this for any object that several processes may create at once.

**When a version is durable.** Another process's commit is visible before its author has an answer
from the disk. Who acts on it makes the log's folder durable first (``DurableVersion``). A reader at
the tail does not wait for that idly: the wait begins when the commit is seen, and ends before the
first event of it is handed out.

**The time of a commit** (``CommitClock``) is this host's, or the storage's where the two are far
apart. It is always above the time of the commit before, even if a clock goes back. No single clock
is trusted (ADR 14). Decisions by age use another time: see ``clock``.

**The line of a commit** in the log of this process (``log_commit``) holds the same facts as the
table's history: operation, table, version, and the operation's parameters, which name the cause.
Routine commits of writers and readers are logged at DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pravega_spark.engine.kinds import KINDS
from pravega_spark.engine.log.actions import RESTORE, Body, Commit, parse_commit, request_body
from pravega_spark.engine.log.clock import length_text
from pravega_spark.engine.log.files import FileIndex
from pravega_spark.engine.log.follow import LogFollower, LogIdentity
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.observers import observers
from pravega_spark.engine.runtime.system import SYSTEM, ProcessGuard, Runtime
from pravega_spark.engine.runtime.tracing import span
from pravega_spark.engine.store import PutOutcome, Store, ensure_probed
from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.root_marker import check_same
from pravega_spark.errors import (
    CommitUnknown,
    CorruptLog,
    PravegaSparkError,
    RootChanged,
    StoreError,
    StoreUnavailable,
    TooBusy,
    without_credentials,
)
from pravega_spark.primitives.process_locks import new_lock, new_rlock
from pravega_spark.values.limits import (
    CLOCK_SKEW_MS,
    COMMIT_ATTEMPTS,
    COMMIT_DEADLINE_SECONDS,
    REQUEST_AFTER,
    REQUEST_MOST_SECONDS,
    STATE_FILE_COMMITS,
)


def create_once(
    store: Store,
    runtime: Runtime,
    key: str,
    data: bytes,
    *,
    is_ours: Callable[[bytes], bool],
    unknown: Callable[[], CommitUnknown],
    after: str | None = None,
    staged: Sequence[str] = (),
) -> bool:
    """Create the object; return True if it holds ``data``, durably, and False if it holds other.

    ``after`` is the object that this one follows, and ``staged`` are those that it names, as for
    ``put_if_absent``. Raises the error that
    ``unknown`` returns if the outcome stays unknown for COMMIT_DEADLINE_SECONDS, longer by the time
    for which the store repeats its calls, or if it has repeated a read in vain; and StoreError if
    the storage refused the first attempt.
    """
    folder = key.rpartition("/")[0]
    deadline = runtime.monotonic() + COMMIT_DEADLINE_SECONDS + store.retry_seconds
    pause, is_unknown = 0.005, False
    while True:
        try:
            if store.put_if_absent(key, data, after=after, staged=staged) is PutOutcome.CREATED:
                failpoint("commit.applied")
                _check_root(store, unknown)
                return True
            # The bytes may land yet. Nothing else is sent under this name, and nothing under the
            # next one, until it is known whose bytes are here.
            is_unknown = True
            if not is_ours(store.get(key)):
                return False
            store.make_durable(folder)  # the lost answer did not confirm that it is durable
            _check_root(store, unknown)
            return True
        except FileNotFoundError:
            pass
        except StoreError as error:
            if not is_unknown:
                raise
            is_in_vain = isinstance(error, StoreUnavailable) and store.retry_seconds > 0
            if is_in_vain or runtime.monotonic() > deadline:
                raise _caused(unknown(), error) from error
        if runtime.monotonic() > deadline:
            raise unknown()
        runtime.sleep(pause * (0.5 + runtime.random()))  # so that many processes spread out
        pause = min(pause * 2, 1.0)


def create_object(store: Store, runtime: Runtime, key: str, data: bytes) -> bool:
    """Create an object other than a commit, as :func:`create_once` does; its bytes are its token.

    Bytes that others may write as well count as ours. Raises CommitUnknown and StoreError.
    """

    def unknown() -> CommitUnknown:
        return CommitUnknown(
            f"{store.url}: it is unknown whether {key} was created (no clear answer in time). "
            "Repeat the call, which finds out."
        )

    return create_once(store, runtime, key, data, is_ours=data.__eq__, unknown=unknown)


def _check_root(store: Store, unknown: Callable[[], CommitUnknown]) -> None:
    """Raise the error if the object may lie in another root, which replaced the store's just now.

    On a local disk this costs one system call; elsewhere nothing is checked.
    """
    try:
        check_same(store)
    except (RootChanged, StoreError) as error:
        raise _caused(unknown(), error) from error


def _caused(failure: CommitUnknown, error: PravegaSparkError) -> CommitUnknown:
    """Return the failure with the last error of the storage in its message."""
    failure.message = f"{failure.message} The last answer was: {error}"
    failure.__post_init__()
    return failure


class _Wait(NamedTuple):
    """A wait for the disk that began when a version was visible, so it covers that version."""

    version: int
    done: Future[None]


class DurableVersion:
    """The newest durable version of one log in one process; thread-safe."""

    def __init__(self, store: Store, folder: str, runtime: Runtime) -> None:
        """Name the log's folder; no version is known to be durable."""
        self._store = store
        self._folder = folder
        self._runtime = runtime
        self._lock, self._syncing = new_lock(), new_lock()
        self._version = self._sent = -1
        """The newest durable version, and the last one that this process sent."""
        self._wait: _Wait | None = None

    def covers(self, version: int) -> bool:
        """Return whether a version is durable; costs no call."""
        return version <= self._version

    def reached(self, version: int) -> None:
        """Note that a version is durable, by the answer of the storage."""
        self._version = max(self._version, version)

    def forget(self) -> None:
        """Know nothing: the log is not the one that it was."""
        with self._lock:
            self._version, self._wait = -1, None

    def sent(self, version: int) -> None:
        """Note that this process commits a version: the answer says whether it is durable."""
        self._sent = version

    def begin(self, version: int) -> None:
        """Begin to make a version durable, which the caller has seen; an error is kept.

        Nothing begins while another such wait is under way: on a busy log one at a time is enough.
        Call :meth:`ensure` before anything is done that a power cut must not undo.
        """
        if self.covers(version) or version == self._sent:
            return
        with self._lock:
            if self._wait is None or (self._wait.version < version and self._wait.done.done()):
                self._wait = _Wait(version, self._runtime.start(self._sync))

    def ensure(self, version: int) -> None:
        """Return when a version is durable, which the caller has seen; raise StoreError if not."""
        if self.covers(version):
            return
        wait = self._wait
        if wait is not None and wait.version >= version:
            try:
                wait.done.result()
            except BaseException:
                with self._lock:
                    if self._wait is wait:
                        self._wait = None  # the next call asks the storage again
                raise
            self.reached(wait.version)
            return
        with self._syncing:
            if not self.covers(version):
                self._sync()
                self.reached(version)

    def _sync(self) -> None:
        self._store.make_durable(self._folder)


logger = own_logger(__name__)

_warned: set[str] = set()
"""Roots for which this process warned that the host's clock is far from the storage's."""


class CommitClock:
    """The clock of one table's commits."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    def now_ms(self) -> int:
        """Return the time in ms since 1970, without a call unless a clock of this host stepped."""
        wall_ms = self._runtime.now_ms()
        storage_ms = self._storage_ms(wall_ms)
        if storage_ms is None or abs(wall_ms - storage_ms) <= CLOCK_SKEW_MS:
            return wall_ms
        if self._store.url not in _warned:
            _warned.add(self._store.url)
            logger.warning(
                "the clock of this host is %s %s that of %s; commits carry the storage's time. Set "
                "the host's clock.",
                length_text(wall_ms - storage_ms),
                "ahead of" if wall_ms > storage_ms else "behind",
                without_credentials(self._store.url),
                extra=log_fields("read clock", root=without_credentials(self._store.url)),
            )
        return storage_ms

    def next_ms(self, previous_ms: int | None) -> tuple[int, int]:
        """Return the time of the next commit, above the previous one's, and this clock's time."""
        clock_ms = self.now_ms()
        return clock_ms if previous_ms is None else max(clock_ms, previous_ms + 1), clock_ms

    def _storage_ms(self, wall_ms: int) -> int | None:
        """Return the storage's time: the date of its newest answer and the time since then."""
        dated = self._store.response_date
        if dated is None:
            return None
        passed_ms = int((self._runtime.monotonic() - dated.elapsed) * 1_000)
        if abs(wall_ms - dated.wall_ms - passed_ms) <= CLOCK_SKEW_MS:
            return dated.storage_ms + passed_ms
        return self._store.time_ms()


INFO_OPERATIONS: Final = frozenset(
    {
        "CREATE SCOPE",
        "FENCE SCOPE",
        "DELETE SCOPE",
        "CREATE STREAM",
        "DRAW LIFE",
        "UPDATE STREAM",
        "BEGIN SEAL STREAM",
        "SEAL STREAM",
        "DELETE STREAM",
        "SCALE STREAM",
        "FENCE STREAM",
        "SET SETTINGS",
        "TRUNCATE STREAM",
        "SAMPLE",
        "SWEEP",
        "PIN",
        "UNPIN",
        "BACKUP",
        RESTORE,
        "OPEN WRITER",
        "ABORT TRANSACTION",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
    }
).union(*(kind.operations for kind in KINDS.values()))
"""The operations that are logged at INFO."""
VALUE_LENGTH = 200
"""Longer parameters, such as a cut of many segments, are truncated to this length."""


def report_lost_race(path: str) -> None:
    """Report to observers that another process committed first to the table at a path."""
    for observer in observers:
        observer.race_lost(path)


def log_commit(where: str, version: int, body: Body, path: str) -> None:
    """Log and report a commit of this process; ``path`` is that of the table below the root."""
    for observer in observers:
        observer.committed(path, body.operation)
    operations = body.operation.split(", ")  # of changes that share a commit
    level = logging.DEBUG if INFO_OPERATIONS.isdisjoint(operations) else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields = {**body.parameters, **body.metrics}
    if body.removes and not body.adds:  # with adds, the commit replaces rows of a state table
        fields["removedBytes"] = body.removed_bytes
    parts = [f"{name}={short(value)}" for name, value in fields.items() if value not in _EMPTY]
    details = f": {', '.join(parts)}" if parts else ""
    logger.log(
        level,
        "%s of %s, version %d%s",
        body.operation,
        where,
        version,
        details,
        extra=log_fields(body.operation, path, version, parameters=fields),
    )


_EMPTY: Final[tuple[object, ...]] = (None, "", [], {}, 0)


def short(value: Any) -> str:
    """Return a value as text, truncated to VALUE_LENGTH."""
    text = value if isinstance(value, str) else to_json(value)
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}..."


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
        """From now on, also call this after each change of the snapshot; the log is locked then."""
        self._follower.on_change = (*self._follower.on_change, call)

    def on_commit(self, call: Callable[[Commit], object]) -> None:
        """From now on, also call this with each commit that is applied; the log is locked then.

        A commit comes again if the log is opened again, and none that a stored state covers comes.
        """
        self._follower.on_commit = (*self._follower.on_commit, call)

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

        It asks others to wait for ``seconds``, or for the usual time. It needs no decision, so it
        is sent in the moment in which a winner's commit is read.
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
        if follower.snapshot is not known:  # the check has read on: the decision is out of date
            return False
        self.winner = None
        self.durable.sent(version)  # before the put: no report of our own file begins a second wait
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
            report_lost_race(self.path)
            self._apply_winner(reads_on=reads_on)
            return False
        self._has_lost = False
        if self.maintain is not None and not self.store.is_local:
            self.reader.kept.keep_own(version, data)
        follower.advance(body.committed(version, token, timestamp_ms, clock_ms), sent_at)
        self._identity.remember()
        self.durable.reached(version)
        log_commit(self.reader.where, version, body, self.path)
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

        # The store makes the staged files durable before this commit has its name, so no crash
        # leaves a commit whose chunk is lost; all these fsyncs overlap (ADR 34). That the version
        # before it exists shows, for free, that nobody has put another folder in this place.
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


def check_not_lost(
    log: Log,
    folder: str,
    what: str,
    advice: str,
    *,
    counts: Callable[[Entry], bool] = lambda entry: True,
    stream: str | None = None,
) -> None:
    """Raise CorruptLog if a table without a log has other objects: it had a log before.

    ``folder`` belongs to the table alone. ``counts`` excludes objects that a creation puts before
    its first commit. A file in place of the folder counts. The listing is for a table that was
    found without a log; it costs too much on any other path.
    """
    left = [entry.key for entry in log.store.list(folder) if counts(entry)]
    is_hidden = folder.rpartition("/")[2].startswith(".")  # no object has such a name
    if not is_hidden and log.store.exists(folder):
        left.append(folder)
    if not left or log.refresh() is not None:  # created while we listed
        return
    where = log.reader.where
    raise CorruptLog(
        f"{where}: {what} has lost its log: {left[0]} exists, and no commit does. Nothing was "
        f"changed. {advice}",
        stream=stream,
        path=where,
        version=0,
    )
