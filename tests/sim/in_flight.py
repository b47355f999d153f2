"""Which calls are in flight at the same time, and on which object: counted for the coverage.

A count ``pair s/t: commit & write`` says how often one of them began while the other was under way,
``asked s/t: commit by j`` that programs of that letter made such a call, and that it took its time;
``shared s/t`` that several programs of a seed asked for that object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sim.processes import Process


@dataclass
class Asked:
    """A call as it begins."""

    process: Process
    operation: str
    arguments: Mapping[str, Any]
    step: int
    objects: frozenset[str] = field(default=frozenset())

    @property
    def program(self) -> str:
        """The program, in all of its processes; its first letter is that of the catalog."""
        return self.process.name.partition(".")[0]


class InFlight:
    """The calls of a seed that have begun and not ended."""

    def __init__(self, coverage: Counter[str]) -> None:
        self._coverage = coverage
        self._open: dict[int, Asked] = {}
        self._staged: dict[str, frozenset[str]] = {}
        """The streams of transactions."""
        self._programs: dict[str, set[str]] = {}
        """Those that have asked for an object."""

    def begin(self, number: int, asked: Asked) -> None:
        """A call begins; calls of killed processes are in flight no more."""
        asked.objects = self._objects(asked.arguments)
        for name in asked.objects:
            programs = self._programs.setdefault(name, set())
            if asked.program not in programs and programs:
                self._coverage[f"shared {name}"] += 1
            programs.add(asked.program)
        for other in self._open.values():
            for name in asked.objects & other.objects if other.process.alive else ():
                self._coverage[pair(name, asked.operation, other.operation)] += 1
        self._open[number] = asked

    def end(self, number: int, step: int) -> None:
        """A call has ended."""
        asked = self._open.pop(number, None)
        if asked is not None and step > asked.step:
            for name in asked.objects:
                letter = asked.program[0]
                self._coverage[f"asked {name}: {asked.operation} by {letter}"] += 1

    def _objects(self, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the copy, the group, the table, the state or the streams of a call."""
        transaction, streams = arguments.get("transaction"), arguments.get("streams")
        if transaction is not None:
            if streams is not None:
                self._staged[transaction] = frozenset(streams)
            return self._staged.get(transaction, frozenset())
        for kind in ("copy", "group", "table", "state", "stream"):
            if kind in arguments:
                return frozenset((arguments[kind],))
        return frozenset()


def pair(name: str, one: str, other: str) -> str:
    """Return the name of a count of two verbs that were in flight at once."""
    return f"pair {name}: {' & '.join(sorted((one, other)))}"
