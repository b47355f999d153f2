"""What lies under ``threading``: a module ``_thread`` whose threads are tasks of the scheduler.

Python's own ``threading`` and ``concurrent.futures`` run on it unchanged (``copies.py``).
"""

from __future__ import annotations

import types
from collections import deque
from typing import Any

from tests.sim.scheduler import Task, present

TIMEOUT_MAX = 4_294_967.0
_FOREVER = -1


def _ns(seconds: float) -> int:
    return present().task().owner.host.true_ns(seconds)


class Lock:
    """A lock of simulated threads. Outside of a run, where there is one thread, it never waits."""

    __slots__ = ("__weakref__", "_held", "_waiting")

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = _FOREVER) -> bool:
        scheduler = present()
        if scheduler.current is not None and (chance := scheduler.pace.at_locks):
            scheduler.maybe(chance)
        if not self._held:
            self._held = True
            return True
        if not blocking or timeout == 0:
            return False
        deadline = None if timeout < 0 else scheduler.now + _ns(timeout)
        task = scheduler.task()
        while self._held:
            left = None if deadline is None else deadline - scheduler.now
            if left is not None and left <= 0:
                return False
            self._waiting.append(task)
            if not scheduler.wait(left) and task in self._waiting:
                self._waiting.remove(task)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            wake = present().wake
            while self._waiting and not wake(self._waiting.popleft()):
                pass

    def locked(self) -> bool:
        return self._held

    def _at_fork_reinit(self) -> None:
        self._held = False
        self._waiting.clear()

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()

    acquire_lock, release_lock, locked_lock = acquire, release, locked


class RLock:
    """A lock that one simulated thread may take several times."""

    __slots__ = ("__weakref__", "_lock", "_owner", "_times")

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: int | None = None
        self._times = 0

    def acquire(self, blocking: bool = True, timeout: float = _FOREVER) -> bool:
        me = get_ident()
        if self._owner == me:
            self._times += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._times = me, 1
        return True

    def release(self) -> None:
        if self._owner != get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._times -= 1
        if not self._times:
            self._owner = None
            self._lock.release()

    __enter__ = acquire

    def __exit__(self, *error: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()
        self._owner, self._times = None, 0

    def _is_owned(self) -> bool:
        return self._owner == get_ident()

    def _recursion_count(self) -> int:
        return self._times if self._is_owned() else 0

    def _release_save(self) -> tuple[int, int | None]:
        state = self._times, self._owner
        self._times, self._owner = 0, None
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, int | None]) -> None:
        self._lock.acquire()
        self._times, self._owner = state


def get_ident() -> int:
    """Return the number of the present thread; 0 where the package is imported."""
    try:
        task = present().current
    except IndexError:
        return 0
    return 0 if task is None else task.ident


class local:  # its name in Python
    """Attributes of which each simulated thread has its own."""

    def __init__(self, *given: Any, **named: Any) -> None:
        object.__setattr__(self, "_own", {})
        object.__setattr__(self, "_given", (given, named))

    def __new__(cls, *given: Any, **named: Any) -> local:
        made = object.__new__(cls)
        object.__setattr__(made, "_own", {})
        object.__setattr__(made, "_given", (given, named))
        return made

    def _mine(self) -> dict[str, Any]:
        own = object.__getattribute__(self, "_own")
        me = get_ident()
        if me not in own:
            own[me] = {}
            if type(self).__init__ is not local.__init__:
                given, named = object.__getattribute__(self, "_given")
                type(self).__init__(self, *given, **named)
        return own[me]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_mine", "_own", "_given"):
            return object.__getattribute__(self, name)
        mine = object.__getattribute__(self, "_mine")()
        if name in mine:
            return mine[name]
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_mine")()[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del object.__getattribute__(self, "_mine")()[name]
        except KeyError:
            raise AttributeError(name) from None


class ThreadHandle:
    """What a thread of Python 3.13 is waited for with."""

    def __init__(self, ident: int = 0) -> None:
        self.ident = ident
        self._running = Lock()
        self._running.acquire()

    def join(self, timeout: float | None = None) -> None:
        if self._running.acquire(timeout=_FOREVER if timeout is None else timeout):
            self._running.release()

    def is_done(self) -> bool:
        return not self._running.locked()

    def _set_done(self) -> None:
        if self._running.locked():
            self._running.release()


def make(start: Any) -> types.ModuleType:
    """Return the module ``_thread`` of one process; ``start(function)`` begins a thread of it."""
    module = types.ModuleType("_thread")
    sentinels: dict[int, Lock] = {}

    def start_new_thread(function: Any, args: Any, kwargs: Any = None) -> int:
        def run() -> None:
            try:
                function(*args, **(kwargs or {}))
            finally:
                sentinel = sentinels.pop(get_ident(), None)
                if sentinel is not None and sentinel.locked():
                    sentinel.release()

        task: Task = start(run, getattr(getattr(function, "__self__", None), "name", "thread"))
        scheduler = present()
        scheduler.maybe(scheduler.pace.at_starts)
        return task.ident

    def set_sentinel() -> Lock:
        sentinels[get_ident()] = lock = Lock()
        return lock

    def start_joinable_thread(
        function: Any, handle: ThreadHandle | None = None, daemon: bool = True
    ) -> ThreadHandle:
        handle = handle or ThreadHandle()

        def run() -> None:
            try:
                function()
            finally:
                handle._set_done()

        task: Task = start(run, getattr(getattr(function, "__self__", None), "name", "thread"))
        handle.ident = task.ident
        scheduler = present()
        scheduler.maybe(scheduler.pace.at_starts)
        return handle

    vars(module).update(
        start_joinable_thread=start_joinable_thread,  # since Python 3.13, as the next five
        _ThreadHandle=ThreadHandle,
        _make_thread_handle=ThreadHandle,
        _get_main_thread_ident=get_ident,
        _shutdown=lambda: None,
        allocate_lock=Lock,
        LockType=Lock,
        RLock=RLock,
        TIMEOUT_MAX=TIMEOUT_MAX,
        error=RuntimeError,
        get_ident=get_ident,
        get_native_id=get_ident,
        start_new_thread=start_new_thread,
        _set_sentinel=set_sentinel,
        _count=lambda: 0,
        stack_size=lambda size=0: 0,
        interrupt_main=None,
        daemon_threads_allowed=lambda: True,
        _is_main_interpreter=lambda: True,
        _local=local,
    )
    return module
