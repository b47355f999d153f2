"""Writers that note the times of their events, and those who ask how far all of them are."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.appends import Writing
from tests.sim.workloads.common import stream_of


def note_taker(rounds: int) -> Body:
    """Return a program that writes, notes times that only grow, and asks for the watermark.

    It has one writer id in all of its lives.
    """

    def body(life: Life) -> None:
        stream, draw, state = stream_of(life, life.timed), life.source, life.state
        name, writer = life.author, None
        who = {"stream": life.timed, "writer": name}
        times = life.until_it_works(stream.event_time)
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            if writer is None:
                writer = life.until_it_works(partial(stream.create_writer, name))
            state["time"] = state.setdefault("time", 1_000_000) + draw.choice((0, 500, 2_000))
            noted = state["time"]

            writing = Writing(life, writer, name, stream=life.timed)
            if draw.random() < 0.7:
                writing.write([[name, f"{name}-{state['round']}"]])

            def note(writer: Any = writer, noted: int = noted) -> None:
                writer.note_time(noted).result()

            is_done, _ = life.call("note_time", note, **who, time=noted * 1_000)
            if not (writing.settle() and is_done):
                writer = None
            ask_watermark(life)
            life.wait(draw.choice((0.0, 1.0, 12.0)))
            if draw.random() < 0.3:
                life.call("update_watermark", times.update, stream=life.timed)
        life.call("forget", lambda: None, **who)
        if writer is not None:
            life.until_it_works(writer.close)

    return body


def ask_watermark(life: Life) -> None:
    """Ask for the watermark, as a call of the history."""
    times = life.until_it_works(stream_of(life, life.timed).event_time)

    def told(found: Any) -> Any:
        if found is None:
            return None
        return {"lower": found.lower_us, "upper": found.upper_us, "cut": cut_of(found.cut)}

    life.call("watermark", times.watermark, told=told, stream=life.timed)
