"""Two processes that write, commit, put and read, while somebody records their calls on files.

``python -m tests.sim.power.workload ROOT HISTORY SEED``: the first one starts the second.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from functools import partial
from typing import Any

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from tests.sim.history import SharedHistory
from tests.sim.recording import Processes, cut_of

STREAM, OTHER, TABLE = "s/t", "s/u", "s/k"
KEYS = ("k0", "k1", "k2")
VERBS = (
    *("plain", "named", "batch", "commit", "joint", "update", "read", "get"),
    *("truncate", "compact", "sweep"),
)
ROUNDS = 15


def created(process: Processes) -> None:
    """Create all that the processes use, unless it is there."""
    manager = process.manager
    process.ask("create", lambda: manager.create_scope("s"), scope="s")
    two = StreamConfiguration(ScalingPolicy.fixed(2))
    for name in (STREAM, OTHER):
        process.ask("create", partial(manager.create_stream, name, two), stream=name)
    process.ask("create", lambda: manager.create_key_value_table(TABLE), table=TABLE)


class Work:
    """What one process does, as its seed draws it."""

    def __init__(self, process: Processes, seed: int) -> None:
        self.process, self.dice = process, random.Random(seed)
        manager, name = process.manager, process.process
        self.number = 0
        self.verbs: list[str] = []
        self.plain = manager.create_writer(STREAM)
        self.named = manager.create_writer(STREAM, f"id-{name}")
        self.alone = manager.create_transactional_writer(STREAM)
        self.joint = manager.create_joint_writer([STREAM, OTHER])
        self.table = manager.key_value_table(TABLE)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self.plain, self.named, self.alone, self.joint, self.table):
            one.close()

    def event(self, key: str) -> tuple[str, str]:
        self.number += 1
        size = self.dice.choice((0, 0, 9_000))
        return key, f"{self.process.process}-{self.number}" + "." * size

    def step(self) -> None:
        """Do one thing."""
        key, process = self.dice.choice(KEYS), self.process
        if not self.verbs:
            self.verbs = self.dice.sample(VERBS, len(VERBS))
        verb = self.verbs.pop()
        if verb == "plain":
            process.write(self.plain, f"plain-{process.process}", STREAM, [self.event(key)])
        elif verb == "batch":
            events = [self.event(key) for _ in range(3)]
            process.write(self.plain, f"plain-{process.process}", STREAM, events)
        elif verb == "named":
            process.write(self.named, f"id-{process.process}", STREAM, [self.event(key)])
        elif verb == "commit":
            pairs = [self.event(key) for key in KEYS]
            process.commit(self.alone, f"alone-{process.process}-{self.number}", {STREAM: pairs})
        elif verb == "joint":
            parts = {name: [self.event(key)] for name in (STREAM, OTHER)}
            process.commit(self.joint, f"joint-{process.process}-{self.number}", parts)
        elif verb == "update":
            _, value = self.event(key)
            changes = dict.fromkeys(self.dice.sample(KEYS, self.dice.choice((1, 2))), value)
            process.update(self.table, TABLE, changes)
        elif verb == "get":
            process.get(self.table, TABLE, KEYS)
        elif verb == "read":
            process.read(self.dice.choice((STREAM, OTHER)))
        else:
            self.upkeep(verb)

    def upkeep(self, verb: str) -> None:
        """Truncate, compact or sweep."""
        process, manager = self.process, self.process.manager
        if verb == "compact":
            process.ask("compact", lambda: manager.compact_stream(STREAM), stream=STREAM)
        elif verb == "sweep":
            process.ask("sweep", lambda: manager.sweep_stream(STREAM), stream=STREAM)
        else:
            cut = manager.tail(OTHER)

            def truncate() -> Any:
                manager.truncate_stream(OTHER, cut)
                return manager.head(OTHER)

            process.ask("truncate", truncate, cut_of, stream=OTHER, cut=cut_of(cut))


def slow_fsyncs(seed: int) -> None:
    """Let some fsyncs take as long as on a busy disk: others work meanwhile."""
    dice, fsync = random.Random(seed), os.fsync

    def slow(descriptor: int) -> None:
        if dice.random() < 0.2:
            time.sleep(0.02)
        fsync(descriptor)

    os.fsync = slow  # type: ignore[assignment]  # the package passes numbers


def main() -> None:
    """Work; the first process starts the second once all is created."""
    root, path, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    is_first = len(sys.argv) == 4
    process = Processes(StreamManager(root), SharedHistory(path), "first" if is_first else "second")
    slow_fsyncs(seed)
    if is_first:
        created(process)
        command = [sys.executable, "-m", "tests.sim.power.workload", root, path, str(seed + 1), "2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as second:
            assert second.stdout is not None
            second.stdout.readline()  # it is about to begin
            work(process, seed)
            code = second.wait()
        sys.exit(code)
    print("ready", flush=True)
    work(process, seed)


def work(process: Processes, seed: int) -> None:
    """Do all steps, then end as an application does."""
    with Work(process, seed) as doing:
        for _ in range(ROUNDS):
            doing.step()


if __name__ == "__main__":
    main()
