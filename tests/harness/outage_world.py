"""What works on one stream of an object store during an outage, in threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager

SCOPE, STREAM = "s", "s/t"
WRITERS = 3
_PAUSE_SECONDS = 0.01


class OutageWorld:
    """Writers, transactions, a follower and a group's reader, until :meth:`end`.

    ``acknowledged`` has each writer's events in the order of writing; a transaction's events are
    acknowledged together.
    """

    def __init__(self, root: str, **options: Any) -> None:
        self.root, self.options = root, options
        self.manager = StreamManager(root, storage_options=options)
        self.manager.create_scope(SCOPE)
        self.manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
        self.group = self.manager.create_reader_group(f"{SCOPE}/g", [STREAM])
        self.acknowledged: dict[str, list[str]] = {}
        self.followed: list[str] = []
        self.grouped: list[str] = []
        self.errors: list[BaseException] = []
        self._is_ending, self._has_ended = threading.Event(), threading.Event()
        self._threads = [
            *(self._start(self._write, f"w{number}") for number in range(WRITERS)),
            self._start(self._transact, "txn"),
            self._start(self._maintain),
        ]
        self._readers = [self._start(self._follow), self._start(self._read_group)]

    def _start(self, function: Callable[..., None], *arguments: str) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name=f"world-{function.__name__}", daemon=True)
        thread.start()
        return thread

    def run(self, seconds: float) -> None:
        """Let all work for a time; raise the first error at once."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.errors:
                raise self.errors[0]
            time.sleep(0.02)

    def counts(self) -> dict[str, int]:
        """Return how many events each writer has had acknowledged."""
        return {name: len(events) for name, events in self.acknowledged.items()}

    def wait_for_progress(self, before: dict[str, int], seconds: float) -> float:
        """Wait until each writer has more acknowledged events; return how long that took."""
        began = time.monotonic()
        while any(len(self.acknowledged[name]) <= count for name, count in before.items()):
            if self.errors:
                raise self.errors[0]
            assert time.monotonic() - began < seconds, (before, self.counts())
            time.sleep(0.005)
        return time.monotonic() - began

    def end(self, seconds: float) -> None:
        """End the writers, let the readers read all, and check every rule."""
        self._is_ending.set()
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), thread.name
        written = [event for events in self.acknowledged.values() for event in events]
        deadline = time.monotonic() + seconds
        while min(len(self.followed), len(self.grouped)) < len(written) and not self.errors:
            assert time.monotonic() < deadline, (len(self.followed), len(self.grouped))
            time.sleep(0.02)
        self._has_ended.set()
        self.manager.seal_stream(STREAM)
        for thread in self._readers:
            thread.join(seconds)
            assert not thread.is_alive(), thread.name
        if self.errors:
            raise self.errors[0]
        stored = [event.data.decode() for event in self.manager.read(STREAM)]
        for found in (stored, self.followed, self.grouped):
            assert len(found) == len(set(found)), "an event is there twice"
            assert set(found) == set(written)
            for name, events in self.acknowledged.items():
                assert [event for event in found if event.startswith(f"{name}:")] == events

    def _write(self, name: str) -> None:
        """Write with one key, some events in flight; a writer's last close awaits all of them."""
        done: list[str] = []
        self.acknowledged[name] = done
        with self.manager.create_writer(STREAM, writer_id=name) as writer:
            number = 0
            while not self._is_ending.is_set():
                events = [f"{name}:{number + step}" for step in range(5)]
                number += 5
                for result in [writer.write_event(event, name) for event in events]:
                    result.result()
                done += events
                time.sleep(_PAUSE_SECONDS)

    def _transact(self, name: str) -> None:
        done: list[str] = []
        self.acknowledged[name] = done
        with self.manager.create_transactional_writer(STREAM) as writer:
            number = 0
            while not self._is_ending.is_set():
                events = [f"{name}:{number + step}" for step in range(4)]
                number += 4
                with writer.begin_transaction() as txn:
                    for event in events[:2]:
                        txn.write_event(event, name)
                    txn.flush()
                    for event in events[2:]:
                        txn.write_event(event, name)
                done += events
                time.sleep(_PAUSE_SECONDS)

    def _maintain(self) -> None:
        while not self._is_ending.wait(0.2):
            self.manager.compact_stream(STREAM)
            self.manager.sweep_stream(STREAM)

    def _follow(self) -> None:
        reader = self.manager.stream(STREAM).create_reader()
        for event in reader.follow("earliest"):  # ends when the stream is sealed
            self.followed.append(event.data.decode())

    def _read_group(self) -> None:
        with self.group.create_reader("r") as reader:
            while not self._has_ended.is_set():
                read = reader.read_next_event(timeout=0.2)
                if read.event is not None:
                    self.grouped.append(read.event.data.decode())
