"""Histories of simple objects, drawn by a seed: of ones that keep their promises, and of bad ones.

A call takes effect at some step between its beginning and its end, or it has no end and may have no
effect. A bad object does a small part of its work on an old state, or does not do it.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.history import Call, History

Outcome = tuple[str, Any]
"""``ok`` and a value, or an error's name and what it told."""


@dataclass
class World:
    """Objects as one call after the other finds them."""

    table: dict[str, tuple[str, int]] = field(default_factory=dict)
    changes: int = 0
    token: str = ""
    updates: list[str] = field(default_factory=list)
    streams: dict[str, list[list[Any]]] = field(default_factory=lambda: {"s": [], "u": []})

    def update(self, changes: list[dict[str, Any]]) -> Outcome:
        for change in changes:
            expected, found = change.get("expected"), self.table.get(change["key"])
            if expected == "absent" and found is not None:
                return "BadKeyVersion", None
            if isinstance(expected, list) and (found is None or [0, found[1]] != expected):
                return "BadKeyVersion", None
        versions = []
        for change in changes:
            versions.append([0, self.changes])
            if change["value"] is None:
                self.table.pop(change["key"], None)
            else:
                self.table[change["key"]] = (change["value"], self.changes)
            self.changes += 1
        return "ok", versions

    def get(self, keys: list[str], fresh: bool) -> Outcome:
        found = [self.table.get(key) for key in keys]
        return "ok", [None if one is None else [one[0], [0, one[1]]] for one in found]

    def fence(self, stream: str, token: str, expected: str | None = None) -> Outcome:
        if expected is not None and expected != self.token:
            return "ConditionFailed", None
        self.token = token
        return "ok", None

    def fencing_token(self, stream: str) -> Outcome:
        return "ok", self.token

    def update_state(self, state: str, update: str) -> Outcome:
        before = list(self.updates)
        self.updates.append(update)
        return "ok", before

    def fetch_updates(self, state: str) -> Outcome:
        return "ok", list(self.updates)

    def write(
        self, stream: str, events: list[list[Any]], token: str | None = None, **_: Any
    ) -> Outcome:
        if token is not None and token != self.token:
            return "FencingTokenMismatch", {"token": self.token}
        places = []
        for key, event in events:
            offset = len(self.streams[stream])
            places.append([0, offset])
            self.streams[stream].append([0, offset, key, event])
        return "ok", places

    def write_if(self, stream: str, expected: dict[str, Any], **more: Any) -> Outcome:
        tail = len(self.streams[stream])
        if expected["position"] != [0, tail]:
            return "ConditionFailed", {"position": [0, tail]}
        return self.write(stream, **more)

    def read(self, stream: str) -> Outcome:
        events = copy.deepcopy(self.streams[stream])
        return "ok", {"from": {"0": 0}, "to": {"0": len(events)}, "events": events}


@dataclass
class _Running:
    call: Call
    act: Callable[[World], Outcome]
    outcome: Outcome | None = None


def drawn_history(seed: int, *, bad: bool, calls: int = 24, processes: int = 4) -> History:
    """Return a history of up to four processes; a bad one may still keep all promises."""
    dice = random.Random(seed)
    world, history = World(), History(seed=seed)
    past: deque[World] = deque([copy.deepcopy(world)], maxlen=4)
    running: dict[str, _Running] = {}
    kind = dice.choice((_table, _fence, _state, _stream, _joint))
    begun = 0
    while begun < calls or running:
        process = f"p{dice.randrange(processes)}"
        mine = running.get(process)
        if mine is None:
            if begun < calls:
                begun += 1
                operation, arguments, act = kind(dice, begun, world)
                if "staged" in arguments:
                    staged = {"streams": arguments.pop("staged"), **arguments}
                    history.invoke(process, "stage", **staged).ok()
                call = history.invoke(process, operation, **arguments)
                running[process] = _Running(call, act)
        elif mine.outcome is None:
            if dice.random() < 0.1:  # it may have had its effect, and has no end
                if dice.random() < 0.5:
                    mine.act(world)
                    past.append(copy.deepcopy(world) if bad else world)
                mine.call.unknown()
                del running[process]
                continue
            if bad and dice.random() < 0.15:
                old = copy.deepcopy(dice.choice(past))
                mine.outcome = mine.act(old)
                if dice.random() < 0.5:
                    world = old
            else:
                mine.outcome = mine.act(world)
            past.append(copy.deepcopy(world) if bad else world)
        else:
            name, value = mine.outcome
            if name == "ok":
                mine.call.ok(value)
            else:
                mine.call.failed(name, value)
            del running[process]
    return history


Drawn = tuple[str, dict[str, Any], Callable[[World], Outcome]]


def _asked(operation: str, **arguments: Any) -> Drawn:
    return operation, arguments, lambda world: getattr(world, operation)(**arguments)


def _table(dice: random.Random, number: int, now: World) -> Drawn:
    keys = dice.sample("abc", dice.choice((1, 1, 2)))
    if dice.random() < 0.4:
        operation, arguments, _ = _asked("get", keys=keys, fresh=True)
        act = lambda world: world.get(keys, True)  # noqa: E731
    else:
        changes: list[dict[str, Any]] = []
        for key in keys:
            found = now.table.get(key)
            value = None if dice.random() < 0.15 else f"{key}{number}"
            change = {"key": key, "value": value}
            if dice.random() < 0.5:
                change["expected"] = "absent" if found is None else [0, found[1]]  # type: ignore[assignment]
            changes.append(change)
        operation, arguments = "update", {"changes": changes}
        act = lambda world: world.update(changes)  # noqa: E731
    return operation, {"table": "t", **arguments}, act


def _fence(dice: random.Random, number: int, now: World) -> Drawn:
    drawn = dice.random()
    if drawn < 0.3:
        token = f"t{number}"
        more = {"expected": now.token} if dice.random() < 0.5 else {}
        return _asked("fence", stream="s", token=token, **more)
    if drawn < 0.5:
        return _asked("fencing_token", stream="s")
    events = [["k", f"e{number}"]]
    return _asked("write", stream="s", writer=f"w{number}", events=events, token=now.token)


def _state(dice: random.Random, number: int, now: World) -> Drawn:
    if dice.random() < 0.5:
        return _asked("fetch_updates", state="s")
    return _asked("update_state", state="s", update=f"u{number}")


def _stream(dice: random.Random, number: int, now: World) -> Drawn:
    drawn = dice.random()
    keys = dice.sample("kl", dice.choice((1, 2)))
    events = [[key, f"{key}{number}"] for key in keys]
    if drawn < 0.3:
        return _asked("read", stream="s")
    if drawn < 0.6:
        return _asked("write", stream="s", writer=f"w{number}", events=events)
    position = [0, len(now.streams["s"]) + dice.choice((0, 0, 0, 1))]
    return _asked(
        "write_if", stream="s", writer=f"w{number}", events=events, expected={"position": position}
    )


def _joint(dice: random.Random, number: int, now: World) -> Drawn:
    """A write is a transaction over both streams, which a bad world may show in part."""
    if dice.random() < 0.5:
        return _asked("read", stream=dice.choice("su"))
    streams = {name: [["k", f"{name}{number}"]] for name in "su"}
    transaction = f"t{number}"

    def act(world: World) -> Outcome:
        for name, events in streams.items():
            world.write(name, events)
        return "ok", None

    return "commit", {"staged": streams, "transaction": transaction}, act
