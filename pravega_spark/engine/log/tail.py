"""Waiting for the next commit of a log: all threads of a process that wait share their polls.

There is no thread for it. The first of the threads that wait for a log polls it for all, and when
it leaves, the next one goes on. So nothing polls while nobody waits, and nothing must be stopped or
collected. A commit of this process, and one that any of its threads has read, wakes those that
wait without a storage call.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.stored_state import state_version
from pravega_spark.engine.runtime.folder_watch import FolderWatch
from pravega_spark.engine.runtime.system import ProcessGuard, Runtime
from pravega_spark.errors import CorruptLog, RootChanged, StoreError
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import (
    POLL_GAP_FRACTION,
    POLL_IDLE_FRACTION,
    POLL_LOCAL_SECONDS,
    POLL_REMOTE_SECONDS,
    POLL_SPREAD_FRACTION,
    POLL_WATCHED_SECONDS,
)

_GAP_WEIGHT, _SPREAD_WEIGHT = 1 / 8, 1 / 4
"""Weights of the newest gap, as in TCP's estimate of a round trip (RFC 6298)."""
_SPREADS = 2.0
"""The next commit is expected within this many mean deviations of the mean gap."""


class ArrivalTimes:
    """The mean gap between commits, its mean deviation, and the pauses between polls that suit it.

    Regular commits are polled for often when one is due, and seldom before; irregular ones at
    equal pauses. A commit that is overdue is polled for less and less often. The number of polls
    in a gap of any length is bounded, up to where the longest pause is reached.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._last: float | None = None
        self._gap = self._spread = 0.0

    def arrived(self, now: float) -> None:
        """Record that a new commit was seen."""
        if self._last is not None:
            gap = now - self._last
            if not self._gap:
                self._gap, self._spread = gap, gap / 2
            else:
                self._spread += _SPREAD_WEIGHT * (abs(gap - self._gap) - self._spread)
                self._gap += _GAP_WEIGHT * (gap - self._gap)
        self._last = now

    def pause(self, now: float) -> float:
        """Return the seconds until the next poll, after one at ``now`` found nothing."""
        if self._last is None:
            self._last = now
        idle = now - self._last
        # Regular commits are met within the shortest pause, random ones within 1/16 of their gap,
        # and the looks in a gap are bounded however long it is (ADR 38).
        begin = self._gap - _SPREADS * self._spread
        end = self._gap + _SPREADS * self._spread
        if idle < begin:
            pause = min(self._gap * POLL_GAP_FRACTION, begin - idle)
        elif idle <= end:
            pause = self._spread * POLL_SPREAD_FRACTION
        else:
            pause = (idle - end) * POLL_IDLE_FRACTION
        return min(self._longest, max(self._shortest, pause))

    def watched_pause(self, now: float) -> float:
        """Return the seconds until the next poll where new commits are reported: a rare check."""
        if self._last is None:
            self._last = now
        shortest, longest = POLL_WATCHED_SECONDS
        return min(longest, max(shortest, (now - self._last) * POLL_IDLE_FRACTION))


_LOCAL = "file://"
_UNKNOWN = -1
"""The version of a log that must be opened again; its next poll does that."""
_WATCH_RETRY_SECONDS = 60.0
"""How long a folder that cannot be watched is polled alone."""
_REPORTING = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs"})
"""File systems of one machine, which report each new file; polls show whether others do."""
_BEHIND = 2
"""After this many polls in a row that found a commit, the log is read on to its newest version."""


class _TailWaiter:
    """A thread that waits for the commits of some logs."""

    __slots__ = ("error", "event")

    def __init__(self) -> None:
        self.event = threading.Event()
        self.error: Exception | None = None


class _WaitEntry(NamedTuple):
    """The version that a thread knows, and how often the log had been polled when it came."""

    version: int
    polls: int


class _Look(NamedTuple):
    """A poll that read the log to its end: its number, and when it began."""

    number: int
    began: float


class LogTail:
    """The threads of this process that wait for the next commit of a log."""

    def __init__(self, log: Log) -> None:
        """Take the log, which reports each change of its snapshot from now on."""
        self._log = log
        self._runtime = log.runtime
        self._is_local = log.store.is_local
        self._guard = ProcessGuard(f"the log of {log.path}")
        self._arrivals = ArrivalTimes(
            *(POLL_LOCAL_SECONDS if self._is_local else POLL_REMOTE_SECONDS)
        )
        self._lock = new_lock()
        self._waiters: dict[_TailWaiter, _WaitEntry] = {}
        """In the order in which they came; the first one polls."""
        self._due = 0.0
        self._polls = self._hits = 0
        """Polls that began; how many in a row found a commit."""
        self._looked = _Look(0, -math.inf)
        """The last poll that has shown that it knows all commits."""
        self._watch: FolderWatch | None = None
        self._watch_due = 0.0
        self._is_reported = self._trusts_reports = False
        """Whether the folder has changed since the last poll, and whether polls may be rare."""
        log.on_change(self._wake)

    @property
    def is_local(self) -> bool:
        """Whether a poll costs microseconds."""
        return self._is_local

    @property
    def version(self) -> int:
        """The newest version that this process knows; -1 if it knows none, or forgot it."""
        snapshot = self._log.snapshot
        return _UNKNOWN if snapshot is None else snapshot.version

    @property
    def is_awaited(self) -> bool:
        """Whether a thread of this process waits for the next commit."""
        return bool(self._waiters)

    def join(self, waiter: _TailWaiter, version: int) -> None:
        """Let a thread wait for another version than the one that it knows."""
        self._guard.check()
        with self._lock:
            if self._is_local and not self._waiters:
                self._due = 0.0
            self._waiters[waiter] = _WaitEntry(version, self._polls)

    def leave(self, waiter: _TailWaiter) -> None:
        """End the wait of a thread; the next one polls in its place."""
        if self._guard.is_forked:
            return
        with self._lock:
            self._waiters.pop(waiter, None)
            if self._waiters:
                next(iter(self._waiters)).event.set()

    def _wake(self) -> None:
        """Wake all that wait for another version; the log calls this when its snapshot changed."""
        if not self._waiters:
            return
        version = self.version
        with self._lock:
            self._arrivals.arrived(self._runtime.monotonic())
            for waiter, entry in self._waiters.items():
                if entry.version != version:
                    waiter.event.set()

    def due_for(self, waiter: _TailWaiter) -> float:
        """Return when this thread must poll; infinity if another one polls."""
        with self._lock:
            return self._due if next(iter(self._waiters)) is waiter else math.inf

    def prepare_to_wait(self) -> bool:
        """Have the file system report new commits; return whether to poll once more before that.

        Without a watch that is tried again after a while.
        """
        if not self._is_local or (self._watch is not None and self._watch.is_live):
            return False
        now = self._runtime.monotonic()
        with self._lock:
            if now < self._watch_due:
                return False
            self._watch_due = now + _WATCH_RETRY_SECONDS
            url = self._log.store.url
            if not url.startswith(_LOCAL):
                return False
            folder = f"{url.removeprefix(_LOCAL)}/{self._log.reader.folder}"
            self._watch = self._runtime.watch_folder(folder, self._report, self._waiters.__len__)
            if self._watch is None:
                return False
            self._due = 0.0
            self._trusts_reports |= self._log.store.storage.partition(" ")[0] in _REPORTING
            return True

    def _report(self) -> None:
        """Have the log polled now: its folder has changed.

        The wait for the disk begins at once, since a reported commit is visible.
        """
        # It overlaps with reading and decoding: 2.0 to 2.3 ms from the writer's link to the event,
        # where 2.4 to 5.9 passed before (ADR 38).
        watch = self._watch
        if watch is not None and self._waiters:
            self._log.durable.begin(max(map(state_version, watch.names), default=_UNKNOWN))
        with self._lock:
            self._is_reported, self._trusts_reports, self._due = True, True, 0.0
            if self._waiters:
                next(iter(self._waiters)).event.set()

    def is_due(self, waiter: _TailWaiter, now: float) -> bool:
        """Return whether this thread must poll."""
        return self.due_for(waiter) <= now

    def is_due_at_last(self, waiter: _TailWaiter, deadline: float) -> bool:
        """Return whether a commit before the deadline, or before the thread came, may be unread."""
        with self._lock:
            look = self._looked
            return look.number <= self._waiters[waiter].polls or look.began < deadline

    def poll(self) -> None:
        """Look for the next commit, once; an error reaches all that wait."""
        with self._lock:
            self._polls += 1
            look = _Look(self._polls, self._runtime.monotonic())
            was_reported, self._is_reported = self._is_reported, False
        known, is_at_end = self.version, False
        try:
            is_at_end = self._read()
        except Exception as error:
            with self._lock:
                for waiter in self._waiters:
                    waiter.error = copy.copy(error)
                    waiter.event.set()
            if isinstance(error, (CorruptLog, RootChanged)):
                self._log.forget()  # later calls learn what is stored now
        is_new = self.version != known
        self._hits = self._hits + 1 if is_new else 0
        now = self._runtime.monotonic()
        with self._lock:
            if is_at_end:
                self._looked = max(self._looked, look)
            if self._is_reported:
                return
            if is_new and not was_reported:
                self._trusts_reports = False  # until the next one: it may be on its way
            is_watched = self._watch is not None and self._watch.is_live and self._trusts_reports
            pause = self._arrivals.watched_pause if is_watched else self._arrivals.pause
            self._due = now + pause(now)

    def _read(self) -> bool:
        """Read the next commit by one call; several where a call is cheap, or many are behind.

        Returns whether the log was read to its end.
        """
        if self._is_local:
            self._read_on_disk()
        elif self._hits >= _BEHIND:  # one listing finds all, where each GET finds one
            self._log.refresh()
        else:
            return self._log.read_next() is None
        return True

    def _read_on_disk(self) -> None:
        """Read all commits; notice that the log is gone, which looks like one that stays as it is.

        The wait for the disk begins; those that wait end it before they hand out anything. Raises
        RootChanged if the log was replaced.
        """
        try:
            snapshot = self._log.refresh(verifies=True)
            if snapshot is not None:
                self._log.durable.begin(snapshot.version)
        except StoreError as error:
            reader, version = self._log.reader, self.version
            if version < 0 or reader.has(version):
                raise
            raise CorruptLog(
                f"{reader.where}: version {version} of the log, which this process has read, does "
                "not exist any more: its folder was removed or moved. Restore it from a copy.",
                path=reader.where,
                version=version,
            ) from error


def wait_for_commits(
    runtime: Runtime,
    known: Sequence[tuple[LogTail, int]],
    deadline: float | None,
    *,
    interrupt: Future[Any] | None = None,
    interrupt_at: float = math.inf,
) -> bool:
    """Wait until one of the logs has another version than the known one.

    Returns False at the ``deadline``, by the runtime's clock, if no log had another version then or
    at the call. Returns True earlier if ``interrupt`` is done, or at the time ``interrupt_at``.
    Raises what a poll raises, in each of the threads that wait for that log.
    """
    waiter = _TailWaiter()
    tails = [tail for tail, _ in known]
    try:
        for tail, version in known:
            tail.join(waiter, version)
        if interrupt is not None:
            interrupt.add_done_callback(lambda _: waiter.event.set())
        while True:
            waiter.event.clear()
            if waiter.error is not None:
                raise waiter.error
            if any(tail.version not in (version, _UNKNOWN) for tail, version in known):
                return True
            now = runtime.monotonic()
            is_over = deadline is not None and now >= deadline
            if not is_over and (
                now >= interrupt_at or (interrupt is not None and interrupt.done())
            ):
                return True
            if is_over and deadline is not None:
                due = [tail for tail in tails if tail.is_due_at_last(waiter, deadline)]
            else:
                due = [tail for tail in tails if tail.is_due(waiter, now)]
            if due:
                _poll(runtime, due)
            elif is_over:
                return False
            elif not [tail for tail in tails if tail.prepare_to_wait()]:
                at = min((tail.due_for(waiter) for tail in tails), default=math.inf)
                at = min(at, interrupt_at, math.inf if deadline is None else deadline)
                runtime.wait(waiter.event, None if at == math.inf else at - now)
    finally:
        for tail in tails:
            tail.leave(waiter)


def _poll(runtime: Runtime, tails: Sequence[LogTail]) -> None:
    """Poll logs; where a call takes long, at the same time."""
    if all(tail.is_local for tail in tails):
        for tail in tails:
            tail.poll()
    else:
        runtime.each(LogTail.poll, tails)
