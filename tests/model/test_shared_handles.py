"""Threads that share and end one handle: random short programs, whose interleavings are dense.

Two to four threads use a writer, a table, transactions, a state or a reader together, and end it.
Whatever they do: what a call says to be durable is, nothing is lost without an error or doubled,
the order of a key is that of its writes, each error is one that the pages name, and nothing hangs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from pravega_spark.byte_streams import writer
from tests.harness.dense_threads import DenseThreads
from tests.harness.sequences import play_shortest
from tests.harness.shared_handles import (
    Step,
    World,
    end_and_check,
    play_in_tasks,
    play_in_threads,
)
from tests.harness.shared_states import ReaderWorld, StateWorld
from tests.harness.shared_tables import TableWorld
from tests.harness.shared_transactions import JointWorld, TransactionWorld
from tests.harness.shared_writers import ByteWorld, EventWorld
from tests.harness.tiers import sized

_TRIES = 40
"""How often a shorter program is tried: not each run fails."""
Front = Callable[[World, Sequence[Step], int], None]
WORLDS: dict[str, type[World]] = {
    "events": EventWorld,
    "bytes": ByteWorld,
    "table": TableWorld,
    "transactions": TransactionWorld,
    "joint transactions": JointWorld,
    "shared state": StateWorld,
    "reader": ReaderWorld,
}


@pytest.fixture(scope="module")
def dense() -> Iterator[DenseThreads]:
    threads = DenseThreads()
    with threads.installed():
        yield threads


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BLOCK_BYTES", 64)
    monkeypatch.setattr(writer, "_PART_BYTES", 256)


def drawn_program(seed: int, verbs: Sequence[str]) -> list[Step]:
    dice = random.Random(seed)
    threads, calls = dice.choice((2, 2, 3, 4)), dice.randint(3, 16)
    return [
        (dice.randrange(threads), dice.choice(verbs), dice.randrange(1 << 30)) for _ in range(calls)
    ]


def play(kind: str, seed: int, dense: DenseThreads, front: Front, *more: str) -> None:
    """Play one program; after a failure each shorter one as often as it may need to fail again."""
    tries = iter((1,))

    def play_again(steps: Sequence[Step]) -> None:
        for number in range(next(tries, _TRIES)):
            world = WORLDS[kind](seed, dense)
            front(world, steps, seed + number * 1_000_003)
            end_and_check(world, seed)

    play_shortest(seed, drawn_program(seed, (*WORLDS[kind].verbs, *more)), play_again)


@pytest.mark.long
@pytest.mark.parametrize("kind", WORLDS)
def test_threads_that_share_a_handle_are_told_the_truth(kind: str, dense: DenseThreads) -> None:
    short = 4 if kind == "reader" else 8  # whose refreshes are waited for
    for seed in range(sized(short, 20_000, "SHARED_HANDLE_SEEDS")):
        play(kind, seed, dense, play_in_threads)


@pytest.mark.long
@pytest.mark.parametrize("kind", WORLDS)
def test_tasks_that_share_a_handle_are_told_the_truth(kind: str, dense: DenseThreads) -> None:
    for seed in range(sized(2, 5_000, "SHARED_HANDLE_SEEDS")):
        play(kind, seed, dense, play_in_tasks)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", WORLDS)
def test_a_child_that_is_forked_among_threads_is_refused(kind: str, dense: DenseThreads) -> None:
    for seed in range(sized(2, 2_000, "SHARED_HANDLE_SEEDS")):
        play(kind, seed, dense, play_in_threads, "fork", "fork")
