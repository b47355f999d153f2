"""A crowd of readers at different paces: while one has not seen a checkpoint, another has answered.

Segments are few, and are split and merged all the time, so they pass from reader to reader. Some
readers ask for events without a pause, others fall behind, or ask once in many seconds; some are
cut off from the storage between a marker and their answer, and some die with what they have not
acknowledged. A second stream of the group is deleted while they read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads import appends, groups, layouts
from tests.sim.workloads.common import KEYS, stream_of

_EAGER, _BEHIND, _SLOW = (0.0, 0.05), (0.3, 1.0), (4.0, 8.0)
"""Seconds between two calls of a reader."""
_SECONDS = 50.0


def member(acknowledge: str, *paces: Sequence[float]) -> Body:
    """Return a program that is one reader of the group after the other, each at a pace of these."""

    def body(life: Life) -> None:
        stream_of(life)
        draw = life.source
        life.retry_timeout = "1 s"  # else who is cut off waits, and does not read on
        others: dict[str, Any] = {}
        if life.group not in life.made:
            if life.brief not in life.made:
                stream_of(life, life.brief)
            interval, refresh = draw.choice(("8 s", None)), draw.choice(("0.5 s", "3 s"))
            others = {"checkpoint_interval": interval, "refresh": refresh}
        group = groups.opened(life, acknowledge, [life.stream, life.brief], **others)
        until = life.now() + int(_SECONDS * 1e9)
        while life.now() < until:
            life.state["reader"] = life.state.setdefault("reader", 0) + 1
            reader_id = f"{life.author}-{life.state['reader']}"
            reader = groups.join(life, group, reader_id, acknowledge)
            if reader is None:
                life.wait(1.0)
                continue
            stay = min(until, life.now() + int(draw.choice((10, 40)) * 1e9))
            at_marker = partial(_perhaps_cut_off, life)
            groups.read(life, reader, reader_id, stay, acknowledge, draw.choice(paces), at_marker)

    return body


def _perhaps_cut_off(life: Life) -> None:
    if life.source.random() < 0.3:
        life.cut_off(4.0)


def deleter(life: Life) -> None:
    """Write to the second stream, and delete it while the group reads it; perhaps the group goes on
    without it."""
    draw, state = life.source, life.state
    if not groups.is_there(life):
        return
    stream = life.manager().stream(life.brief)
    if "is_written" not in state:
        writer = life.until_it_works(stream.create_writer)
        for number in range(6):
            appends.write_one(life, writer, f"{life.name}-{number}", life.brief, draw.choice(KEYS))
            life.wait(draw.choice((0.5, 3.0)))
        life.until_it_works(writer.close)
        state["is_written"] = True
    while "is_sealed" not in state:
        if life.call("seal", stream.seal, stream=life.brief)[0]:
            state["is_sealed"] = True
        life.wait(1.0)
    life.call("delete_stream", stream.delete, stream=life.brief)
    if draw.random() < 0.5:
        life.wait(draw.choice((0.0, 5.0)))
        group = life.until_it_works(lambda: life.manager().reader_group(life.group))
        life.call("update_group", partial(group.update, remove=[life.brief]), group=life.group)


def writer(life: Life) -> None:
    """Write to all keys; few calls have an unknown outcome, so the order of all is soon found."""
    life.retry_timeout = "60 s"
    appends.nameless_writer(25, waits=(0.5, 2.0))(life)


def programs(acknowledge: str) -> Mapping[str, Callable[[], Body]]:
    """Return what makes each program of the scene, by its letter."""
    return {
        "4": lambda: member(acknowledge, _EAGER, _BEHIND),
        "9": lambda: member(acknowledge, _SLOW),
        "5": lambda: groups.eager_checkpointer,
        "6": lambda: writer,
        "7": lambda: layouts.scaler(16, waits=(0.2, 2.0, 4.0)),
        "8": lambda: deleter,
    }


SCENE = "44956678"
"""The programs that play together."""
