"""Every checker: a history that passes all of them breaks no promise that they know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.sim.checkers import (
    batches,
    byte_streams,
    checkpoints,
    conditions,
    copies,
    damage,
    fencing,
    heads,
    joint,
    key_values,
    linearizable,
    once,
    order,
    presence,
    readers,
    refused,
    seals,
    states,
    transactions,
    watermarks,
)
from tests.sim.recorded import Recorded, calls_of

CHECKERS: Mapping[str, Callable[[Sequence[Recorded]], None]] = {
    module.__name__.rpartition(".")[2]: module.check
    for module in (
        *(damage, refused, once, presence, order, batches, transactions, joint),
        *(readers, checkpoints, heads, key_values, conditions, fencing, watermarks, states),
        *(seals, byte_streams, copies),
        linearizable,
    )
}


def check(history: str | Sequence[str]) -> None:
    """Check a history by every checker; raise the first Violation."""
    check_calls(calls_of(history))


def check_calls(calls: Sequence[Recorded]) -> None:
    """Check the calls of a history by every checker; raise the first Violation."""
    for checker in CHECKERS.values():
        checker(calls)
