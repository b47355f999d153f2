"""One wake-up of a process that maintains its root: look what is due, and do a share of it.

A run over all streams is done in shares of bounded time, by any of the processes: the record holds
the stream after which the next share continues. A stream that fails is recorded, and its turn comes
again with the next run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import is_away, read_root
from pravega_spark.engine.tables.claim_keeper import ClaimKeeper
from pravega_spark.engine.tables.maintenance_entry import (
    Entries,
    RunProgress,
    entry_of,
    intervals_ms,
    overlapping,
)
from pravega_spark.engine.tables.maintenance_table import (
    ClaimedWork,
    blocking_claim,
    open_maintenance,
)
from pravega_spark.engine.tables.settings_table import open_settings
from pravega_spark.errors import NoSuchStream, RootChanged, StoreReadOnly, StoreRefused
from pravega_spark.limits import (
    AUTO_SETTINGS_SECONDS,
    AUTO_SHARE_FRACTION,
    AUTO_SHARE_SECONDS,
    AUTO_SHARE_STREAMS,
    AUTO_SLACK,
    AUTO_WAKE_SECONDS,
)
from pravega_spark.maintenance.stream_maintenance import RootStreams, is_stream
from pravega_spark.model import MaintenanceKind
from pravega_spark.root_settings import AUTO, decide_settings

logger = own_logger(__name__)

ENDS = (RootChanged, StoreReadOnly, StoreRefused)
"""Errors after which this process does not maintain the root any more."""
_MAX_WARNINGS = 256


@dataclass(frozen=True, slots=True)
class SharePace:
    """How much one wake-up does, and how far apart the wake-ups are."""

    streams: int = AUTO_SHARE_STREAMS
    seconds: float = AUTO_SHARE_SECONDS
    fraction: float = AUTO_SHARE_FRACTION
    wake_seconds: float = AUTO_WAKE_SECONDS


PACE: Final = SharePace()


class MaintenanceShares:
    """The shares that one process does of its root's maintenance; used by one thread."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        pace: SharePace = PACE,
        is_ended: Callable[[], bool] = lambda: False,
        is_asked: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take a root; nothing is read yet. A share ends early once ``is_ended``.

        Unless ``is_asked``, a share is done only while the root's setting ``maintain`` is "auto".
        """
        self._store = store
        self._runtime = runtime
        self._pace = pace
        self._is_ended = is_ended
        self._is_asked = is_asked
        self._record = open_maintenance(store, runtime)
        self._streams = RootStreams(store, runtime)
        self._intervals_ms: dict[MaintenanceKind, int] = {}
        self._is_auto = False
        self._settings_at = 0.0
        self._progress = RunProgress(0)
        """Of the share that is being done."""
        self._next = 0
        """Which kind is looked at first: the one after the last that was done."""
        self._warned: set[tuple[str, ...]] = set()
        self._failures = 0

    def pause(self, seconds: float | None = None) -> float:
        """Return the seconds until the next wake-up: about as given, by default until it is usual.

        They are drawn at random, so that processes that started together do not stay together.
        """
        around = self._pace.wake_seconds if seconds is None else seconds
        return around * (0.5 + self._runtime.random())

    def wake_up(self) -> float:
        """Do one share if any kind is due; return the seconds until the next wake-up.

        Raises one of ENDS if this process cannot maintain the root, and no other error.
        """
        began = self._runtime.monotonic()
        try:
            worked = self._work()
        except RootChanged as error:
            if not is_away(self._store):
                raise
            self.warn(("away",), "maintenance continues when the root is back: %s", error)
            return self.pause()
        except ENDS:
            raise
        except Exception as error:
            self._failures = min(self._failures + 1, 6)
            self.warn(("wake-up", type(error).__name__), "maintenance of %s failed", error)
            return self.pause(self._pace.wake_seconds * 2**self._failures)
        self._failures = 0
        if not worked:
            return self.pause()
        took = self._runtime.monotonic() - began
        # The rest of this process's time is the application's.
        return self.pause(max(took / self._pace.fraction, self._pace.wake_seconds / 15))

    def _work(self) -> bool:
        if read_root(self._store) is None:  # no scope was created yet
            return False
        entries, now_ms = self._record.entries(heal=True), self._record.about_now_ms()
        self._read_settings(AUTO_SETTINGS_SECONDS)
        kinds = tuple(MaintenanceKind)
        due = [
            kind
            for kind in (*kinds[self._next :], *kinds[: self._next])
            if blocking_claim(entries, kind, (None,), now_ms) is None
            and self._is_wanted(kind, entries, now_ms)
        ]
        if not due or not self._may_work():
            return False
        for kind in due:
            wanted = partial(self._is_wanted, kind)
            work = self._record.claim(kind, (None,), AUTO, wanted)
            if work is not None:
                self._next = (kinds.index(kind) + 1) % len(kinds)
                self._share(work)
                return True
        return False

    def _may_work(self) -> bool:
        """Return whether a user or the root's present setting asks for work that is due."""
        self._read_settings(0.0)
        return self._is_auto or self._is_asked()

    def _read_settings(self, seconds: float) -> None:
        """Read the settings of the root, unless they were read in the last seconds."""
        now = self._runtime.monotonic()
        if not self._intervals_ms or now - self._settings_at >= seconds:
            settings = decide_settings(open_settings(self._store, self._runtime).read())
            self._intervals_ms, self._is_auto = intervals_ms(settings), settings.maintain == AUTO
            self._settings_at = now

    def _is_wanted(self, kind: MaintenanceKind, entries: Entries, now_ms: int) -> bool:
        """Return whether a run is to begin or to continue; a job that keeps up leaves nothing."""
        return entry_of(entries, kind).is_due(now_ms, self._due_ms(kind))

    def _due_ms(self, kind: MaintenanceKind) -> int:
        return int(self._intervals_ms[kind] * AUTO_SLACK)

    def _share(self, work: ClaimedWork) -> None:
        """Do a share of claimed work, and record how far it came."""
        keeper = ClaimKeeper(self._record, work)
        keeper.start()
        self._progress = work.progress or RunProgress(work.claim.at_ms)
        has_finished = False
        try:
            has_finished = self._visit(work.kind, keeper)
        finally:
            keeper.end()
            if has_finished:
                self._record.finish_shares(work, self._progress)
            else:
                self._record.release(work, self._progress)

    def _visit(self, kind: MaintenanceKind, keeper: ClaimKeeper) -> bool:
        """Maintain the next streams; return whether these were the last ones.

        Idle streams cost one call each, so only the others count.
        """
        until, worked = self._runtime.monotonic() + self._pace.seconds, 0
        self._streams.prepare(kind, is_first=not self._progress.after)
        following = self._streams.after(self._progress.after, self._maintained_scopes(kind))
        try:
            for name, problem in following:
                is_over = is_stream(name) and worked >= self._pace.streams
                is_over = is_over or self._runtime.monotonic() >= until
                if is_over or keeper.is_lost or self._is_ended():
                    return False
                if problem is None:
                    self._maintain(kind, name)
                    worked += is_stream(name) and not self._streams.was_idle
                else:
                    self._fail(kind, name, 0, f"scope {name.partition('/')[0]}", problem)
        finally:
            self._streams.finish()
        return True

    def _maintain(self, kind: MaintenanceKind, name: str) -> None:
        streams = int(is_stream(name))
        try:
            failures = self._streams.maintain(kind, name)
        except NoSuchStream:  # deleted since it was listed
            self._progress = self._progress.add(name, 0, {})
        except Exception as error:
            may_not_delete = kind is MaintenanceKind.SWEEPING and not isinstance(error, RootChanged)
            if isinstance(error, ENDS) and not may_not_delete:
                raise
            self._fail(kind, name, streams, f"stream {name}", error)
        else:
            self._progress = self._progress.add(name, streams, failures or {})

    def _fail(
        self, kind: MaintenanceKind, name: str, streams: int, what: str, error: Exception
    ) -> None:
        """Record a failure; the next run tries again."""
        failure = f"{type(error).__name__}: {error}"
        self._progress = self._progress.add(name, streams, {what: failure})
        cause = kind.value, name, type(error).__name__
        self.warn(cause, f"{kind.value} of {what} in %s failed", error)

    def _maintained_scopes(self, kind: MaintenanceKind) -> set[str | None]:
        """Return the scopes that a job of their own maintains."""
        now_ms, due_ms = self._record.about_now_ms(), self._due_ms(kind)
        found = overlapping(self._record.entries(), kind, (None,))
        return {e.scope for e in found if e.scope is not None and not e.is_due(now_ms, due_ms)}

    def warn(self, cause: tuple[str, ...], message: str, error: BaseException) -> None:
        """Log a warning, once for each cause."""
        if cause not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(cause)
            logger.warning(
                f"{message}: %s",
                self._store.url,
                error,
                extra=log_fields("maintain", root=self._store.url),
            )
