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
    "expired",
    "evicted",
    "left",
    "marker",
    "read",
    "repeated",
    "reset",
    "truncated",
    "truncation",
    "zombie",
}


SEEDS = sized(50, 1_000, "GROUP_SEEDS")
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
    counts: Counter[str] = Counter()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        counts.update(run(seed))
    assert set(counts) >= EVERYTHING


def acquire_with_a_pending_checkpoint(acquire: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, reader: str, number: int) -> Any:
        after = acquire(replace(state, checkpoints=()), reader, number)
        return replace(after, checkpoints=state.checkpoints)

    return mutant


def omit_released_segments(record_release: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, reader, offsets: state


def skip_waiting_for_predecessors(with_frontier: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, stream: str, frontier: Any) -> Any:
        after = with_frontier(state, stream, frontier)
        early = {**after.unassigned, **dict.fromkeys(after.future, 0)}
        return replace(after, unassigned=early, future={})

    return mutant


def release_at_the_recorded_offset(release: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, reader: str, number: int, held: Any) -> Any:
        known = {k: (n, state.assigned[k].offset) for k, (n, _) in held.items()}
        return release(state, reader, number, known)

    return mutant


def keep_deleted_streams(drop_stream: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, stream: state


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (assignment, "acquire", acquire_with_a_pending_checkpoint),
        (checkpoints, "record_release", omit_released_segments),
        (segment_transitions, "_with_frontier", skip_waiting_for_predecessors),
        (assignment, "release", release_at_the_recorded_offset),
        (segment_transitions, "drop_stream", keep_deleted_streams),
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
    pytest.fail(f"100 histories with a broken {name} passed")
