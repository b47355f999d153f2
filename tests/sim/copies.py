"""Copies of the whole package, one for each simulated process, over simulated clocks and threads.

A copy's modules are the package's own files. What differs is what an ``import`` in them finds:
each other module of the same copy, and for a few modules of Python a stand-in that belongs to the
process. So caches, pools and open streams of the package are those of one process, as they are in
production, and the package knows nothing of it.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import importlib.util
import itertools
import os
import pkgutil
import random
import socket
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from tests.sim import thread_module
from tests.sim.scheduler import Task, present

if TYPE_CHECKING:
    from tests.sim.processes import Process

PACKAGE = "pravega_spark"
_UNUSED = tuple(f"{PACKAGE}.{room}" for room in ("spark", "serve", "jobs", "cli", "metrics"))
"""Rooms that need Spark or a server: they are imported when something asks for them."""
_ABSENT = ("_queue", "inotify_simple")
"""Modules that no process finds: Python goes by its own queue, and the package polls folders."""
_FROM_SOURCE = ("threading", "queue", "concurrent.futures._base", "concurrent.futures.thread")
"""Modules of Python that each process has a copy of, over the stand-ins."""


@cache
def _code(name: str) -> tuple[types.CodeType, str, bool] | None:
    """Return a module's code, its file and whether it is a package; None if there is none."""
    parent, _, _ = name.rpartition(".")
    if parent and (found := _code(parent)) is None:
        return None
    path = None if not parent else [os.path.dirname(found[1])]  # type: ignore[index]
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        return None
    code = spec.loader.get_code(name)
    assert code is not None
    return code, str(spec.origin), spec.submodule_search_locations is not None


@lru_cache(maxsize=1)
def all_names() -> tuple[str, ...]:
    """Return the names of all modules of the package that a simulated process imports."""
    found = _code(PACKAGE)
    assert found is not None
    names = [PACKAGE]
    for module in pkgutil.walk_packages([os.path.dirname(found[1])], f"{PACKAGE}.", lambda _: None):
        names.append(module.name)
    return tuple(name for name in names if not name.startswith(_UNUSED))


class Copy:
    """One copy of the package; ``process`` is whose it is, once there is one."""

    def __init__(self, number: int, changed: Callable[[str, str], str] | None = None) -> None:
        """Name the copy; ``changed`` may return another source of a module, given its file."""
        self.process: Process | None = None
        self._early = random.Random(number)
        self.modules: dict[str, types.ModuleType] = {}
        self._changed = changed
        self.at_exit: list[Callable[[], object]] = []
        self._builtins = {**vars(builtins), "__import__": self._import}
        self.stand_ins: dict[str, types.ModuleType] = {}
        self._make_stand_ins()

    def load_all(self) -> Copy:
        """Import every module, as a process does that has used each verb."""
        for name in all_names():
            self.load(name)
        return self

    @property
    def package(self) -> Any:
        """The module ``pravega_spark``."""
        return self.load(PACKAGE)

    def get(self, path: str) -> Any:
        """Return a module or a name in one, below the package."""
        name = f"{PACKAGE}.{path}"
        if _code(name) is not None:
            return self.load(name)
        module, _, attribute = name.rpartition(".")
        return getattr(self.load(module), attribute)

    # Imports

    def _import(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        if level:
            name = importlib.util.resolve_name("." * level + name, globals["__package__"])
        top = name.partition(".")[0]
        if top == PACKAGE:
            module = self.load(name)
            if not fromlist:
                return self.load(top)
            for wanted in fromlist:
                if wanted not in vars(module) and _code(f"{name}.{wanted}") is not None:
                    self.load(f"{name}.{wanted}")
            return module
        if name in _ABSENT:
            raise ImportError(name)
        found = self.stand_ins.get(name)
        if found is not None:
            return found if fromlist else self.stand_ins[top]
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    def load(self, name: str) -> types.ModuleType:
        """Return a module of the copy; import it first, if it was not."""
        found = self.modules.get(name)
        if found is not None:
            return found
        parent, _, own = name.rpartition(".")
        if parent:
            self.load(parent)
            if name in self.modules:
                return self.modules[name]
        made = self._made(name)
        self.modules[name] = made
        try:
            self._run(made)
        except BaseException:
            del self.modules[name]
            raise
        if parent:
            setattr(self.modules[parent], own, made)
        return made

    def _made(self, name: str) -> types.ModuleType:
        found = _code(name)
        if found is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        _, file, is_package = found
        made = types.ModuleType(name)
        made.__file__ = file
        made.__package__ = name if is_package else name.rpartition(".")[0]
        if is_package:
            made.__path__ = [os.path.dirname(file)]
        made.__dict__["__builtins__"] = self._builtins
        return made

    def _run(self, module: types.ModuleType) -> None:
        code, file, _ = _code(module.__name__)  # type: ignore[misc]
        if self._changed is not None and module.__name__.startswith(PACKAGE):
            with open(file) as source:
                text = source.read()
            other = self._changed(file, text)
            if other != text:
                code = compile(other, file, "exec", dont_inherit=True)
        known = sys.modules.get(module.__name__)
        sys.modules[module.__name__] = module  # dataclasses look their own module up
        try:
            exec(code, vars(module))
        finally:
            if known is None:
                del sys.modules[module.__name__]
            else:
                sys.modules[module.__name__] = known

    # Stand-ins

    def _chance(self) -> random.Random:
        """What is drawn from: while the package is imported the copy's number decides alone."""
        return self._early if self.process is None else self.process.chance

    def _now(self) -> Process:
        if self.process is None:
            raise RuntimeError("this copy of the package has no process yet")
        return self.process

    def _make_stand_ins(self) -> None:
        made = self.stand_ins
        made["_thread"] = thread_module.make(self._start_thread)
        made["time"] = self._time()
        made["os"] = self._os()
        made["random"] = self._random()
        made["socket"] = _like(socket, gethostname=lambda: self._now().host.name)
        made["atexit"] = _like(
            importlib.import_module("atexit"),
            register=lambda function, *args: self.at_exit.append(lambda: function(*args)),
        )
        made["importlib"] = _like(importlib, import_module=self._import_module)
        made["importlib.metadata"] = importlib.import_module("importlib.metadata")
        for name in _FROM_SOURCE:
            if name == "concurrent.futures._base":
                self._make_futures()
            made[name] = module = self._made(name)
            self._run(module)
            parent, _, own = name.rpartition(".")
            if parent:  # else `from parent import own` finds the module of Python itself
                setattr(made[parent], own, module)
        base, thread = made["concurrent.futures._base"], made["concurrent.futures.thread"]
        futures = made["concurrent.futures"]
        for name in ("FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED", "CancelledError",
                     "TimeoutError", "BrokenExecutor", "Future", "Executor", "wait",
                     "as_completed", "InvalidStateError"):  # fmt: skip
            setattr(futures, name, getattr(base, name))
        # Sets of futures, and the order in which a wait locks them, go by addresses otherwise.
        numbers = itertools.count(1)

        def number(future: Any) -> int:
            return future.__dict__.setdefault("_number", next(numbers))

        vars(base)["id"] = vars(base)["Future"].__hash__ = number
        vars(futures).update(
            ThreadPoolExecutor=vars(thread)["ThreadPoolExecutor"], thread=thread, _base=base
        )
        vars(made["queue"])["SimpleQueue"] = _simple_queue(vars(made["queue"])["Empty"])

    def _make_futures(self) -> None:
        for name in ("concurrent", "concurrent.futures"):
            self.stand_ins[name] = made = types.ModuleType(name)
            made.__path__ = []
        vars(self.stand_ins["concurrent"])["futures"] = self.stand_ins["concurrent.futures"]

    def _import_module(self, name: str, package: str | None = None) -> types.ModuleType:
        if name.partition(".")[0] == PACKAGE:
            return self.load(name)
        return importlib.import_module(name, package)

    def _start_thread(self, function: Callable[[], object], name: str) -> Task:
        return self._now().start(function, name)

    def _time(self) -> types.ModuleType:
        def wall_ns() -> int:
            return 0 if self.process is None else self.process.host.wall_ns()

        def boot_ns() -> int:
            return 0 if self.process is None else self.process.host.boot_ns()

        def boot() -> float:
            return boot_ns() / 1e9

        def clock_gettime(which: int) -> float:
            return (wall_ns() if which == time.CLOCK_REALTIME else boot_ns()) / 1e9

        def sleep(seconds: float) -> None:
            present().wait(self._now().host.true_ns(seconds))

        return _like(
            time,
            time=lambda: wall_ns() / 1e9,
            time_ns=wall_ns,
            monotonic=boot,
            monotonic_ns=boot_ns,
            perf_counter=boot,
            perf_counter_ns=boot_ns,
            clock_gettime=clock_gettime,
            sleep=sleep,
        )

    def _os(self) -> types.ModuleType:
        def kill(pid: int, signal: int) -> None:
            if pid not in self._now().host.pids():
                raise ProcessLookupError(pid)

        def readlink(path: Any) -> str:
            return "pid:[1]" if str(path).startswith("/proc/") else os.readlink(path)

        return _like(
            os,
            urandom=lambda count: self._chance().randbytes(count),
            getpid=lambda: 0 if self.process is None else self.process.pid,
            getppid=lambda: 1,
            kill=kill,
            readlink=readlink,
            register_at_fork=lambda **hooks: None,
            environ={},
        )

    def _random(self) -> types.ModuleType:
        copy = self

        class SystemRandom(random.Random):
            """Randomness of the process, which the seed decides."""

            def random(self) -> float:
                return copy._chance().random()

            def getrandbits(self, bits: int) -> int:
                return copy._chance().getrandbits(bits)

            def seed(self, *given: object, **named: object) -> None:
                """Do nothing, as the real one."""

        return _like(random, SystemRandom=SystemRandom)


def _like(module: types.ModuleType, **others: object) -> types.ModuleType:
    """Return a module with the names of another one, some of them with other values."""
    made = types.ModuleType(module.__name__)
    vars(made).update({**vars(module), **others})
    return made


def _simple_queue(empty: type[Exception]) -> type:
    """Return ``queue.SimpleQueue``, whose ``put`` and ``get`` are one step each, as C's are."""

    class SimpleQueue:
        def __init__(self) -> None:
            self._items: deque[Any] = deque()
            self._waiting: deque[Task] = deque()

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            self._items.append(item)
            while self._waiting and not present().wake(self._waiting.popleft()):
                pass

        put_nowait = put

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if not self._items and block:
                scheduler = present()
                task = scheduler.task()
                ns = None if timeout is None else task.owner.host.true_ns(timeout)
                deadline = None if ns is None else scheduler.now + ns
                while not self._items:
                    left = None if deadline is None else deadline - scheduler.now
                    if left is not None and left <= 0:
                        break
                    self._waiting.append(task)
                    if not scheduler.wait(left) and task in self._waiting:
                        self._waiting.remove(task)
            if not self._items:
                raise empty
            return self._items.popleft()

        def get_nowait(self) -> Any:
            return self.get(False)

        def empty(self) -> bool:
            return not self._items

        def qsize(self) -> int:
            return len(self._items)

        __class_getitem__: Any = classmethod(types.GenericAlias)

    return SimpleQueue


def some_copies(count: int, changed: Callable[[str, str], str] | None = None) -> Iterable[Copy]:
    """Return so many fresh copies."""
    return [Copy(number, changed).load_all() for number in range(count)]
