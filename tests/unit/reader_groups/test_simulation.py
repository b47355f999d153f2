from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pravega_spark.errors import PravegaSparkError
from pravega_spark.reader_groups import assignment, checkpoints, segment_transitions
from tests.harness.simulated_group import SimulatedGroup, step
from tests.harness.tiers import sized

EVERYTHING = {
    "checkpoint completed",
    "deletion",
    "died",
    "fenced",
    "left",
    "marker",
    "read",
    "repeated",
    "reset",
    "truncated",
    "truncation",
    "zombie",
}


SEEDS = sized(100, 5_000, "GROUP_SEEDS")
"""Histories of each of the two parts."""


def run(seed: int, steps: int = 160) -> dict[str, int]:
    dice = Random(seed)
    group = SimulatedGroup(dice, streams=dice.choice((1, 1, 2)), with_ends=dice.random() < 0.3)
    for _ in range(dice.randrange(steps)):
        step(group)
    group.drain()
    return group.counts


@pytest.mark.long
@pytest.mark.parametrize("part", range(2))
def test_histories_keep_every_promise_of_a_group(part: int) -> None:
    met: Counter[str] = Counter()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        met.update(run(seed))
    assert set(met) >= EVERYTHING


def acquire_while_owing(acquire: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, reader: str, number: int) -> Any:
        after = acquire(replace(state, checkpoints=()), reader, number)
        return replace(after, checkpoints=state.checkpoints)

    return mutant


def forget_what_is_given_up(give_up: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, reader, offsets: state


def wait_for_nobody(arrange: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, stream: str, frontier: Any) -> Any:
        after = arrange(state, stream, frontier)
        early = {**after.unassigned, **dict.fromkeys(after.future, 0)}
        return replace(after, unassigned=early, future={})

    return mutant


def go_on_at_the_recorded_place(release: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, reader: str, number: int, held: Any) -> Any:
        known = {k: (n, state.assigned[k].offset) for k, (n, _) in held.items()}
        return release(state, reader, number, known)

    return mutant


def wait_for_what_is_gone(abandon: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, stream: state


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (assignment, "acquire", acquire_while_owing),
        (checkpoints, "give_up", forget_what_is_given_up),
        (segment_transitions, "_arrange", wait_for_nobody),
        (assignment, "release", go_on_at_the_recorded_place),
        (segment_transitions, "abandon", wait_for_what_is_gone),
    ],
)
def test_broken_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(module, name, mutant(getattr(module, name)))
    for seed in range(100):
        try:
            run(seed)
        except (AssertionError, PravegaSparkError):
            return
    pytest.fail(f"100 histories without {name} as it should be, and nobody noticed")
