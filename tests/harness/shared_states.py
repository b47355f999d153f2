"""A shared state, and a reader of a group, in the hands of several threads."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Any, ClassVar

from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    ObjectClosed,
    ReinitializationRequired,
    StoreError,
)
from tests.harness.shared_handles import Call, Errors, World


class StateWorld(World):
    """A synchronizer whose state is the list of all updates."""

    verbs = ("update", "update", "blind", "fetch", "state", "state", "compact", "close")
    path = "s/t/events"

    def open(self) -> None:
        self.shared = self._synchronizer()
        self.shared.initialize([])

    def _synchronizer(self) -> Any:
        return self.manager.state_synchronizer("s/t", lambda state, update: [*state, update])

    def update(self, call: Call, dice: random.Random) -> Any:
        call.values = (self.value(),)
        return self.shared.update_state(lambda state, updates: self._add(call, state, updates))

    def _add(self, call: Call, state: list[str], updates: list[str]) -> list[str]:
        updates.extend(call.values)
        return list(state)

    def blind(self, call: Call, dice: random.Random) -> None:
        call.values = tuple(self.value() for _ in range(2))
        self.shared.update_state_unconditionally(call.values)

    def fetch(self, call: Call, dice: random.Random) -> None:
        self.shared.fetch_updates()

    def state(self, call: Call, dice: random.Random) -> Any:
        return self.shared.get_state()

    def compact(self, call: Call, dice: random.Random) -> None:
        self.shared.compact()

    def close(self, call: Call, dice: random.Random) -> None:
        self.shared.close()

    def check(self) -> None:
        super().check()
        fresh = self._synchronizer()
        fresh.fetch_updates()
        final = fresh.get_state()
        assert len(set(final)) == len(final), f"doubled: {final}"
        at = {value: place for place, value in enumerate(final)}
        changes = self.of("update", "blind")
        for call in changes:
            if call.is_good:
                assert all(value in at for value in call.values), f"{call} is not in {final}"
            elif isinstance(call.error, (ObjectClosed, StoreError)):
                assert not any(value in at for value in call.values), f"{call} is in {final}"
        for call in self.of("update", good=True):
            assert call.answer == final[: at[call.values[0]]], f"{call} on another state"
        for first, second in itertools.permutations(self.of("update", "blind", good=True), 2):
            if first.before(second):
                assert at[first.values[-1]] < at[second.values[0]]
        states = [call for call in self.of("state", good=True) if call.answer is not None]
        for call in states:
            assert call.answer == final[: len(call.answer)], f"{call} is no state: {call.answer}"
            for one in self.of("update", good=True):
                if one.before(call):
                    assert one.values[0] in call.answer, f"{call} lacks {one}"
        for first, second in itertools.permutations(states, 2):
            assert not first.before(second) or len(first.answer) <= len(second.answer)
        for end in self.of("close", good=True):
            late = [c for c in changes if c.is_good and end.before(c)]
            assert not late, f"{late} after {end}"

    def child_calls(self) -> dict[str, Callable[[], object]]:
        shared = self.shared
        return {
            "update": lambda: shared.update_state(lambda state, updates: updates.append("x")),
            "blind": lambda: shared.update_state_unconditionally(["x"]),
        }


class ReaderWorld(World):
    """A reader of a group: one thread reads, the others keep it alive, look at it, and write."""

    verbs = ("keep_alive", "position", "lag", "write", "cuts", "checkpoint")
    reading: ClassVar[tuple[str, ...]] = ("read", "read", "read", "read", "batch", "close")
    errors = (ObjectClosed, StoreError, CommitUnknown, ReinitializationRequired)

    def open(self) -> None:
        self.manager.create_reader_group("s/g", {"s/t": "earliest"})
        self.group = self.manager.reader_group("s/g")
        self.reader = self.group.create_reader("r")
        self.writer = self.manager.create_writer("s/t")
        self.got: list[str] = []
        for _ in range(3):
            self.writer.write_event(self.value()).result()

    def call(self, thread: int, verb: str, dice: random.Random) -> None:
        """The first thread reads; the verbs of the others are those that any thread may call."""
        if thread == 0:
            verb = dice.choice(self.reading)
        super().call(thread, verb, dice)

    def read(self, call: Call, dice: random.Random) -> None:
        event = self.reader.read_next_event(timeout=0).event
        if event is not None:
            self.got.append(event.data.decode())

    def batch(self, call: Call, dice: random.Random) -> None:
        found = self.reader.read_events(2, timeout=0).events
        self.got += [data.decode() for data in found.column("event").to_pylist()]

    def keep_alive(self, call: Call, dice: random.Random) -> None:
        self.reader.keep_alive()

    def position(self, call: Call, dice: random.Random) -> None:
        str(self.reader.position)

    def lag(self, call: Call, dice: random.Random) -> None:
        call.answer = self.group.lag().events

    def cuts(self, call: Call, dice: random.Random) -> None:
        self.group.stream_cuts()

    def checkpoint(self, call: Call, dice: random.Random) -> None:
        self.group.reader_offline("nobody")

    def write(self, call: Call, dice: random.Random) -> None:
        call.values = (self.value(),)
        self.writer.write_event(call.values[0]).result()

    def close(self, call: Call, dice: random.Random) -> None:
        self.reader.close()

    def allowed(self, call: Call) -> Errors:
        return (*super().allowed(call), *((LookupError, ValueError, IllegalState)
                if call.verb == "checkpoint" else ()))  # fmt: skip

    def check(self) -> None:
        super().check()
        left = []
        with contextlib.suppress(ReinitializationRequired):
            self.reader.close()
        closes = self.of("close", good=True)
        if not closes:
            self.group.reader_offline("r")
        with self.group.create_reader("next") as reader:
            while (event := reader.read_next_event(timeout=0).event) is not None:
                left.append(event.data.decode())
        written = [event.data.decode() for event in self.manager.read("s/t")]
        assert set(self.got) | set(left) == set(written), f"{self.got}, {left}, {written}"
        if all(call.error is None for call in self.calls):
            assert self.got + left == written, f"{self.got}, {left}, {written}"

    def child_calls(self) -> dict[str, Callable[[], object]]:
        return {"read": lambda: self.reader.read_next_event(0), "keep": self.reader.keep_alive}
