"""The thread that maintains a root while this process has something of it open.

There is at most one for each root, however many writers and readers are open. It knows them only
weakly, and ends when the last of them was closed or collected, when the process ends, and when the
root was replaced or cannot be written. Users that were opened by the root's setting count only
while the setting is "auto": each wake-up decides on the present one.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import thread as pools
from typing import Any, NamedTuple

from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.limits import AUTO_EXIT_SECONDS, AUTO_FIRST_SECONDS
from pravega_spark.maintenance.maintenance_share import (
    ENDS,
    PACE,
    MaintenanceShares,
    SharePace,
)
from pravega_spark.process_locks import new_lock

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
            store, runtime, pace or PACE, self._is_unused, self._is_asked
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
        """Return whether an open user asks for maintenance, whatever the root's setting is."""
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
        """Forget everything."""
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
