"""Linearizability by search: is there one order of the calls that explains every answer?

The algorithm is Wing and Gong's with Lowe's memory of what was tried ("Testing for
linearizability", 2017): take any call that no unexplained call ended before, see whether the object
answers so, and go back where nothing fits. It is small and slow; ``tests/sim/porcupine`` is the
same question in a checker that is not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

State = Hashable
Step = Callable[[State], State | None]
"""The state after a call, or None where the object would have answered otherwise."""
_ENDLESS = 1 << 62


@dataclass(frozen=True)
class Operation:
    """A call to one object. One of unknown outcome has no end, and need not have happened."""

    began: int
    ended: int | None
    step: Step
    shown: str


@dataclass(frozen=True)
class Object:
    """What calls share: a table, a segment, a fence, a state."""

    name: str
    initial: State
    operations: Sequence[Operation]


def is_linearizable(one: Object) -> bool:
    """Return whether the calls of an object have an order that explains all answers."""
    operations = sorted(one.operations, key=lambda operation: operation.began)
    ends = [_ENDLESS if o.ended is None else o.ended for o in operations]
    every = (1 << len(operations)) - 1
    owed = sum(1 << n for n, operation in enumerate(operations) if operation.ended is not None)
    seen: set[tuple[int, State]] = set()
    waiting: list[tuple[int, State]] = [(0, one.initial)]
    while waiting:
        done, state = waiting.pop()
        if done & owed == owed:
            return True  # those without an end may never have happened
        first_end = _ENDLESS
        candidates = []
        left = every & ~done
        while left:
            lowest = left & -left
            number = lowest.bit_length() - 1
            left ^= lowest
            if operations[number].began > first_end:
                break
            candidates.append(number)
            first_end = min(first_end, ends[number])
        for number in reversed(candidates):
            if operations[number].began > first_end:
                continue
            after = operations[number].step(state)
            if after is None:
                continue
            node = (done | 1 << number, after)
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return False
