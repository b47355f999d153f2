"""Random programs of processes that end with open writers, run by the module's own command line.

A step is an actor, a verb and the seed of its dice. The actors are threads of the process that
ends, and each makes its steps in their order: ``main``, and ``thread``, which begins before it;
``late``, which works once the main thread has ended, and ``later``, which a late one begins;
``pool``, whose steps are tasks of a pool that nobody shuts down. ``parent`` is the process before,
which starts the one that ends.

What they write is noted in a journal: ``?`` before a call, ``!`` once it has returned, ``-`` and
the error if it was refused.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pravega_spark import StreamConfiguration, StreamManager
from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.writing import process_exit
from pravega_spark.key_value.configuration import KeyValueTableConfiguration

Step = tuple[str, str, int]
METHODS = ("plain", "os.fork", "fork", "forkserver", "spawn")
ACTORS = ("main", "thread", "thread 2", "late", "late 2", "later", "pool", "pool")
VERBS = ("events", "events", "chain", "chain", "table", "bytes", "collected", "flush", "wait")
IN_PARENT = ("events", "chain", "table", "bytes", "flush", "hold", "hold")
STREAMS = ("s/a", "s/b")
BYTES = ("s/bytes", "s/parent-bytes")
"""One for each process, since the bytes of two writers mix."""
EXIT_SECONDS = 200.0
"""The bound of an end, if it is not short: no program needs so long, however slow the machine."""
LIMIT_SECONDS = 60
"""The time that each process has in all."""
SHORT_SECONDS = 0.2


def drawn_program(seed: int, method: str) -> list[Step]:
    """Return the steps of one program."""
    dice = random.Random(f"{seed} {method}")

    def drawn(actors: Sequence[str], verbs: Sequence[str]) -> Step:
        return dice.choice(actors), dice.choice(verbs), dice.randrange(1 << 30)

    steps = [drawn(ACTORS, VERBS) for _ in range(dice.randint(4, 14))]
    more = [
        drawn(ACTORS, ("inherited",)) for _ in range(dice.randrange(3) if "fork" in method else 0)
    ]
    if dice.random() < 0.5:
        more.append(drawn(("main",), ("exit", "fail")))
    if dice.random() < 0.25:
        more.append(drawn(("main", "late"), ("short slow", "short endless")))
    for step in more:
        steps.insert(dice.randrange(len(steps) + 1), step)
    parent = [drawn(("parent",), IN_PARENT) for _ in range(dice.randrange(6))]
    return steps if method == "plain" else [*parent, *steps]


def make_root(root: str) -> StreamManager:
    """Make what the programs write to."""
    manager = StreamManager(root)
    manager.create_scope("s")
    for name in STREAMS:
        manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(2)))
    for name in (*BYTES, "s/state", "s/other"):
        manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1)))
    manager.create_key_value_table("s/table", KeyValueTableConfiguration("string"))
    return manager


class Process:
    """The handles of one process, each opened at its first use, and what its actors do."""

    def __init__(self, root: str, journal: str, bytes_stream: str) -> None:
        self._manager = StreamManager(root)
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._bytes = bytes_stream
        self._lock = threading.RLock()
        self.opened: dict[str, Any] = {}
        self.is_over = threading.Event()

    def make(self, actor: str, steps: Sequence[Step]) -> None:
        for number, (_, verb, seed) in enumerate(steps):
            getattr(self, verb.replace(" ", "_"))(f"{actor}/{number}/{seed}", random.Random(seed))

    def call(self, function: Callable[[], Any], *words: object) -> Any:
        """Make a call between its notes."""
        text = " ".join(map(str, words))
        self._note(f"? {text}")
        try:
            answer = function()
        except Exception as error:
            self._note(f"- {text} {type(error).__name__}")
            return None
        self._note(f"! {text}")
        return answer

    def _note(self, text: str) -> None:
        os.write(self._journal, f"{text}\n".encode())

    def handle(self, name: str) -> Any:
        with self._lock:
            if name not in self.opened:
                self.opened[name] = self._new(name)
            return self.opened[name]

    def _new(self, name: str) -> Any:
        manager = self._manager
        if name == "table":
            return manager.key_value_table("s/table")
        if name == "bytes":
            return manager.create_byte_writer(self._bytes)
        if name == "joint":
            return manager.create_joint_writer(["s/a", "s/other"]).begin_transaction()
        if name == "state":
            state = manager.state_synchronizer("s/state", lambda state, update: state + update)
            state.initialize(0)
            return state
        return manager.create_writer(name)

    # -------------------------------------------------------------------------------- writes

    def events(self, key: str, dice: random.Random) -> None:
        stream = dice.choice(STREAMS)
        self._write_some(self.handle(stream), stream, key, dice)

    def collected(self, key: str, dice: random.Random) -> None:
        """Write with a writer that nobody keeps."""
        stream = dice.choice(STREAMS)
        self._write_some(self._new(stream), stream, key, dice)

    def _write_some(self, writer: Any, stream: str, key: str, dice: random.Random) -> None:
        for n in range(dice.choice((1, 3, 40))):
            self.write(writer, stream, key, n)
            if dice.random() < 0.02:
                time.sleep(0.02)

    def write(self, writer: Any, stream: str, key: str, n: int) -> Any:
        return self.call(lambda: writer.write_event(f"{key} {n}", key), stream, key, n)

    def chain(self, key: str, dice: random.Random, length: float = 0) -> None:
        """Write an event, whose callback writes the next one."""
        length = length or dice.choice((2, 10, 30))
        pause, streams = dice.random() / 200, dice.sample(STREAMS, dice.choice((1, 2)))

        def write(n: int) -> None:
            stream = streams[n % len(streams)]
            future = self.write(self.handle(stream), stream, key, n) if n < length else None
            if future is not None:
                future.add_done_callback(lambda _: write_later(n + 1))

        def write_later(n: int) -> None:
            time.sleep(pause)
            write(n)

        write(0)

    def table(self, key: str, dice: random.Random) -> None:
        table = self.handle("table")
        for n in range(dice.choice((1, 10))):
            self.call(partial(table.put, key, str(n)), "s/table", key, n)

    def bytes(self, key: str, dice: random.Random) -> None:
        writer = self.handle("bytes")
        for n in range(dice.choice((1, 10, 50))):
            row = f"{key} {n}\n".encode()
            self.call(partial(writer.write, row), self._bytes, key, n)

    # ------------------------------------------------------------------------- everything else

    def flush(self, key: str, dice: random.Random) -> None:
        opened = dict(self.opened)
        for name in dice.sample(sorted(opened), min(len(opened), 2)):
            if name not in ("state", "joint"):
                self.call(opened[name].flush, "flush", name, 0)

    def wait(self, key: str, dice: random.Random) -> None:
        time.sleep(dice.choice((0.001, 0.02, 0.1)))

    def inherited(self, key: str, dice: random.Random) -> None:
        """Use what the parent opened, and one of the same kind that this process opens."""
        before = before_fork[0].opened if before_fork else {}
        calls: dict[str, Callable[[Any], Any]] = {
            "state": lambda state: state.update_state(lambda _, updates: updates.append(1)),
            "joint": lambda joint: joint.commit(),
            "table": lambda table: table.put(key, "inherited"),
            "bytes": lambda writer: writer.write(b"inherited\n"),
            **dict.fromkeys(STREAMS, lambda writer: writer.write_event("inherited 0", "k")),
        }
        for name in before:
            self.call(partial(calls[name], before[name]), "inherited", name, 0)
        if "state" in before:
            self.call(lambda: calls["state"](self.handle("state")), "own", "state", 0)

    def hold(self, key: str, dice: random.Random) -> None:
        """Be inside a call of a shared object until the process that is forked has ended."""
        name, begun = dice.choice(("state", "joint")), threading.Event()
        if name in self.opened:  # and held
            return
        shared = self.handle(name)

        def work() -> None:
            with shared._lock:
                begun.set()
                self.is_over.wait()

        threading.Thread(target=work).start()
        begun.wait()

    def short_slow(self, key: str, dice: random.Random) -> None:
        """Make the storage too slow for the time that the end may take."""
        process_exit.WRITER_EXIT_SECONDS = SHORT_SECONDS  # type: ignore[attr-defined]
        put = LocalStore.put_if_absent

        def put_late(*arguments: Any, **options: Any) -> Any:
            time.sleep(2 * SHORT_SECONDS)
            return put(*arguments, **options)

        LocalStore.put_if_absent = put_late  # type: ignore[method-assign]

    def short_endless(self, key: str, dice: random.Random) -> None:
        """Write in callbacks for ever, which the end does not wait for."""
        process_exit.WRITER_EXIT_SECONDS = SHORT_SECONDS  # type: ignore[attr-defined]
        self.chain(key, dice, float("inf"))

    def exit(self, key: str, dice: random.Random) -> None:
        sys.exit(3)

    def fail(self, key: str, dice: random.Random) -> None:
        raise ValueError("the main function fails")


before_fork: list[Process] = []
"""The process that forked this one."""
kept: list[object] = []
"""What lives until the process ends."""


def end(root: str, journal: str, steps: Sequence[Step]) -> None:
    """Make the steps of all actors but the parent; the process ends when this returns."""
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    process_exit.WRITER_EXIT_SECONDS = EXIT_SECONDS  # type: ignore[attr-defined]
    process, pool = Process(root, journal, BYTES[0]), ThreadPoolExecutor(2)
    kept.extend((process, pool))
    own: dict[str, list[Step]] = {actor: [] for actor in ("main", *ACTORS)}
    for step in steps:
        own.get(step[0], []).append(step)

    def make(actor: str) -> None:
        if actor in ("late", "late 2", "begins later"):
            threading.main_thread().join()
        if actor == "begins later":
            threading.Thread(target=make, args=("later",)).start()
        else:
            process.make(actor.replace(" ", "-"), own[actor])

    for step in own["pool"]:
        pool.submit(process.make, f"pool-{step[2]}", [step])
    for actor, steps_of_it in own.items():
        if steps_of_it and actor not in ("main", "pool"):
            begun = "begins later" if actor == "later" else actor
            threading.Thread(target=make, args=(begun,)).start()
    make("main")


def main(root: str, journal: str, method: str, program: str) -> None:
    """Make the parent's steps, if there is one, and start the process that ends."""
    steps: list[Step] = json.loads(program)
    if method == "plain":
        end(root, journal, steps)
        return
    process_exit.WRITER_EXIT_SECONDS = EXIT_SECONDS  # type: ignore[attr-defined]
    parent = Process(root, journal, BYTES[1])
    before_fork.append(parent)
    parent.make("parent", [step for step in steps if step[0] == "parent"])
    if method == "os.fork":
        number = os.fork()
        if not number:
            end(root, journal, steps)
            return
    else:
        context: Any = multiprocessing.get_context(method)
        child = context.Process(target=end, args=(root, journal, steps))
        child.start()
    # A child that inherited the watchdog could not begin its own.
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
    if method == "os.fork":
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    else:
        child.join()
        status = child.exitcode
    parent.is_over.set()
    sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
