"""The shares of a root's maintenance that one process does: ``maintain="auto"``.

Runs over all streams are done in shares of bounded time, by any of the processes: the record holds
the stream after which the next share continues. Kinds that run as often are done together. A stream
that fails is recorded, and its turn comes again with the next run. Imported by the first wake-up of
``maintenance/auto.py``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import (
    AUTO,
    NOTHING_GIVEN,
    OFF,
    GivenSettings,
    SettingOrigin,
    decide_settings,
)
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
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
from pravega_spark.engine.stream.overdue_maintenance import DEFAULT_KINDS
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    Damaged,
    NoSuchScope,
    NoSuchStream,
    PravegaSparkError,
    RootChanged,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
)
from pravega_spark.maintenance import work as maintenance_work
from pravega_spark.maintenance.work import (
    ALWAYS,
    WORKS,
    Kinds,
    RoundTask,
    Visit,
    WorkDone,
    WorkOptions,
    do_task,
    do_work,
    stream_hints,
)
from pravega_spark.reader_groups.repair import repair_changing_groups
from pravega_spark.values.limits import (
    AUTO_SETTINGS_SECONDS,
    AUTO_SHARE_FRACTION,
    AUTO_SHARE_SECONDS,
    AUTO_SHARE_STREAMS,
    AUTO_SLACK,
    AUTO_WAKE_SECONDS,
)

_STREAM_IS_OFF: Final = "the stream's setting maintain is off"

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
        self._streams: dict[str, list[str]] = {}
        """Of the scopes that the present share has visited, as are their hints."""
        self._visit: Visit | None = None
        """Of the stream of which :meth:`due` was asked last, once work at it began."""

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
        if scope not in self._streams:
            names = set[str]()
            with contextlib.suppress(NoSuchScope):  # deleted since it was listed
                names = log_names(open_scope(self._store, scope, self._runtime))
            self._streams[scope] = sorted(names)
        return self._streams[scope]

    def begin(self, given: GivenSettings, *, by_setting: bool = False) -> None:
        """Begin a share by the settings of the root, which alone may ask for it."""
        self._options = WorkOptions(given, by_setting=by_setting)
        self._hints.clear()
        self._streams.clear()

    def prepare(self, kind: MaintenanceKind, *, is_first: bool) -> Mapping[str, str]:
        """Do what a share of a run of that kind does before its streams: only before the first.

        Returns an error for each group and table of the root that failed.
        """
        if kind is MaintenanceKind.RETENTION and is_first:
            failures = repair_changing_groups(self._store, self.open, self._runtime)
            return {f"reader group {group}": error for group, error in failures.items()}
        if kind is MaintenanceKind.SWEEPING and is_first:
            return self._sweep_tables("")
        return {}

    def due(self, kinds: Kinds, name: str) -> Kinds:
        """Return those kinds of work that a stream needs: none if it has nothing new.

        That costs one storage call, and now and then a second one. A name of a scope stands for its
        own tables, which are swept.
        """
        scope, _, short = name.partition("/")
        if short == _LAST:
            return [kind for kind in kinds if kind is MaintenanceKind.SWEEPING]
        self._visit = None
        kinds = maintenance_work.kinds_of(short, kinds)
        if not kinds:
            return ()
        return self._hints_of(scope).due(kinds, self._now_ms(), (short,)).get(short, ())

    def maintain(self, kind: MaintenanceKind, name: str) -> Mapping[str, str] | None:
        """Do what the job of that kind does with a stream, by the root's and its own settings.

        Returns an error for each part that failed, such as a table; None for a stream that is not
        to be maintained by applications. Raises what the work on a stream raises; NoSuchStream for
        one that was deleted since it was listed.
        """
        scope, _, short = name.partition("/")
        if short == _LAST:
            return self._sweep_tables(scope)
        hints = self._hints_of(scope)
        try:
            visit = self._visit = self._visit or Visit(self.open(name))
            work = partial(_unless_off, kind)
            done = do_work(visit.stream, kind, self._options, work, visit=visit)
        except Exception:
            hints.drop(short)
            raise
        if done.left == _STREAM_IS_OFF:  # a job does the work, so no hint says that it is done
            return None
        hints.note(
            short,
            kind,
            version=done.version,
            written_ms=done.written_ms,
            due_ms=done.due_ms,
            now_ms=done.checked_ms,
        )
        return done.failures

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


def _unless_off(
    kind: MaintenanceKind, stream: StreamLog, view: StreamView, options: WorkOptions
) -> WorkDone:
    """Do the work of a kind on a stream, unless the stream's own setting keeps applications out."""
    if view.record.configuration.settings.get("maintain") == OFF:
        return WorkDone("", {}, ALWAYS, left=_STREAM_IS_OFF)
    return WORKS[kind](stream, view, options)


def is_stream(name: str) -> bool:
    """Return whether a visited name is that of a stream, and not of a scope's tables."""
    return not name.endswith(f"/{_LAST}")


logger = own_logger(__name__)

ENDS = (RootChanged, StoreReadOnly, StoreRefused)
"""Errors after which this process does not maintain the root any more."""
TOGETHER: Final = frozenset(
    {
        MaintenanceKind.TRANSACTIONS,
        MaintenanceKind.WATERMARKS,
        MaintenanceKind.SCALING,
        MaintenanceKind.FOLDING,
    }
)
"""The kinds that run each minute. They share their shares: a run of all of them asks each idle
stream once, and makes one claim and one record. The others take longer, and would delay these."""
FREEING: Final = frozenset({MaintenanceKind.RETENTION, MaintenanceKind.SWEEPING})
"""The kinds that go on while the disk is full, by the space that a local root has set aside."""
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

        Unless ``is_asked``, a share is done only while the root's setting ``maintain`` is "auto",
        of DEFAULT_KINDS if nobody chose that, and of no kind that this process has no right to.
        """
        self._store = store
        self._runtime = runtime
        self._pace = pace
        self._is_ended = is_ended
        self._is_asked = is_asked
        self._record = open_maintenance(store, runtime)
        self._streams = RootStreams(store, runtime)
        self._intervals_ms: dict[MaintenanceKind, int] = {}
        self._given: GivenSettings = NOTHING_GIVEN
        self._is_auto = False
        self._is_chosen = False
        """Whether somebody gave the root's setting, so that all kinds are done."""
        self._refused: set[MaintenanceKind] = set()
        """The kinds to which this process has no right, which it does only where it is asked."""
        self._settings_at = 0.0
        self._progress: dict[MaintenanceKind, RunProgress] = {}
        """Of the share that is being done."""
        self._doing: MaintenanceKind | None = None
        """The kind of it that is being done."""
        self._unrecorded: dict[MaintenanceKind, tuple[float, RunProgress]] = {}
        """From when on a kind of FREEING is due again without a record, and how far it came."""
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
            if self._may_do(kind)
            and blocking_claim(entries, kind, (None,), now_ms) is None
            and self._is_wanted(kind, entries, now_ms)
        ]
        if not due or not self._may_work():
            return False
        while due:
            together = [kind for kind in due if kind is due[0] or {kind, due[0]} <= TOGETHER]
            try:
                work = self._record.claim(together, (None,), AUTO, self._is_wanted)
            except StoreFull as error:
                work = self._unclaimed(together, error)
            if work is not None:
                self._next = (kinds.index(work.kinds[0]) + 1) % len(kinds)
                self._share(work)
                return True
            due = [kind for kind in due if kind not in together]
        return False

    def _unclaimed(self, kinds: Kinds, error: StoreFull) -> ClaimedWork | None:
        """Return what frees a full disk and is due, by what this process knows; None if nothing."""
        what = "the record of maintenance of %s has no space, so retention and sweeping alone go on"
        self.warn(("full",), what, error)
        now, begun = self._runtime.monotonic(), (0.0, RunProgress(0))
        found = {kind: self._unrecorded.get(kind, begun) for kind in kinds if kind in FREEING}
        progress = {kind: progress for kind, (due, progress) in found.items() if due <= now}
        return self._record.unclaimed(progress, AUTO) if progress else None

    def _keep(self, work: ClaimedWork, *, has_finished: bool) -> None:
        """Remember how far a share came that cannot be recorded."""
        now = self._runtime.monotonic()
        for kind in work.kinds:
            due = now + self._due_ms(kind) / 1_000
            known = (due, RunProgress(0)) if has_finished else (0.0, self._progress[kind])
            self._unrecorded[kind] = known

    def _may_work(self) -> bool:
        """Return whether a user or the root's present setting asks for work that is due."""
        self._read_settings(0.0)
        return self._is_auto or self._is_asked()

    def _may_do(self, kind: MaintenanceKind) -> bool:
        """Return whether this process does a kind, if the root's setting is "auto"."""
        is_default = kind in DEFAULT_KINDS and kind not in self._refused
        return is_default or self._is_asked() or (self._is_chosen and kind not in self._refused)

    def _read_settings(self, seconds: float) -> None:
        """Read the settings of the root, unless they were read in the last seconds."""
        now = self._runtime.monotonic()
        if not self._intervals_ms or now - self._settings_at >= seconds:
            self._given = open_settings(self._store, self._runtime).read()
            settings = decide_settings(self._given)
            self._intervals_ms, self._is_auto = intervals_ms(settings), settings.maintain == AUTO
            self._is_chosen = settings.origin("maintain") is not SettingOrigin.SET_UP
            self._settings_at = now

    def _is_wanted(self, kind: MaintenanceKind, entries: Entries, now_ms: int) -> bool:
        """Return whether a run is to begin or to continue; a job that keeps up leaves nothing."""
        return entry_of(entries, kind).is_due(now_ms, self._due_ms(kind))

    def _due_ms(self, kind: MaintenanceKind) -> int:
        return int(self._intervals_ms[kind] * AUTO_SLACK)

    def _share(self, work: ClaimedWork) -> None:
        """Do a share of claimed work, and record how far it came."""
        keeper = ClaimKeeper(self._record, work)
        if work.is_recorded:
            keeper.start()
        begun = RunProgress(work.claim.at_ms)
        self._progress = {kind: work.progress.get(kind, begun) for kind in work.kinds}
        has_finished = is_refused = False
        try:
            has_finished = self._visit(work.kinds, keeper)
        except (StoreReadOnly, StoreRefused) as error:
            if self._is_asked() or self._doing is None:
                raise
            self._refused.add(self._doing)
            is_refused = True  # another process does the share again
            kind = self._doing.value
            self.warn(
                ("refused", kind),
                f"this process leaves {kind} of %s to others, having no right to it",
                error,
                logging.INFO,
            )
        finally:
            keeper.end()
            if not work.is_recorded:
                self._keep(work, has_finished=has_finished)
            elif has_finished:
                self._record.finish_shares(work, self._progress)
            else:
                self._record.release(work, {} if is_refused else self._progress)

    def _visit(self, kinds: Kinds, keeper: ClaimKeeper) -> bool:
        """Maintain the next streams; return whether these were the last ones.

        Idle streams cost about one call each for all kinds, so only the others count.
        """
        until, worked = self._runtime.monotonic() + self._pace.seconds, 0
        after = self._progress[kinds[0]].after
        self._streams.begin(self._given, by_setting=not self._is_asked())
        for kind in kinds:
            self._doing = kind
            failures = self._streams.prepare(kind, is_first=not after)
            self._check_rights(failures)
            self._add(kind, after, 0, failures)
        left = {kind: self._maintained_scopes(kind) for kind in kinds}
        following = self._streams.after(after, set.intersection(*left.values()))
        try:
            for name, problem in following:
                is_over = is_stream(name) and worked >= self._pace.streams
                is_over = is_over or self._runtime.monotonic() >= until
                if is_over or keeper.is_lost or self._is_ended():
                    return False
                scope = name.partition("/")[0]
                some = [kind for kind in kinds if scope not in left[kind]]
                if problem is None:
                    worked += self._maintain(some, name) and is_stream(name)
                    continue
                for kind in some:
                    self._fail(kind, name, 0, f"scope {scope}", problem)
        finally:
            self._streams.finish()
        return True

    def _maintain(self, kinds: Kinds, name: str) -> bool:
        """Do what is due at a stream or at the tables of a scope; return whether anything was."""
        streams, worked = int(is_stream(name)), False
        due = self._streams.due(kinds, name)
        for kind in kinds:
            failures: Mapping[str, str] | None = {}
            if kind in due:
                self._doing = kind
                try:
                    failures = self._streams.maintain(kind, name)
                    self._check_rights(failures or {})
                except NoSuchStream:  # deleted since it was listed
                    streams = 0
                except Exception as error:
                    may_not_delete = kind is MaintenanceKind.SWEEPING
                    may_not_delete = may_not_delete and not isinstance(error, RootChanged)
                    if isinstance(error, ENDS) and not (may_not_delete and self._is_asked()):
                        raise
                    self._fail(kind, name, streams, f"stream {name}", error)
                    continue
                worked = worked or failures is not None
            self._add(kind, name, streams, failures or {})
        return worked

    def _add(
        self, kind: MaintenanceKind, after: str, streams: int, failures: Mapping[str, str]
    ) -> None:
        self._progress[kind] = self._progress[kind].add(after, streams, failures)

    def _check_rights(self, failures: Mapping[str, str]) -> None:
        """Raise StoreReadOnly for a failure by a missing right, where nobody asked this process."""
        named = tuple(f"{error.__name__}: " for error in (StoreReadOnly, StoreRefused))
        for failure in failures.values():
            if failure.startswith(named) and not self._is_asked():
                raise StoreReadOnly(failure, url=self._store.url)

    def _fail(
        self, kind: MaintenanceKind, name: str, streams: int, what: str, error: Exception
    ) -> None:
        """Record a failure; the next run tries again."""
        failure = f"{type(error).__name__}: {error}"
        self._add(kind, name, streams, {what: failure})
        cause = kind.value, name, type(error).__name__
        self.warn(cause, f"{kind.value} of {what} in %s failed", error)

    def _maintained_scopes(self, kind: MaintenanceKind) -> set[str | None]:
        """Return the scopes that a separate job maintains."""
        now_ms, due_ms = self._record.about_now_ms(), self._due_ms(kind)
        found = overlapping(self._record.entries(refresh=False), kind, (None,))
        return {e.scope for e in found if e.scope is not None and not e.is_due(now_ms, due_ms)}

    def warn(
        self,
        cause: tuple[str, ...],
        message: str,
        error: BaseException,
        level: int = logging.WARNING,
    ) -> None:
        """Log a warning, or at another level, once for each cause."""
        if cause not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(cause)
            logger.log(
                level,
                f"{message}: %s",
                self._store.url,
                error,
                extra=log_fields("maintain", root=self._store.url),
            )
