"""Random sequences of steps, and the shortest one that fails as the whole one does.

A step is a verb and the seed of its own dice, so that it does the same whichever steps are left out
before it. A model plays steps on a fresh world and raises where something is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Step = tuple[str, int]
_AnyStep = TypeVar("_AnyStep")


def drawn_steps(seed: int, verbs: Sequence[str], count: int) -> list[Step]:
    """Return so many steps of these verbs; a verb that is given twice comes twice as often."""
    dice = random.Random(seed)
    return [(dice.choice(verbs), dice.randrange(1 << 30)) for _ in range(count)]


def act(world: Any, steps: Iterable[Step]) -> None:
    """Let a world do each step, a method of its own, with the dice of that step."""
    for verb, seed in steps:
        world.dice = random.Random(seed)
        getattr(world, verb)()


def play_shortest(
    seed: int, steps: Sequence[_AnyStep], play: Callable[[Sequence[_AnyStep]], object]
) -> None:
    """Play steps; if that fails, fail with the seed and the shortest sequence that fails so."""
    try:
        play(steps)
        return
    except Exception as error:
        last = error

    def fails(fewer: Sequence[_AnyStep]) -> bool:
        nonlocal last
        try:
            play(fewer)
        except Exception as error:
            if type(error) is not type(last):  # another fault than the one that was found
                return False
            last = error
            return True
        return False

    shown = "".join(f"    {step!r},\n" for step in shortest(steps, fails))
    text = f"seed {seed}: {type(last).__name__}: {last}\nby steps = [\n{shown}]"
    raise AssertionError(text) from last


def shortest(
    steps: Sequence[_AnyStep], fails: Callable[[Sequence[_AnyStep]], bool]
) -> list[_AnyStep]:
    """Return steps that fail, of which none can be left out: first halves are tried, then less."""
    left = list(steps)
    size = max(1, len(left) // 2)
    while True:
        at, before = 0, len(left)
        while at < len(left):
            fewer = [*left[:at], *left[at + size :]]
            if fails(fewer):
                left = fewer
            else:
                at += size
        if size > 1:
            size //= 2
        elif len(left) == before:
            return left
