"""One run: hosts, processes and storage of a seed, the faults that are planned, and the history."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.sim import scheduler as schedulers
from tests.sim.answers import told_by
from tests.sim.copies import Copy
from tests.sim.history import History
from tests.sim.in_flight import Asked, InFlight
from tests.sim.lives import is_refusal
from tests.sim.processes import Host, Process
from tests.sim.scheduler import Pace, Scheduler
from tests.sim.storage import UNHEARD, Bucket, Weather, disk_store, s3_store

if TYPE_CHECKING:
    from tests.sim.programs import Program

AUDITOR = "audit"
ROOTS = {True: "/simulated/root", False: "s3://simulated/root"}


@dataclass(frozen=True)
class Plan:
    """What is played: a seed, perhaps without some of its parts, or with other ones."""

    seed: int
    without: Collection[str] = ()
    programs: str = ""
    """Letters of those that play, in place of what the seed draws."""
    failing: tuple[int, str] | None = None
    """The number of the one call that goes wrong, and how: then nothing else does."""


class Stopped(Exception):
    """The history has what is wrong, and nothing that comes later would tell more."""


class World:
    """The processes and the storage of one run."""

    def __init__(self, plan: Plan, copies: list[Copy]) -> None:
        seed, failing = plan.seed, plan.failing
        self.plan = plan
        self.has_long_waits = False
        """Whether programs wait for minutes, in which maintenance becomes due."""
        self.parts: list[str] = []
        self.source = random.Random(f"world {seed}")
        self.scheduler = schedulers.begin(
            Scheduler(random.Random(f"schedule {seed}"), Pace.drawn(self.source))
        )
        self._digest = hashlib.sha256()
        self.calls = 0
        self.history = History(
            lambda: self.scheduler.steps, seed=seed, without=sorted(plan.without)
        )
        self.coverage: Counter[str] = Counter()
        self.is_disk = self.source.random() < 0.25 and self.has("disk")
        weather = Weather.of_disk() if self.is_disk else Weather.drawn(self.source)
        self.bucket = Bucket(self.scheduler, weather if failing is None else Weather(), self._note)
        self.bucket.failing = failing
        self.coverage["on a disk" if self.is_disk else "in a bucket"] += 1
        for fault in ("lose_request", "lose_answer", "late", "busy", "resent"):
            if getattr(self.bucket.weather, fault) and not self.has(f"fault {fault}"):
                setattr(self.bucket.weather, fault, 0.0)
        self.bucket.on_call, self.bucket.on_unheard = self.called, self._unheard
        self._deadly: list[list[Any]] = []
        """Failpoints or calls until one kills its process."""
        self._pausing: dict[str, int] = {}
        """Calls of a process until it stops for a while."""
        self._stopping: dict[str, tuple[str, int, float]] = {}
        """The failpoint at which a process stops until another one lets it go on, how often it
        passes it before, and for how many seconds it stops at most."""
        self._stopped: dict[str, Process] = {}
        """By failpoint the process that has stopped there."""
        *others, self._last_copy = copies
        self._copies = iter(others)
        self._pids = itertools.count(50_000_001)
        """Above all process ids of a kernel: nothing of /proc is found."""
        self.hosts: list[Host] = []
        self.processes: dict[str, Process] = {}
        self._in_flight = InFlight(self.coverage)
        self.programs: list[Program] = []
        self.unfinished = 0
        """How many of them have work left."""
        self.made: set[str] = set()
        """The streams and tables that programs have created."""
        self.segments = self.source.choice((1, 1, 2, 3))
        self.group_retention = self.source.choice(("none", "automatic"))
        self.retry_timeout = self.source.choice(("60 s", "60 s", "5 s", "1 s"))

    def has(self, part: str) -> bool:
        """Return whether a part of the seed is played; it is one without which it can be."""
        self.parts.append(part)
        return part not in self.plan.without

    def _note(self, line: str) -> None:
        self.calls += 1
        self._digest.update(f"{self.scheduler.steps} {self.scheduler.now} {line}\n".encode())

    @property
    def digest(self) -> str:
        """What all calls of the storage, their order and their times come to."""
        return self._digest.hexdigest()

    def host(self) -> Host:
        """Return a new machine; all processes of a disk are on its own."""
        if self.is_disk and self.hosts:
            return self.hosts[0]
        made = Host(f"host{len(self.hosts) + 1}", self.scheduler)
        if self.source.random() < 0.4:
            made.rate = 1 + self.source.choice((-1, 1)) * self.source.choice((1e-4, 1e-2, 0.05))
        if self.source.random() < 0.4:
            made.offset_ns = int(self.source.uniform(-3_600, 3_600) * 1e9)
        self.hosts.append(made)
        if self.is_disk:
            self.bucket.clock = made.wall_ns
        return made

    def process(
        self,
        name: str,
        host: Host,
        main: Callable[[Process], object],
        on_kill: Callable[[], object] = bool,
    ) -> Process | None:
        """Start a process, whose main thread calls ``main``; None if no copy is left.

        The last copy is the auditor's, however often others have begun again.
        """
        copy = self._last_copy if name == AUDITOR else next(self._copies, None)
        if copy is None:
            return None
        made = Process(self.scheduler, host, name, copy, next(self._pids), on_kill)
        self.processes[name] = made
        if self.is_disk:
            vars(copy.get("engine.store.local"))["LocalStore"] = disk_store(copy, self.bucket)
        else:
            vars(copy.get("engine.store.s3"))["S3Store"] = s3_store(copy, self.bucket)
        copy.get("engine.runtime.failpoints").install(self._failpoint(made))

        def run() -> None:
            main(made)
            made.end()

        made.start_main(run)
        return made

    def _failpoint(self, process: Process) -> Callable[[str], None]:
        def reached(name: str) -> None:
            self.coverage[f"failpoint {name}"] += 1
            self._digest.update(f"{process.name} {name}\n".encode())
            if self.scheduler.current is None:
                return
            if self._deadly and self._counts_down("failpoints"):
                self.coverage[f"killed at {name}"] += 1
                process.kill()
                self.scheduler.step_aside()
            wanted, passing, seconds = self._stopping.get(process.name, ("", 0, 0.0))
            if wanted == name and passing:
                self._stopping[process.name] = name, passing - 1, seconds
            elif wanted == name:
                self._stop(process, name)
                self.scheduler.step_aside()
            self.scheduler.maybe(self.scheduler.pace.at_failpoints)

        return reached

    def run(self) -> None:
        """Let all programs run to their end."""
        self.scheduler.run(lambda: not self.unfinished)

    def calm(self) -> None:
        """End all faults, and let what is still under way land."""
        self.bucket.weather = Weather.of_disk() if self.is_disk else Weather()
        self.bucket.failing = None
        self.bucket.cut_off.clear()
        self.bucket.refuse_nothing()
        self._deadly.clear()
        self._pausing.clear()
        self._stopping.clear()
        self.bucket.lost_commits.clear()

    def alive(self) -> list[str]:
        """Return the names of the processes that a fault may strike."""
        return [p.process_name for p in self.programs if not p.is_done and p.name != AUDITOR]

    # Faults that are planned ahead

    def trouble(self, seconds: float, most: int = 3) -> None:
        """Plan kills, pauses, cuts and jumps of clocks within the next simulated seconds."""
        if self.plan.failing is not None:
            return
        source = self.source
        for number in range(source.randint(0, 2)):
            kind, count = source.choice(("failpoints", "calls")), source.randint(1, 150)
            if self.has(f"kill {number} after {count} {kind}"):
                self._deadly.append([kind, count])
        for number in range(source.randint(0, most)):
            when = self.scheduler.now + int(source.uniform(0, seconds) * 1e9)
            kind = source.choice(
                (
                    "kill",
                    "kill",
                    "stop",
                    "pause",
                    "cut off",
                    "jump",
                    "stand still",
                    "full",
                    "read only",
                )
            )
            if self.has(f"strike {number} {kind}"):
                self.scheduler.at(when, lambda kind=kind: self._strike(kind, self.alive()))  # type: ignore[misc]

    def strike_soon(self, process: Process, seconds: float) -> bool:
        """Kill a process soon, unless the seed plays without that; return whether it will be."""
        if self.plan.failing is not None or not self.has(f"kill {process.name} amid its work"):
            return False
        self.scheduler.after(int(self.source.uniform(0.0, seconds) * 1e9), process.kill)
        self.coverage["fault kill"] += 1
        return True

    def pause_soon(self, process: Process) -> bool:
        """Stop a process at one of its next calls, unless the seed plays without that."""
        if self.plan.failing is not None or not self.has(f"pause {process.name} amid its work"):
            return False
        self._pausing[process.name] = self.source.randint(1, 8)
        return True

    def cut_off(self, process: Process, seconds: float) -> bool:
        """Cut a process off from the storage for a time, unless the seed plays without that."""
        part = f"cut {process.name} off amid its work"
        if self.plan.failing is not None or not self.has(part):
            return False
        self.bucket.cut_off.add(process.name)
        self.scheduler.after(int(seconds * 1e9), lambda: self.bucket.cut_off.discard(process.name))
        self.coverage["fault cut off"] += 1
        return True

    def stop_at(self, process: Process, failpoint: str, passing: int, seconds: float) -> bool:
        """Stop a process when it has passed a failpoint so often and comes to it again, unless the
        seed plays without that."""
        part = f"stop {process.name} at {failpoint}"
        if self.plan.failing is not None or not self.has(part):
            return False
        self._stopping[process.name] = failpoint, passing, seconds
        return True

    def lose_commit(self, process: Process, how: str) -> bool:
        """Leave the next commit of a process without an answer, unless the seed plays without that
        or on a disk, which answers always."""
        part = f"{how} commit of {process.name}"
        if self.plan.failing is not None or self.is_disk or not self.has(part):
            return False
        if how == UNHEARD:
            self._stopping[process.name] = how, 0, 200.0
        self.bucket.lost_commits[process.name] = how
        return True

    def _unheard(self, process: Process) -> None:
        """Be told that a commit of a process has landed of which it will hear nothing."""
        if process.alive and self._stopping.get(process.name, ("",))[0] == UNHEARD:
            self._stop(process, UNHEARD)

    def _stop(self, process: Process, failpoint: str) -> None:
        *_, seconds = self._stopping.pop(process.name)
        self._stopped[failpoint] = process
        process.pause(int(seconds * 1e9))

    def has_stopped(self, failpoint: str) -> bool:
        """Return whether a process has stopped at a failpoint, and has not gone on."""
        process = self._stopped.get(failpoint)
        return process is not None and process.alive and process.is_paused

    def go_on(self, failpoint: str) -> bool:
        """Let the process go on that has stopped at a failpoint; return whether one had."""
        if not self.has_stopped(failpoint):
            return False
        self._stopped.pop(failpoint).go_on()
        return True

    def _pauses(self, process: Process) -> None:
        """Count a call of a process that is to stop at one."""
        left = self._pausing.get(process.name, 0)
        if left == 1:
            process.pause(int(self.source.uniform(20, 150) * 1e9))
            self.coverage["fault pause"] += 1
        if left:
            self._pausing[process.name] = left - 1

    def _counts_down(self, kind: str) -> bool:
        """Count a failpoint or a call of any process; return whether it is its last."""
        for deadly in self._deadly:
            if deadly[0] == kind:
                deadly[1] -= 1
                if deadly[1] <= 0:
                    self._deadly.remove(deadly)
                    self.coverage[f"fault kill at {kind}"] += 1
                    return True
        return False

    def called(self, process: Process) -> bool:
        """Be told that a process sends a request; return whether it dies of that."""
        self._pauses(process)
        if not (self._deadly and self._counts_down("calls")):
            return False
        process.kill()
        return True

    def _strike(self, kind: str, names: list[str]) -> None:
        alive = [name for name in names if name in self.processes and self.processes[name].alive]
        if not alive:
            return
        name = self.source.choice(alive)
        process, source = self.processes[name], self.source
        self.coverage[f"fault {kind}"] += 1
        self._note(f"{kind} {name}")
        ns = int(source.choice((0.5, 5.0, 40.0, 40.0, 150.0)) * source.uniform(0.5, 1.5) * 1e9)
        if kind == "kill":
            process.kill()
        elif kind == "stop":
            process.is_asked_to_stop = True
        elif kind == "pause":
            process.pause(ns)
        elif kind == "cut off":
            self.bucket.cut_off.add(name)
            self.scheduler.after(ns, lambda: self.bucket.cut_off.discard(name))
        elif kind in ("full", "read only"):
            self.bucket.refuses = kind
            self.scheduler.after(ns, self.bucket.refuse_nothing)
        elif kind == "jump":
            process.host.offset_ns += int(source.uniform(-600, 600) * 1e9)
        else:
            process.host.stop_clock()
            self.scheduler.after(ns, process.host.start_clock)

    # Histories

    def begin(self, process: Process, operation: str, **arguments: Any) -> OpenCall:
        """Record that a call of the package begins."""
        call = self.history.invoke(process.name, operation, **arguments)
        if process.name != AUDITOR:
            asked = Asked(process, operation, arguments, self.scheduler.steps)
            self._in_flight.begin(call.number, asked)
        return OpenCall(self, process, operation, call)

    def look_at(self, process: Process, error: BaseException) -> None:
        """Record an error that says that something is damaged, which ends the run."""
        if isinstance(error, process.copy.get("errors").Damaged):
            self.begin(process, "find_damage", error=type(error).__name__, what=str(error)).ok()
            raise Stopped(str(error))

    def ended(self, number: int, operation: str, outcome: str) -> None:
        self._in_flight.end(number, self.scheduler.steps)
        self.coverage[f"outcome {operation} {outcome}"] += 1

    def wait(self, seconds: float) -> None:
        """Have the present simulated thread wait, in true time."""
        self.scheduler.wait(int(seconds * 1e9))


class OpenCall:
    """A call of the package that is being recorded."""

    def __init__(self, world: World, process: Process, operation: str, call: Any) -> None:
        self._world, self._process, self._operation, self._call = world, process, operation, call

    def ok(self, value: Any = None) -> None:
        self._ended("ok")
        self._call.ok(value)

    def failed(self, error: BaseException) -> None:
        self._ended(type(error).__name__)
        self._call.failed(error, told_by(error))

    def ended_with(self, error: BaseException) -> None:
        """Record an error by what it says of the effect."""
        if is_refusal(error):
            self.failed(error)
        else:
            self._ended(type(error).__name__)
            self._call.unknown()

    def _ended(self, outcome: str) -> None:
        self._world.ended(self._call.number, self._operation, outcome)
