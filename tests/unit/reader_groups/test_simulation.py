from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pravega_spark.errors import PravegaSparkError
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups import step as reader_group_step
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from tests.harness import simulated_group
from tests.harness.simulated_group import SimulatedGroup, step
from tests.harness.tiers import sized

EVERYTHING = {
    "begun again",
    "checkpoint completed",
    "deletion",
    "expired",
    "evicted",
    "left",
    "left alone",
    "marker",
    "read",
    "repeated",
    "reset",
    "truncated",
    "truncation",
    "unreachable",
    "update",
    "zombie",
}
OF_BUFFERS = {"failed", "flushed", "flushed again"}

SEEDS = sized(50, 1_000, "GROUP_SEEDS")
"""Histories of each of the two parts."""


def run(seed: int, acknowledge: str = "next", steps: int = 160) -> dict[str, int]:
    dice = Random(seed)
    streams, with_ends = dice.choice((1, 1, 2)), dice.random() < 0.3
    group = SimulatedGroup(dice, streams=streams, with_ends=with_ends, acknowledge=acknowledge)
    for _ in range(dice.randrange(steps)):
        step(group)
    group.drain()
    return group.counts


@pytest.mark.long
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_histories_keep_every_promise_of_a_group(acknowledge: str, part: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        counts.update(run(seed, acknowledge))
    assert set(counts) >= EVERYTHING | (OF_BUFFERS if acknowledge == "checkpoint" else set())


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


def record_offsets_between_checkpoints(record_offsets: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, reader: str, number: int, held: Any) -> Any:
        known = state.configuration
        other = replace(state, configuration=ReaderGroupConfiguration(known.streams))
        after = record_offsets(other, reader, number, held)
        return replace(after, configuration=known)

    return mutant


def acknowledge_what_was_handed_out(unacknowledged: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, view: frozenset()


def answer_where_the_reader_is(answer: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, view: Any, layout_of: Any, *, answering: Any, automatic: bool) -> Any:
        late = answering and answering._replace(held=view.held)
        return answer(state, view, layout_of, answering=late, automatic=automatic)

    return mutant


def wait_for_a_checkpoint(needs_checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, view: False


def skip_recording_answers(answer: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any, reader: str, number: int, offsets: Any) -> Any:
        return replace(answer(state, reader, number, offsets), assigned=state.assigned)

    return mutant


def let_removed_readers_begin_again(remove_readers: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(state: Any) -> Any:
        after = remove_readers(state)
        return replace(after, unassigned={**after.unassigned, **dict.fromkeys(state.assigned, 0)})

    return mutant


def forget_readers_segments(remove_readers: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state: replace(remove_readers(state), unassigned=state.unassigned)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("acknowledge", "module", "name", "mutant"),
    [
        ("next", transitions, "remove_readers", let_removed_readers_begin_again),
        ("next", transitions, "remove_readers", forget_readers_segments),
        ("checkpoint", transitions, "remove_readers", let_removed_readers_begin_again),
        ("next", transitions, "acquire", acquire_with_a_pending_checkpoint),
        ("next", transitions, "record_release", omit_released_segments),
        ("next", segments, "with_frontier", skip_waiting_for_predecessors),
        ("next", transitions, "release", release_at_the_recorded_offset),
        ("next", segments, "drop_stream", keep_deleted_streams),
        ("checkpoint", transitions, "acquire", acquire_with_a_pending_checkpoint),
        ("checkpoint", transitions, "record_release", omit_released_segments),
        ("checkpoint", transitions, "record_offsets", record_offsets_between_checkpoints),
        ("checkpoint", transitions, "answer", skip_recording_answers),
        ("checkpoint", reader_group_step, "_unacknowledged", acknowledge_what_was_handed_out),
        ("checkpoint", reader_group_step, "_needs_checkpoint", wait_for_a_checkpoint),
        ("checkpoint", simulated_group, "reader_step", answer_where_the_reader_is),
    ],
)
def test_broken_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, acknowledge: str, module: Any, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(module, name, mutant(getattr(module, name)))
    for seed in range(300):
        try:
            run(seed, acknowledge)
        except (AssertionError, PravegaSparkError):
            return
    pytest.fail(f"300 histories with a broken {name} passed")
