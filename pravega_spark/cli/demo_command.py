"""``pravega-spark demo``: a stream that is written, scaled, read and truncated while you watch."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

import click

from pravega_spark.cli.output import say
from pravega_spark.cli.root_option import new_root, root_option
from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.values.units import count_text, parse_duration_ms

STREAM, GROUP, TABLE = "demo/flights", "demo/dashboards", "demo/last-seen"
_CARRIERS = {"UA": 30, "B6": 28, "DL": 20, "AA": 12, "WN": 6, "AS": 3, "HA": 1}
_AIRPORTS = ("EWR", "JFK", "LGA", "ATL", "BOS", "DFW", "LAX", "ORD", "SFO", "SEA")
_MOST_PER_SECOND = 400
_STEP_SECONDS = 0.1
_SILENT_SECONDS = 60
_SIGNALLED = 128
_REMOVALS = 20


@click.command("demo")
@click.option("--seconds", "length", default="20 s", show_default=True, metavar="TIME")
@click.option("--keep", is_flag=True, help="Keep the root. Without --root it is a new folder.")
@root_option
def demo(length: str, keep: bool, root: str | None) -> int:
    """Write flights for a while; split and merge segments, read in a group, commit transactions.

    Everything is real: at the end the demo checks that each event was read exactly once. The first
    lines name commands to look at the root meanwhile.
    """
    seconds = parse_duration_ms("--seconds", length) / 1_000
    if seconds <= 0:
        raise click.UsageError(f"--seconds {length!r}: a demo needs some time, such as 20 s.")
    with _exit_at_sigterm(), _demo_root(root, keep) as name:
        is_right = _Demo(new_root(name).manager, seconds).run()
    return 0 if is_right else 1


@contextlib.contextmanager
def _exit_at_sigterm() -> Iterator[None]:
    """Make SIGTERM an exit that cleans up, as Ctrl-C is."""

    def leave(number: int, _: object) -> None:
        sys.exit(_SIGNALLED + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _demo_root(root: str | None, keep: bool) -> Iterator[str]:
    """Yield the given root, or a new folder that is removed at the end unless it is kept."""
    if root is not None:
        yield root
        return
    folder = tempfile.mkdtemp(prefix="pravega-demo-")
    try:
        yield folder
    finally:
        if not keep:
            _remove(folder)


def _remove(folder: str) -> None:
    """Remove the demo's folder, into which a thread in the background may still write."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)


class _Demo:
    """One run: what was written, and what was read."""

    def __init__(self, manager: StreamManager, seconds: float) -> None:
        self._manager = manager
        self._seconds = seconds
        self._began = time.monotonic()
        self._written: Counter[str] = Counter()
        self._read: Counter[str] = Counter()
        self._is_written = threading.Event()
        self._failures: list[BaseException] = []

    def run(self) -> bool:
        """Run the demo and return whether every event was read exactly once."""
        group = self._set_up()
        self._began = time.monotonic()
        roles: list[Callable[[], None]] = [self._write, self._book, lambda: self._serve(group)]
        threads = [threading.Thread(target=self._guarded, args=(role,)) for role in roles]
        for thread in threads:
            thread.start()
        try:
            self._scale()
            for thread in threads[:2]:
                thread.join()
        except BaseException as error:  # an interrupt: the roles end, too
            self._failures.append(error)
            raise
        finally:
            self._is_written.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]
        return self._report(group)

    def _set_up(self) -> ReaderGroup:
        manager, root = self._manager, self._manager.root.removeprefix("file://")
        manager.create_scope("demo")
        kept = RetentionPolicy.by_consumption(minimum="1 s")
        created = manager.create_stream(
            STREAM, StreamConfiguration(ScalingPolicy.fixed(2), kept, tags={"demo"})
        )
        self._say(
            f"{'Created' if created else 'Found'} stream {STREAM} in {root}. Look at it with:"
        )
        for command in (f"stream tail -f {STREAM}", f"reader-group describe {GROUP}", "serve"):
            say(f"         pravega-spark {command} --root {root}")
        manager.create_key_value_table(TABLE, KeyValueTableConfiguration(key_type="string"))
        start = {STREAM: manager.tail(STREAM)}
        if GROUP in manager.list_reader_groups("demo"):
            group = manager.reader_group(GROUP)
            group.reset(start)
            return group
        return manager.create_reader_group(GROUP, start, retention="automatic")

    def _say(self, text: str) -> None:
        say(f"{time.monotonic() - self._began:6.1f} s {text}")

    def _guarded(self, role: Callable[[], None]) -> None:
        try:
            role()
        except BaseException as error:
            self._failures.append(error)
            self._is_written.set()

    def _ticks(self, share: float = 1.0) -> Iterator[float]:
        """Yield the part of the run that is over, until this share of it is."""
        while not self._failures:
            part = (time.monotonic() - self._began) / self._seconds
            if part >= share:
                return
            yield part
            time.sleep(_STEP_SECONDS)

    # ------------------------------------------------------------------------------- the roles

    def _write(self) -> None:
        """Write flights at a rate that rises and falls."""
        chance = random.Random(2013)
        carriers, weights = list(_CARRIERS), list(_CARRIERS.values())
        with self._manager.create_writer(STREAM, writer_id="demo-ingest") as writer:
            number = writer.last_event_number
            for part in self._ticks():
                rate = _MOST_PER_SECOND * (0.15 + 0.85 * math.sin(math.pi * part) ** 2)
                for _ in range(max(1, round(rate * _STEP_SECONDS))):
                    number += 1
                    carrier = chance.choices(carriers, weights)[0]
                    flight = f"{carrier}{number}"
                    delay = round(chance.gauss(6, 20))
                    pair = chance.sample(_AIRPORTS, 2)
                    record = {"flight": flight, "from": pair[0], "to": pair[1], "delay": delay}
                    writer.write_event(json.dumps(record).encode(), routing_key=carrier)
                    self._written[flight] += 1

    def _book(self) -> None:
        """Commit a transaction of two events now and then, and abort every third."""
        committed = 0
        with self._manager.create_transactional_writer(STREAM) as writer:
            for number, _ in enumerate(self._ticks(0.9)):
                if number % 20 != 10:
                    continue
                with contextlib.suppress(_Changed), writer.begin_transaction() as txn:
                    pair = [f"rebooking {number} {side}" for side in ("off", "on")]
                    for text in pair:
                        txn.write_event(json.dumps({"flight": text}).encode(), routing_key="UA")
                    if number % 60 == 50:
                        raise _Changed
                if txn.status is not TransactionStatus.ABORTED:
                    committed += 1
                    self._written.update(pair)
        done = count_text(committed, "transaction")
        self._say(f"Committed {done}; of the aborted ones nothing is visible.")

    def _serve(self, group: ReaderGroup) -> None:
        """Read in the group, and keep the last event of each carrier in a key-value table."""
        with (
            group.create_reader("demo-reader") as reader,
            self._manager.key_value_table(TABLE) as table,
        ):
            silent_since = time.monotonic()
            while not self._failures:
                event = reader.read_next_event(timeout=0.2).event
                if event is not None:
                    self._read[json.loads(event.data)["flight"]] += 1
                    table.put(str(event.routing_key), event.data)
                    silent_since = time.monotonic()
                elif self._is_written.is_set() and self._is_read(time.monotonic() - silent_since):
                    return

    def _is_read(self, silent_seconds: float) -> bool:
        """Return True if nothing is missing, or if what is missing will not come any more."""
        return self._read.total() >= self._written.total() or silent_seconds > _SILENT_SECONDS

    def _scale(self) -> None:
        """Split the first segment in the middle of the load, and merge its parts after it."""
        deque(self._ticks(0.35), maxlen=0)
        segments = self._manager.segments(STREAM)
        low, high = segments[0].key_range.low, segments[0].key_range.high
        middle = (low + high) / 2
        epoch = self._manager.scale_stream(STREAM, [segments[0]], [(low, middle), (middle, high)])
        self._say(f"Split segment {segments[0]}: {', '.join(map(str, epoch.segments))}.")
        deque(self._ticks(0.75), maxlen=0)
        parts = self._manager.segments(STREAM)[:2]
        epoch = self._manager.scale_stream(STREAM, parts, [(low, high)])
        self._say(f"Merged {parts[0]} and {parts[1]}: {', '.join(map(str, epoch.segments))}.")

    # ------------------------------------------------------------------------------ the result

    def _report(self, group: ReaderGroup) -> bool:
        manager = self._manager
        wrong = {name for name in self._written | self._read if self._read[name] != 1}
        events = sum(self._written.values())
        self._say(
            f"Wrote {count_text(events, 'event')}, and read {sum(self._read.values()):,} in "
            f"group {GROUP}."
        )
        with group.create_reader("demo-checkpoint") as reader:
            checkpoint = group.initiate_checkpoint("demo")
            while not checkpoint.done():  # a reader answers a checkpoint while it reads
                reader.read_next_event(timeout=0.1)
        before = manager.stream_info(STREAM).events
        manager.retention(STREAM).run()
        kept = manager.stream_info(STREAM).events
        self._say(
            f"Retention deleted what the group has consumed: {before:,} -> "
            f"{count_text(kept, 'event')}."
        )
        with manager.key_value_table(TABLE) as table:
            seen = ", ".join(sorted(str(entry.key) for entry in table.entries()))
        self._say(f"Table {TABLE} has the last flight of {seen}.")
        if wrong:
            self._say(f"WRONG: {len(wrong)} events were not read exactly once: {sorted(wrong)[:5]}")
            return False
        self._say("Each event was read exactly once, over a split and a merge.")
        return True


class _Changed(Exception):
    """The customer changed their mind: the transaction aborts."""
