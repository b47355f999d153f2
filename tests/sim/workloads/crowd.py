"""A crowd of readers at different paces: while one has not seen a checkpoint, another has answered.

Segments are few, and are split and merged all the time, so they pass from reader to reader. Some
readers ask for events without a pause, others once in many seconds; some are cut off from the
storage between a marker and their answer, and some die with what they have not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.sim.lives import Body, Life
from tests.sim.workloads import appends, groups, layouts
from tests.sim.workloads.common import stream_of

_EAGER = (0.0, 0.05, 0.5)
_SLOW = (2.0, 6.0, 15.0)
"""Seconds between two calls of a reader."""
_SECONDS = 60.0


def member(acknowledge: str) -> Body:
    """Return a program that is one reader of the group after the other, each at its pace."""

    def body(life: Life) -> None:
        stream_of(life)
        draw, manager = life.source, life.manager()
        if life.group not in life.made:
            interval, refresh = draw.choice(("8 s", None)), draw.choice(("0.5 s", "3 s"))
            groups.create(life, manager, acknowledge, checkpoint_interval=interval, refresh=refresh)
        life.made.add(life.group)
        group = life.until_it_works(lambda: manager.reader_group(life.group))
        until = life.now() + int(_SECONDS * 1e9)
        while life.now() < until:
            life.state["reader"] = life.state.setdefault("reader", 0) + 1
            reader_id = f"{life.author}-{life.state['reader']}"
            reader = groups.join(life, group, reader_id, acknowledge)
            if reader is None:
                life.wait(1.0)
                continue
            stay = min(until, life.now() + int(draw.choice((10, 40)) * 1e9))
            waits = draw.choice((_EAGER, _EAGER, _SLOW))
            at_marker = partial(_perhaps_cut_off, life)
            groups.read(life, reader, reader_id, stay, acknowledge, waits, at_marker)

    return body


def _perhaps_cut_off(life: Life) -> None:
    if life.source.random() < 0.2:
        life.cut_off(3.0)


def programs(acknowledge: str) -> Mapping[str, Callable[[], Body]]:
    """Return what makes each program of the scene, by its letter."""
    return {
        "3": lambda: member(acknowledge),
        "4": lambda: groups.checkpointer(8, waits=(0.5, 5.0)),
        "5": lambda: appends.nameless_writer(30, waits=(0.2, 2.0)),
        "6": lambda: layouts.scaler(12, waits=(0.2, 0.2, 3.0, 10.0)),
    }


SCENE = "3334565"
"""The programs that play together."""
