"""Of a sequence that fails, a model prints the shortest one; what it prints can be played."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.harness.sequences import Step, drawn_steps, play_shortest, shortest


def test_only_the_steps_that_a_failure_needs_are_left() -> None:
    played: list[list[int]] = []

    def fails(steps: Sequence[int]) -> bool:
        played.append(list(steps))
        return {3, 41, 42, 90} <= set(steps) and list(steps) == sorted(steps)

    assert shortest(range(100), fails) == [3, 41, 42, 90]
    assert len(played) < 100


def test_a_step_that_can_go_only_after_a_later_one_has_gone_goes() -> None:
    assert shortest("abc", lambda steps: "c" in steps and ("a" in steps or "b" not in steps)) == [
        "c"
    ]


def test_a_failure_of_no_step_at_all_is_of_no_step() -> None:
    assert shortest([1, 2, 3], lambda steps: True) == []
    assert shortest([], lambda steps: True) == []


def test_a_failing_sequence_is_told_with_its_seed_and_its_shortest_form() -> None:
    def play(steps: Sequence[Step]) -> None:
        verbs = [verb for verb, _ in steps]
        if verbs.count("write") < verbs.count("read"):
            raise KeyError("nothing to read")  # another fault, into which a reduction must not slip
        if "cut" in verbs:
            raise AssertionError(f"{len(steps)} steps")

    steps: list[Step] = [("write", 1), ("read", 2), ("write", 3), ("cut", 4), ("read", 5)]
    with pytest.raises(AssertionError) as raised:
        play_shortest(17, steps, play)
    assert str(raised.value) == (
        "seed 17: AssertionError: 1 steps\nby steps = [\n    ('cut', 4),\n]"
    )
    assert isinstance(raised.value.__cause__, AssertionError)


def test_an_error_of_another_class_keeps_its_name() -> None:
    def play(steps: Sequence[Step]) -> None:
        raise KeyError(len(steps))

    with pytest.raises(AssertionError, match=re.escape("seed 1: KeyError: 0\nby steps = [\n]")):
        play_shortest(1, [("write", 1)], play)


def test_drawn_steps_are_those_of_their_seed() -> None:
    steps = drawn_steps(5, ("write", "write", "cut"), 40)
    assert steps == drawn_steps(5, ("write", "write", "cut"), 40)
    assert steps != drawn_steps(6, ("write", "write", "cut"), 40)
    assert {verb for verb, _ in steps} == {"write", "cut"}
    play_shortest(5, steps, lambda found: None)
