"""Subscribers of a stream, and rounds of its retention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import stream_of


def subscriber(rounds: int) -> Body:
    """Return a program that subscribes, and releases what it has seen."""

    def body(life: Life) -> None:
        stream, draw, name = stream_of(life), life.source, life.author
        who = {"stream": life.stream, "subscriber": name}
        life.wait(draw.choice((0.0, 0.0, 5.0, 15.0)))  # others may have released by then
        while not life.call("subscribe", partial(stream.subscribe, name), **who)[0]:
            life.wait(1.0)
        older = None
        for _ in range(rounds):
            life.wait(draw.choice((0.2, 3.0, 10.0)))
            cut = older if older and draw.random() < 0.4 else life.until_it_works(stream.tail)
            older = older or cut
            life.call("release", partial(stream.publish, name, cut), **who, cut=cut_of(cut))
            if draw.random() < 0.15:
                life.call("unsubscribe", partial(stream.unsubscribe, name), **who)
                while not life.call("subscribe", partial(stream.subscribe, name), **who)[0]:
                    life.wait(1.0)
        if draw.random() < 0.3:
            life.call("unsubscribe", partial(stream.unsubscribe, name), **who)

    return body


def retainer(rounds: int) -> Body:
    """Return a program that runs the retention of the stream."""

    def body(life: Life) -> None:
        stream_of(life)
        draw = life.source
        for _ in range(rounds):
            life.wait(draw.choice((0.5, 5.0, 20.0)))
            if draw.random() < 0.3:  # whoever subscribes then comes between decision and commit
                life.pause_soon()
            retain(life, life.stream, lambda: draw.random() < 0.5)

    return body


def retain(life: Life, name: str, sweeps: Callable[[], bool] = bool) -> bool:
    """Run the retention of a stream, perhaps with a sweep; return whether that was done."""
    stream = stream_of(life, name)

    def run() -> Any:
        stream.retention().run(sweep=sweeps())
        return stream.head()

    return life.call("retain", run, told=cut_of, stream=name)[0]
