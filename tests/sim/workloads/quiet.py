"""A stream with few commits, which sweeps follow at once: what they take lies at an edge."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.appends import write_one
from tests.sim.workloads.common import stream_of

_KEPT = "1 minute"
"""What sweeps keep: the least that they take."""


def stalled_writer(rounds: int) -> Body:
    """Return a program that stops for a while amid its writes."""

    def body(life: Life) -> None:
        stream, state = stream_of(life, life.quiet), life.state
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            writer = life.until_it_works(stream.create_writer)
            life.pause_soon()
            event = f"{life.author}-{state['round']}"
            write_one(life, writer, event, life.quiet, handle=f"/{state['round']}")
            life.until_it_works(writer.close)
            life.wait(life.source.choice((1.0, 40.0)))

    return body


def housekeeper(rounds: int) -> Body:
    """Return a program that writes, waits until that is just old, and compacts or sweeps."""

    def body(life: Life) -> None:
        stream, draw, state = stream_of(life, life.quiet), life.source, life.state
        sweep = partial(stream.sweep, grace=_KEPT, retain=_KEPT)
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            is_first = state["round"] == 1
            for number in range(1 + is_first):
                writer = life.until_it_works(stream.create_writer)
                event = f"{life.author}-{state['round']}.{number}"
                write_one(life, writer, event, life.quiet, handle=f"/{event}")
                life.until_it_works(writer.close)
            if is_first:  # of a segment that gets no more chunks, a few are merged at once
                life.until_it_works(partial(_seal_all, stream))
            life.wait(draw.choice((62.0, 70.0)))
            if is_first or draw.random() < 0.4:  # the first sweep lists all files
                _compact(life, stream, sweep)
            else:
                life.call("sweep", sweep, stream=life.quiet)

    return body


def _seal_all(stream: Any) -> None:
    """Replace each segment by one with the same keys."""
    segments = stream.segments()
    stream.scale(segments, [(one.key_range.low, one.key_range.high) for one in segments])


def _compact(life: Life, stream: Any, sweep: Any) -> None:
    """Compact and sweep; the version before that is still young, and has each of its files."""
    table_at = life.module("engine.log.reader").table_at
    began, log = life.now(), stream._log().log
    version = life.until_it_works(log.refresh).version
    files = life.until_it_works(partial(_files, table_at, log, version))
    life.call("compact", partial(stream.compact, include_newest=True), stream=life.quiet)
    life.call("sweep", sweep, stream=life.quiet)
    if life.root.startswith("/") or life.now() - began > 40e9:
        return  # a disk dates by a clock that may be wrong, or the version may be old

    def gone() -> list[str]:
        return [path for path in files if not log.store.exists(f"{log.path}/{path}")]

    life.call("keep_version", gone, told=list, stream=life.quiet, version=version)


def _files(table_at: Any, log: Any, version: int) -> list[str]:
    return [add.path for add in table_at(log.reader, version)[1].all()]
