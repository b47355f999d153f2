"""Plans for a FaultyStore: explicit rules, or random faults from a seed."""

from __future__ import annotations

import fnmatch
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.harness.faulty_store import Fault

WRITE_FAULTS: Mapping[str, tuple[Fault, ...]] = {
    "put_if_absent": (
        Fault.REFUSE,
        Fault.LOSE_ANSWER,
        Fault.LOSE_REQUEST,
        Fault.RESEND,
        Fault.DELAY,
    ),
    "put": (Fault.REFUSE, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.DELAY),
    "writer": (Fault.REFUSE, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.DELAY),
    "delete": (Fault.REFUSE, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.DELAY),
}
"""The faults that any network can cause at a write; TORN and BIT_FLIP need a bad disk."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The fault of the ``nth`` call (from 1; 0: of each) of ``operation`` on a key like ``keys``.

    ``operation`` and ``keys`` are globs; ``*`` also matches slashes. If the fault is an exception,
    the store raises it instead of the operation.
    """

    fault: Fault | Exception
    operation: str = "*"
    keys: str = "*"
    nth: int = 0

    def covers(self, operation: str, key: str) -> bool:
        """Return whether the rule counts this call."""
        return fnmatch.fnmatchcase(operation, self.operation) and fnmatch.fnmatchcase(
            key, self.keys
        )


@dataclass(slots=True)
class _Counted:
    rule: Rule
    calls: int = 0


class Rules:
    """An explicit plan: the first rule that applies to a call gives its fault."""

    def __init__(self, *rules: Rule):
        """Start with these rules; a test may add more while the store is in use."""
        self._counted: list[_Counted] = []
        self._lock = threading.Lock()
        self.add(*rules)

    def add(self, *rules: Rule) -> None:
        """Append rules; each counts its calls from now on."""
        self._counted.extend(_Counted(rule) for rule in rules)

    def clear(self) -> None:
        """Remove all rules: later calls have no fault."""
        self._counted.clear()

    def __call__(self, operation: str, key: str) -> Fault | Exception | None:
        """Return the fault of this call."""
        decided: Fault | Exception | None = None
        with self._lock:
            for counted in self._counted:
                if counted.rule.covers(operation, key):
                    counted.calls += 1
                    if decided is None and counted.rule.nth in (0, counted.calls):
                        decided = counted.rule.fault
        return decided


class RandomFaults:
    """A seeded plan: each write fails with ``probability``, by one of its operation's faults."""

    def __init__(
        self,
        source: random.Random,
        probability: float,
        faults: Mapping[str, Sequence[Fault]] = WRITE_FAULTS,
    ):
        """Take the random source, the probability, and the possible faults of each operation."""
        self._source = source
        self.probability = probability
        self._faults = faults

    def __call__(self, operation: str, key: str) -> Fault | None:
        """Return the fault of this call."""
        possible = self._faults.get(operation, ())
        if not possible or self._source.random() >= self.probability:
            return None
        return self._source.choice(list(possible))
