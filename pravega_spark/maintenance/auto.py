"""Maintenance of a root while this process has something of it open: ``maintain="auto"``.

A run over all streams is done in shares of bounded time, by any of the processes: the record holds
the stream after which the next share continues. A stream that fails is recorded, and its turn comes
again with the next run.

The thread that maintains a root while this process has something of it open. There is at most one
for each root, however many writers and readers are open. It knows them only weakly, and ends when
the last of them was closed or collected, when the process ends, and when the root was replaced or
cannot be written. Users that were opened by the root's setting count only while the setting is
"auto": each wake-up decides on the present one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import thread as pools
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import AUTO, decide_settings
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.due_hints import DueHints, basis_of
from pravega_spark.engine.state.maintenance_table import (
    ClaimedWork,
    ClaimKeeper,
    Entries,
    RunProgress,
    blocking_claim,
    entry_of,
    intervals_ms,
    open_maintenance,
    overlapping,
)
from pravega_spark.engine.state.scopes import log_names, open_scope
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import is_away, read_root, scope_folders
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import (
    Damaged,
    NoSuchScope,
    NoSuchStream,
    PravegaSparkError,
    RootChanged,
    StoreReadOnly,
    StoreRefused,
)
from pravega_spark.maintenance import work as maintenance_work
from pravega_spark.maintenance.work import RoundTask, WorkOptions, do_task, do_work, stream_hints
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.reader_groups.repair import repair_changing_groups
from pravega_spark.values.limits import (
    AUTO_EXIT_SECONDS,
    AUTO_FIRST_SECONDS,
    AUTO_SETTINGS_SECONDS,
    AUTO_SHARE_FRACTION,
    AUTO_SHARE_SECONDS,
    AUTO_SHARE_STREAMS,
    AUTO_SLACK,
    AUTO_WAKE_SECONDS,
)

_LAST: Final = "~"
"""After all names: no name has this character, and those that names have are before it."""


class RootStreams:
    """The streams of a root in the order of scope and name; keeps what it has read."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Name the root; reads nothing yet."""
        self._store = store
        self._runtime = runtime
        self._options = WorkOptions()
        """With the settings of the root, as read for the present share."""
        self._hints: dict[str, DueHints] = {}
        """Of the scopes that the present share has visited."""
        self.was_idle = False
        """Whether the stream that was visited last needed no work."""

    def open(self, name: str) -> StreamLog:
        """Return a stream by its name."""
        return open_stream(self._store, name, self._runtime)

    def after(
        self, name: str, without: Collection[str | None] = ()
    ) -> Iterator[tuple[str, PravegaSparkError | None]]:
        """Yield the names of all streams after a name; "" is before the first one.

        Scopes in ``without`` are left out. A scope is read when its first stream is asked for. It
        is one more name, behind all of its streams; with the error if its index cannot be
        read.
        """
        scope, _, stream = name.partition("/")
        found = scope_folders(self._store)
        for following in sorted(s for s in found if s >= scope and s not in without):
            if (following, _LAST) == (scope, stream):
                continue
            try:
                names = self._names(following)
            except Damaged as error:
                yield f"{following}/{_LAST}", error
                continue
            for short in names:
                if (following, short) > (scope, stream):
                    yield f"{following}/{short}", None
            yield f"{following}/{_LAST}", None

    def _names(self, scope: str) -> list[str]:
        with contextlib.suppress(NoSuchScope):  # deleted since it was listed
            return sorted(log_names(open_scope(self._store, scope, self._runtime)))
        return []

    def prepare(self, kind: MaintenanceKind, *, is_first: bool) -> None:
        """Do what a share of a run of that kind does before its streams; more before the first."""
        self._options = WorkOptions(open_settings(self._store, self._runtime).read())
        self._hints.clear()
        if kind is MaintenanceKind.RETENTION and is_first:
            repair_changing_groups(self._store, self.open, self._runtime)
        if kind is MaintenanceKind.SWEEPING and is_first:
            self._sweep_tables("")

    def maintain(self, kind: MaintenanceKind, name: str) -> Mapping[str, str]:
        """Do what the job of that kind does with a stream, by the root's and its own settings.

        ``was_idle`` then says whether the stream had nothing new and was not due, which costs one
        storage call. A name of a scope stands for its own tables, which are swept; returns an
        error for each that failed. Raises what the work on a stream raises; NoSuchStream for one
        that was deleted since it was listed.
        """
        scope, _, short = name.partition("/")
        self.was_idle = False
        if short == _LAST:
            return self._sweep_tables(scope) if kind is MaintenanceKind.SWEEPING else {}
        if kind not in maintenance_work.kinds_of(short, (kind,)):
            self.was_idle = True
            return {}
        hints = self._hints_of(scope)
        if short not in hints.due((kind,), self._now_ms(), (short,)):
            self.was_idle = True
            return {}
        try:
            done = do_work(self.open(name), kind, self._options)
        except Exception:
            hints.drop(short)
            raise
        hints.note(
            short,
            kind,
            version=done.version,
            written_ms=done.written_ms,
            due_ms=done.due_ms,
            now_ms=done.checked_ms,
        )
        return {}

    def finish(self) -> None:
        """Write down when the streams of a share are due again."""
        for hints in self._hints.values():
            hints.save()

    def _hints_of(self, scope: str) -> DueHints:
        if scope not in self._hints:
            basis = basis_of(self._options.root)
            self._hints[scope] = stream_hints(self._store, scope, self._names(scope), basis)
        return self._hints[scope]

    def _now_ms(self) -> int:
        return open_maintenance(self._store, self._runtime).about_now_ms()

    def _sweep_tables(self, scope: str) -> dict[str, str]:
        task = RoundTask(scope, (MaintenanceKind.SWEEPING,))
        done = do_task(self._store, task, self._options, self._runtime)
        return {what: error for found in done for what, error in found.failures.items()}


def is_stream(name: str) -> bool:
    """Return whether a visited name is that of a stream, and not of a scope's tables."""
    return not name.endswith(f"/{_LAST}")


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
        """Return the scopes that a separate job maintains."""
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


IsClosed = Callable[[Any], bool]


class _User(NamedTuple):
    known: weakref.ref[Any]
    is_closed: IsClosed
    by_setting: bool

    def is_open(self) -> bool:
        found = self.known()
        return found is not None and not self.is_closed(found)


class AutoMaintenance:
    """Maintains one root in the background while any of its users is open."""

    def __init__(
        self, store: Store, runtime: Runtime = SYSTEM, pace: SharePace | None = None
    ) -> None:
        """Take a root; the first user starts the thread."""
        self._shares = MaintenanceShares(
            store, runtime, pace or PACE, is_ended=self._is_unused, is_asked=self._is_asked
        )
        self.store = store
        self._users: list[_User] = []
        self._lock = new_lock()
        self._wakes = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def add(self, user: object, is_closed: IsClosed, *, by_setting: bool = False) -> None:
        """Maintain the root as long as the user exists and is not closed.

        ``by_setting`` says that only the root's setting asks for it.
        """
        with self._lock:
            self._users = [*self._open_users(), _User(weakref.ref(user), is_closed, by_setting)]
            if self._thread is None and not self._is_stopped:
                self._thread = threading.Thread(
                    target=self._run, name=f"pravega-maintenance-{self.store.url}", daemon=True
                )
                self._thread.start()

    def _open_users(self) -> list[_User]:
        return [user for user in self._users if user.is_open()]

    def _is_asked(self) -> bool:
        """Return whether an open user asks for maintenance, even if the root's setting is off."""
        return any(not user.by_setting for user in self._open_users())

    def _is_unused(self) -> bool:
        return self._is_stopped or not self._open_users()

    def _run(self) -> None:
        pause = self._shares.pause(AUTO_FIRST_SECONDS)
        while not self._wakes.wait(pause):
            with self._lock:
                if self._is_unused():
                    self._thread = None  # the next user starts another
                    return
            try:
                pause = self._shares.wake_up()
            except ENDS as error:
                self._is_stopped = True
                self._shares.warn(("end",), "this process no longer maintains %s", error)
                return

    def stop(self) -> None:
        """End the thread after the stream that it is working on; do not wait."""
        self._is_stopped = True
        self._wakes.set()

    def join(self, deadline: float) -> None:
        """Wait until a time of the monotonic clock for the thread to end."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))


class _MaintainedRoots:
    """The maintained roots of this process by URL; a forked child starts with none."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        self._roots: dict[str, AutoMaintenance] = {}

    def get(self, store: Store) -> AutoMaintenance:
        with self._lock:
            known = self._roots.get(store.url)
            if known is None or known.store is not store:
                known = self._roots[store.url] = AutoMaintenance(store)
            return known

    def stop_all(self) -> None:
        """Let the threads end: one that the end of the interpreter surprises may crash it."""
        deadline = time.monotonic() + AUTO_EXIT_SECONDS
        running = list(self._roots.values())
        for root in running:
            root.stop()
        for root in running:
            root.join(deadline)


_roots = _MaintainedRoots()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_roots.reset)
pools.threading._register_atexit(_roots.stop_all)  # type: ignore[attr-defined]


def maintain_while_open(
    store: Store,
    user: object,
    is_closed: IsClosed = lambda user: False,
    *,
    by_setting: bool = False,
) -> None:
    """Maintain a root in the background while the user of it exists and is not closed.

    With ``by_setting`` only while the root's setting is "auto", too. Makes no storage call, and
    raises nothing that concerns the storage.
    """
    _roots.get(store).add(user, is_closed, by_setting=by_setting)
