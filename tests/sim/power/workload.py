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

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.errors import PravegaSparkError
from tests.harness.large_streams import lower_limits
from tests.sim import large_events
from tests.sim.answers import cut_of, position_of
from tests.sim.history import SharedHistory
from tests.sim.recording import Processes, text_of

STREAM, OTHER, LARGE, BYTES, TABLE, GROUP = "s/t", "s/u", "s/large", "s/bytes", "s/k", "s/g"
STREAMS = (STREAM, OTHER, LARGE, BYTES)
KEYS = ("k0", "k1", "k2")
VERBS = (
    *("plain", "named", "batch", "commit", "joint", "update", "read", "get", "large"),
    *("bytes", "next", "truncate", "compact", "sweep"),
)
ROUNDS = 20
LARGE_BYTES = 20_000
"""An event of more is a large one, so that records of what is written stay small."""


def created(process: Processes) -> None:
    """Create all that the processes use, unless it is there."""
    manager = process.manager
    process.ask("create", lambda: manager.create_scope("s"), scope="s")
    two = StreamConfiguration(ScalingPolicy.fixed(2))
    for name in (STREAM, OTHER):
        process.ask("create", partial(manager.create_stream, name, two), stream=name)
    one = StreamConfiguration(ScalingPolicy.fixed(1))
    for name in (LARGE, BYTES):
        process.ask("create", partial(manager.create_stream, name, one), stream=name)
    process.ask("create", lambda: manager.create_reader_group(GROUP, [STREAM]), group=GROUP)
    process.ask("create", lambda: manager.create_key_value_table(TABLE), table=TABLE)


def read(process: Processes, name: str) -> None:
    """Read a stream from its head to its tail."""
    if name != BYTES:
        process.read(name, large_events.text_of if name == LARGE else text_of)
        return

    def all_bytes() -> Any:
        with process.manager.create_byte_reader(BYTES, follow=False) as reader:
            return {"from": reader.tell(), "text": reader.read().decode()}

    process.ask("read_bytes", all_bytes, dict, stream=BYTES)


def joined(process: Processes, reader_id: str) -> Any:
    """Return a reader of the group; its lease outlives the test."""
    group = process.manager.reader_group(GROUP)
    return good(
        process.ask(
            "join",
            lambda: group.create_reader(reader_id, lease="1 hour"),
            group=GROUP,
            reader=reader_id,
            acknowledge="next",
            streams=[STREAM],
        )
    )


def good(found: Any) -> Any:
    """Return what a call returned; raise what it raised."""
    if isinstance(found, PravegaSparkError):
        raise found
    return found


def ask_next(process: Processes, reader: Any, reader_id: str, timeout: float = 0.0) -> str | None:
    """Ask for the group's next event; return its text, or None if there is none."""

    def told(found: Any) -> Any:
        if found.event is None:
            return None
        at, event = position_of(found.event), text_of(found.event.data)
        return {"stream": STREAM, "position": at, "event": event}

    ask = partial(reader.read_next_event, timeout)
    event = good(process.ask("next", ask, told, group=GROUP, reader=reader_id)).event
    return None if event is None else text_of(event.data)


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
        self.large = manager.create_writer(LARGE, large_events=True)
        self.bytes = manager.create_byte_writer(BYTES, f"id-{name}")
        self.reader = joined(process, name)

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *_: object) -> None:
        process = self.process
        process.ask("leave", self.reader.close, group=GROUP, reader=process.process)
        for one in (self.plain, self.named, self.alone, self.joint, self.table, self.large):
            one.close()
        self.bytes.close()

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
            for name in STREAMS:
                read(process, name)
        elif verb == "large":
            self.write_large(key)
        elif verb == "bytes":
            self.write_bytes()
        elif verb == "next":
            for _ in range(5):
                ask_next(process, self.reader, process.process)
        else:
            self.upkeep(verb)

    def write_large(self, key: str) -> None:
        """Write a large event."""
        self.number += 1
        name = self.process.process
        stored = partial(large_events.large_event, least=LARGE_BYTES + 1)
        self.process.write(self.large, name, LARGE, [(key, f"{name}-{self.number}")], stored)

    def write_bytes(self) -> None:
        """Write a token to the stream of bytes."""
        self.number += 1
        who = f"id-{self.process.process}"
        text = f"{who}-{self.number}".ljust(5_000, "_") + ";"

        def write() -> None:
            self.bytes.write(text.encode())
            self.bytes.flush()

        self.process.ask("write_bytes", write, stream=BYTES, writer=who, text=text)

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


def smaller_large_events(patch: pytest.MonkeyPatch) -> None:
    """Let an event be a large one from a few blocks on."""
    lower_limits(patch, threshold=LARGE_BYTES, block=4_096, piece=8_192)


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
    smaller_large_events(pytest.MonkeyPatch())
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
