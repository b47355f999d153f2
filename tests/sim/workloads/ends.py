"""A group that ends at a cut, while its stream goes on behind the cut, and is split and merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Body, Life
from tests.sim.workloads import appends, groups
from tests.sim.workloads.common import KEYS, stream_of

_SECONDS = 60.0


def founder(acknowledge: str) -> Body:
    """Return a program that writes, creates the group to end there, and writes on behind its end;
    later it cancels what checkpoints are pending, now and then."""

    def body(life: Life) -> None:
        draw, state = life.source, life.state
        stream = stream_of(life)
        stream_of(life, life.other)  # of the transactions that acknowledge, also without a member
        if "end" not in state:
            _write(life, stream, draw.randint(4, 10))
            tail = life.until_it_works(stream.tail)
            state["end"], state["cut"] = str(tail), cut_of(tail)
        if life.group not in life.made and draw.random() < 0.5:
            _write(life, stream, draw.randint(1, 4))  # then the end is amid the stream already
        group = groups.opened(life, acknowledge, end=(state["end"], state["cut"]))
        while state.setdefault("round", 0) < 6:
            state["round"] += 1
            _write(life, stream, draw.randint(1, 3))
            life.wait(draw.choice((0.5, 5.0)))
            if draw.random() < 0.4:
                cancel = group.cancel_outstanding_checkpoints
                life.call("cancel_checkpoints", cancel, group=life.group)

    return body


def _write(life: Life, stream: Any, count: int) -> None:
    writer = life.until_it_works(stream.create_writer)
    for _ in range(count):
        number = life.state["number"] = life.state.setdefault("number", 0) + 1
        event, key = f"{life.name}-{number}", life.source.choice(KEYS)
        # In the history a writer of its own: what an earlier call tried may come late.
        appends.write_one(life, writer, event, life.stream, key, handle=f"-{number}")
    life.until_it_works(writer.close)


def member(acknowledge: str) -> Body:
    """Return a program that reads in the group, once it is there."""

    def body(life: Life) -> None:
        if groups.is_there(life):
            groups.member(acknowledge, _SECONDS)(life)

    return body


def programs(acknowledge: str) -> Mapping[str, Callable[[], Body]]:
    """Return what makes each program of the scene, by its letter."""
    return {
        "F": lambda: founder(acknowledge),
        "G": lambda: member(acknowledge),
        "P": lambda: groups.eager_checkpointer,
    }


SCENE = "FGGPsy"
"""The programs that play together: one that scales and one that retains are among them."""
