"""The thread that maintains a root while this process has something of it open.

There is at most one for each root, however many writers and readers are open. It knows them only
weakly, and ends when the last of them was closed or collected, when the process ends, and when the
root was replaced or cannot be written. It sleeps for a minute before it does or imports anything,
so that a process which ends before that makes no call and reads no setting for it. Users that were
opened by the root's setting count only while the setting is "auto": each wake-up decides on the
present one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import thread as pools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pravega_spark.config.root_settings import (
    AUTO,
    OFF,
    EffectiveSettings,
    SettingOrigin,
    decide_settings,
)
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.errors import (
    InvalidConfiguration,
    PravegaSparkError,
    RootChanged,
    StoreReadOnly,
    StoreRefused,
    without_credentials,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import (
    AUTO_EXIT_SECONDS,
    AUTO_FIRST_SECONDS,
    AUTO_SETTINGS_SECONDS,
)

if TYPE_CHECKING:
    from pravega_spark.maintenance.shares import MaintenanceShares, SharePace

logger = own_logger(__name__)

VARIABLE: Final = "PRAVEGA_SPARK_MAINTAIN"
"""The variable that, if it is "off", keeps a process out where no argument says otherwise, and
leaves the roots that it sets up without the setting."""
ENDS: Final = (RootChanged, StoreReadOnly, StoreRefused)
"""Errors after which this process does not maintain the root any more."""

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
        self.store = store
        self._runtime = runtime
        self._pace = pace
        self._shares: MaintenanceShares | None = None
        self._users: list[_User] = []
        self._lock = new_lock()
        self._wakes = threading.Event()
        self._is_stopped = False
        self._off_until = 0.0
        """Until when the setting of the root is known not to be "auto"."""
        self._has_told = False
        """Whether this process has said that nobody chose a setting."""
        self._thread: threading.Thread | None = None

    def add(self, user: object, is_closed: IsClosed, *, by_setting: bool = False) -> None:
        """Maintain the root as long as the user exists and is not closed.

        ``by_setting`` says that only the root's setting asks for it.
        """
        with self._lock:
            if by_setting and self._runtime.monotonic() < self._off_until:
                return
            others = [found for found in self._open_users() if found.known() is not user]
            self._users = [*others, _User(weakref.ref(user), is_closed, by_setting)]
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
        pause = AUTO_FIRST_SECONDS * (1 + self._runtime.random() / 2)
        while not self._wakes.wait(pause):
            if self._has_ended():
                return
            shares = self._shares = self._shares or self._begun()
            try:
                pause = shares.wake_up()
            except ENDS as error:
                self._is_stopped = True
                is_told = self._is_asked() or isinstance(error, RootChanged)
                level = logging.WARNING if is_told else logging.INFO
                shares.warn(("end",), "this process no longer maintains %s", error, level)
                return

    def _has_ended(self) -> bool:
        """Return whether nobody needs the thread any more; the next user starts another one."""
        is_off = self._shares is None and not self._is_asked() and not self._is_auto()
        with self._lock:
            if is_off and not self._is_asked():
                self._off_until = self._runtime.monotonic() + AUTO_SETTINGS_SECONDS
            elif not self._is_unused():
                return False
            self._thread = None
            return True

    def _is_auto(self) -> bool:
        """Return whether the root's setting is "auto"; one that cannot be read begins nothing."""
        from pravega_spark.engine.state.settings_table import open_settings

        with contextlib.suppress(PravegaSparkError, OSError):
            table = open_settings(self.store, self._runtime)
            if not table.exists():
                self._tell(decide_settings({}))
                return False
            settings = decide_settings(table.read())
            self._tell(settings)
            return settings.maintain == AUTO
        return False

    def _tell(self, settings: EffectiveSettings) -> None:
        """Say once that nobody chose whether applications maintain the root, as in old roots."""
        if self._has_told or settings.origin("maintain") is not SettingOrigin.DEFAULT:
            return
        from pravega_spark.engine.stream.overdue_maintenance import DEFAULT_KINDS, unmaintained

        self._has_told = True
        overdue = unmaintained(self.store, self._runtime, settings, DEFAULT_KINDS)
        if overdue is not None:
            url = without_credentials(self.store.url)
            logger.warning("%s", overdue, extra=log_fields("maintain", root=url))

    def _begun(self) -> MaintenanceShares:
        from pravega_spark.maintenance import shares

        return shares.MaintenanceShares(
            self.store,
            self._runtime,
            self._pace or shares.PACE,
            is_ended=self._is_unused,
            is_asked=self._is_asked,
        )

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
    maintain: str | None = None,
) -> None:
    """Maintain a root in the background while the user of it exists and is not closed.

    With ``maintain="auto"``; by None as long as the root's setting is "auto", too, but in no task
    of Spark. Makes no storage call, and raises nothing that concerns the storage.
    """
    if maintain == AUTO or (maintain is None and not _is_task()):
        _roots.get(store).add(user, is_closed, by_setting=maintain is None)


def _is_task() -> bool:
    """Return whether this process works on a task of Spark, and of no application's own."""
    found = sys.modules.get("pyspark.taskcontext")
    return found is not None and found.TaskContext.get() is not None


def wanted(maintain: str | None) -> str | None:
    """Return what an argument ``maintain`` says, or without one the variable; None: the root's.

    Raises InvalidConfiguration for a variable that says anything but "off".
    """
    if maintain is not None:
        return maintain
    found = os.environ.get(VARIABLE) or None
    if found not in (None, OFF):
        raise InvalidConfiguration(
            f"the variable {VARIABLE} may only be {OFF!r}, got {shown(found)}. Pass "
            f"maintain={AUTO!r} to let a process maintain a root."
        )
    return found
