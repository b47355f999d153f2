"""Writers that note times, and whoever looks at the watermark."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.common import stream_of


def noter(rounds: int) -> Body:
    """Return a program that notes a time again and again, under one writer id in all lives."""

    def body(life: Life) -> None:
        stream, draw, state = stream_of(life), life.source, life.state
        who = {"stream": life.stream, "writer": f"{life.author}-id"}
        writer = None
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            try:
                writer = writer or stream.create_writer(who["writer"])
            except life.errors.PravegaSparkError:
                life.wait(1.0)
                continue
            state["time"] = state.setdefault("time", 1_000) + draw.randint(0, 5)
            time = state["time"]
            is_done, _ = life.call("note_time", partial(_note, writer, time), **who, time=time)
            if not is_done:
                writer = None
            life.wait(draw.choice((0.1, 1.0)))
        if writer is not None:
            life.call("forget", writer.close, **who)

    return body


def _note(writer: Any, time: int) -> Any:
    return writer.note_time(time).result()


def watcher(rounds: int) -> Body:
    """Return a program that computes the watermark and reads it."""

    def body(life: Life) -> None:
        times, draw = stream_of(life).event_time(), life.source
        for _ in range(rounds):
            life.wait(draw.choice((0.2, 1.0)))
            life.until_it_works(times.update)
            life.call("watermark", times.watermark, told=_told, stream=life.stream)

    return body


def _told(found: Any) -> Any:
    if found is None:
        return None
    bounds = {"lower": found.lower, "upper": found.upper}
    return {name: round(bound.timestamp() * 1_000) for name, bound in bounds.items()}
