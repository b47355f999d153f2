"""A soak: processes play rounds while they are killed, and each round's history is checked."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pravega_spark import StreamManager
from tests.harness import file_kms
from tests.sim.history import joined
from tests.sim.recorded import Recorded, calls_of
from tests.soak.kinds import MASTER_KEY
from tests.soak.measures import files_of, grown, use_of
from tests.soak.processes import DRIVER_KILLED, PROJECT, STARTS, STUCK, Failed, Played
from tests.soak.rounds import AUDITOR, CAST, SPARK, STEADY, Round
from tests.soak.storages import STORAGES, Storage

_GOOD = "break no promise", "are linearizable"
"""Ends of lines that the check says of a good history."""
WORKERS_KILLED = "workers of Spark killed"


@dataclass
class Outcome:
    """What a soak came to."""

    storage: str
    seed: int
    minutes: float = 0.0
    rounds: int = 0
    calls: int = 0
    events: int = 0
    """Acknowledged ones, those of transactions included."""
    transactions: int = 0
    """Committed ones."""
    faults: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """For each promise that a history breaks, and for all that grew, what is wrong, and where."""
    judged: dict[str, int] = field(default_factory=dict)
    """How many histories each checker took."""
    series: dict[str, list[float]] = field(default_factory=dict)
    """What was used at the end of each round."""


class Run:
    """One soak, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        storage: str,
        seed: int,
        size: int = 10,
        cast: Sequence[str] = tuple(CAST),
        save: Path | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        """``cast`` are the processes that play; ``save`` is a folder for compressed histories.

        ``say`` is told how long each phase of a round took.
        """
        self.folder, self.size, self.cast = folder, size, cast
        self.outcome = Outcome(storage, seed)
        self.source = random.Random(f"soak {seed}")
        self.counts: Counter[str] = Counter()
        self._save, self._say = save, say
        self._striking = threading.Lock()
        self._struck: set[str] = set()
        self._checks: list[tuple[Path, subprocess.Popen[str]]] = []
        self._is_calm = threading.Event()
        self._ended = threading.Event()

    def run(self, minutes: float, rounds: int | None = None) -> Outcome:
        """Play rounds for a time, or so many; end in order, and return what it came to."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            make = STORAGES[self.outcome.storage]
            storage = stack.enter_context(make(self.folder, self.counts, self.outcome.seed))
            self._prepare(storage)
            processes = self._processes(storage)
            for process in processes.values():
                stack.callback(process.end)
                process.start()
            strikes = threading.Thread(target=self._strikes, args=(storage, processes))
            strikes.start()
            stack.callback(strikes.join)
            stack.callback(self._ended.set)
            try:
                while not self.outcome.broken and self._goes_on(began, minutes, rounds):
                    self._round(storage, processes)
                    self.collect(0)
            except Failed as failure:
                self.outcome.broken.append(str(failure))
                stack.close()  # nobody records any more
                self.check(self._told(self.outcome.rounds))
        self.collect(None)
        self.outcome.minutes = round((time.monotonic() - began) / 60, 1)
        self.outcome.faults = dict(sorted(self.counts.items()))
        self.outcome.broken += [
            f"{name} grows: {what}" for name, what in grown(self.outcome.series).items()
        ]
        (self.folder / "outcome.json").write_text(json.dumps(asdict(self.outcome), indent=1))
        return self.outcome

    def _goes_on(self, began: float, minutes: float, rounds: int | None) -> bool:
        played = self.outcome.rounds
        if rounds is not None or played == 0:
            return played < (rounds or 1)
        return time.monotonic() - began < 60 * minutes

    def _prepare(self, storage: Storage) -> None:
        """Probe the storage, and let what was deleted be gone soon, and not after a day."""
        with StreamManager(storage.root, storage_options=dict(storage.good_options)) as manager:
            manager.create_scope("prepared")
            manager.update_settings(grace="2 minutes", retain="2 minutes")

    def _processes(self, storage: Storage) -> dict[str, Played]:
        keys = self.folder / "keys"
        keys.write_text(json.dumps({MASTER_KEY: "secret"}))
        kms = {"PRAVEGA_SPARK_KMS": file_kms.FACTORY, file_kms.VARIABLE: str(keys)}
        environment = {**storage.environment, **kms}
        where = (storage.root, storage.options, environment, self.folder)
        return {name: Played(name, *where) for name in self.cast}

    # Rounds

    def _round(self, storage: Storage, processes: Mapping[str, Played]) -> None:
        """Play, audit and clear, and have the history checked."""
        round = self._told(self.outcome.rounds)
        self._struck.clear()
        self._calm(storage, False)
        self._phase(round, processes)
        self._calm(storage, True)
        auditor = {AUDITOR: processes[AUDITOR]}
        self._phase(replace(round, phase="audit"), auditor)
        self.check(round)
        self._phase(replace(round, phase="clear"), auditor)
        self._measure(storage, processes)
        self.outcome.rounds += 1

    def _told(self, number: int) -> Round:
        """Return what processes are told of a round."""
        seed = self.outcome.seed * 1_000_003 + number
        return Round(number, "play", str(self.folder), seed, self.size)

    def _phase(self, round: Round, processes: Mapping[str, Played]) -> None:
        began = time.monotonic()
        size, since = 0, began
        took: dict[str, float] = {}
        for process in processes.values():
            process.tell(round)
        while waiting := [p for p in processes.values() if not round.done(p.name).exists()]:
            now = time.monotonic()
            if round.recorded.exists() and round.recorded.stat().st_size > size:
                size, since = round.recorded.stat().st_size, now
            longest = STUCK if all(process.works for process in waiting) else STARTS
            if now - since > longest:
                raise self._stuck(round, waiting, longest)
            for process in waiting:
                process.follow(round, self.source, self.counts)
            took |= {process.name: now - began for process in waiting}
            time.sleep(0.1)
        each = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items())
        self._say(f"round {round.number}: {round.phase}: {each}")

    def _stuck(self, round: Round, waiting: Sequence[Played], seconds: float) -> Failed:
        for process in waiting:
            process.show_threads()
        logs = ", ".join(str(process.log) for process in waiting)
        return Failed(f"round {round.number} does nothing for {seconds:.0f} s; threads: {logs}")

    # Faults

    def _calm(self, storage: Storage, is_calm: bool) -> None:
        """Begin faults, or end them and wait until none is under way."""
        storage.set_calm(is_calm)
        (self._is_calm.set if is_calm else self._is_calm.clear)()
        if is_calm:
            with self._striking:
                pass

    def _strikes(self, storage: Storage, processes: Mapping[str, Played]) -> None:
        """Strike again and again: processes, and what the storage's faults are."""
        source = random.Random(f"strikes {self.outcome.seed}")
        kinds = [*(("kill", "kill", "pause") * 2), *storage.faults]
        if SPARK in processes:
            kinds += [DRIVER_KILLED, WORKERS_KILLED]
        while not self._ended.wait(source.uniform(*storage.between)):
            with self._striking:
                if self._is_calm.is_set():
                    continue
                kind = source.choice(kinds)
                if kind in storage.faults:
                    self.counts[kind] += 1
                    storage.faults[kind](source)
                elif kind in (DRIVER_KILLED, WORKERS_KILLED):
                    self._strike_spark(kind, processes[SPARK])
                else:
                    self._strike(kind, processes, source)

    def _strike(self, kind: str, processes: Mapping[str, Played], source: random.Random) -> None:
        """Kill or stop a process, if it plays: the last one is struck no more often than others."""
        mortal = [name for name in processes if name not in (*STEADY, SPARK)]
        if not mortal or not self._plays(process := processes[source.choice(mortal)]):
            return
        if kind == "kill":
            process.kill()
        else:
            self.counts["pause"] += 1
            process.pause(source.uniform(0.2, 3.0))

    def _strike_spark(self, kind: str, process: Played) -> None:
        """Kill Spark's driver, or its workers, once a round each: a start takes it long."""
        if kind in self._struck or not self._plays(process):
            return
        self._struck.add(kind)
        if kind == DRIVER_KILLED:
            process.kill()
        else:
            self.counts[kind] += process.kill_workers()

    def _plays(self, process: Played) -> bool:
        """Whether a process has worked in its present life, and has not ended the round."""
        return process.works and not self._told(self.outcome.rounds).done(process.name).exists()

    # Verdicts

    def check(self, round: Round) -> None:
        """Write the history and start the check of it: the next round need not wait."""
        if not round.recorded.exists() or not round.recorded.stat().st_size:
            return  # it has failed before anything was recorded, or after its check
        text = joined(round.recorded, seed=round.seed, storage=self.outcome.storage)
        round.history.write_text(text)
        if self._save is not None:
            self._save.mkdir(parents=True, exist_ok=True)
            name = f"{self.outcome.storage}-{round.seed}.jsonl.gz"
            (self._save / name).write_bytes(gzip.compress(text.encode(), mtime=0))
        round.recorded.unlink()
        for path in self.folder.glob(f"round-{round.number}-play-*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._count(calls_of(text))
        command = [sys.executable, "-m", "tests.sim.check", str(round.history)]
        check = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT)
        self._checks.append((round.history, check))

    def _count(self, calls: Sequence[Recorded]) -> None:
        staged = {
            call.arguments["transaction"]: sum(map(len, call.arguments["streams"].values()))
            for call in calls
            if call.operation == "stage"
        }
        self.outcome.calls += len(calls)
        for call in calls:
            if not call.ok:
                continue
            if call.operation in ("write", "write_if"):
                self.outcome.events += len(call.arguments["events"])
            elif call.operation == "commit":
                self.outcome.transactions += 1
                self.outcome.events += staged.get(call.arguments["transaction"], 0)

    def collect(self, ready: int | None) -> None:
        """Take the verdicts that are there; with None wait for all."""
        for path, check in list(self._checks):
            if ready is not None and check.poll() is None:
                continue
            said, _ = check.communicate()
            self._checks.remove((path, check))
            for line in said.splitlines():
                if line.startswith(f"{path}: "):  # the lines below one of ours have its calls
                    judge = "Porcupine" if ": Porcupine: " in line else "ours"
                    self.outcome.judged[judge] = self.outcome.judged.get(judge, 0) + 1
            if check.returncode:
                wrong = "\n".join(line for line in said.splitlines() if not line.endswith(_GOOD))
                self.outcome.broken.append(f"{wrong}\nagain: python -m tests.sim.check {path}")
            else:
                path.unlink()

    # Measures

    def _measure(self, storage: Storage, processes: Mapping[str, Played]) -> None:
        found = files_of(storage.keys())
        for name in STEADY:
            if name in processes:
                use = asdict(use_of(processes[name].pid))
                found |= {f"{name}.{kind}": value for kind, value in use.items()}
        for name, value in found.items():
            self.outcome.series.setdefault(name, []).append(value)
