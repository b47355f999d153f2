"""Programs that change a stream's segments, its head and its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import read_all, record_segments, stream_of


def scaler(rounds: int, waits: Sequence[float] = (0.2, 0.2, 3.0)) -> Body:
    """Return a program that splits and merges segments; it repeats a scale, and asks for a hole."""

    def body(life: Life) -> None:
        stream, draw = stream_of(life), life.source
        for _ in range(rounds):
            life.wait(draw.choice(waits))
            segments = record_segments(life)
            ranges: list[tuple[float, float]]
            if len(segments) > 1 and draw.random() < 0.5:
                at = draw.randrange(len(segments) - 1)
                seal = segments[at : at + 2]
                ranges = [(seal[0].key_range.low, seal[1].key_range.high)]
            else:
                seal = [draw.choice(segments)]
                low, high = seal[0].key_range.low, seal[0].key_range.high
                ranges = [(low, (low + high) / 2), ((low + high) / 2, high)]
                if draw.random() < 0.2:
                    ranges.pop()

            def scale(seal: Any = seal, ranges: Any = ranges) -> Any:
                return stream.scale(seal, ranges).number

            asked = partial(
                life.call,
                "scale",
                scale,
                told=int,
                stream=life.stream,
                seal=[str(one.segment_id) for one in seal],
                sealed=[[one.key_range.low, one.key_range.high] for one in seal],
                ranges=[list(one) for one in ranges],
            )
            asked()
            if draw.random() < 0.4:
                asked()
            record_segments(life)
            if draw.random() < 0.4:  # what comes late into a sealed segment is not in it
                life.wait(draw.choice((0.0, 2.0)))
                read_all(life)

    return body


def truncator(rounds: int) -> Body:
    """Return a program that truncates at tails that it has seen."""

    def body(life: Life) -> None:
        stream, draw = stream_of(life), life.source
        for _ in range(rounds):
            cut = life.until_it_works(stream.tail)
            if draw.random() < 0.5:  # amid a chunk
                fewer = draw.choice((1, 2))
                cut = replace(
                    cut, positions={s: at - fewer if at >= fewer else at for s, at in cut}
                )
            life.wait(draw.choice((0.2, 3.0, 20.0)))

            def truncate(cut: Any = cut) -> Any:
                stream.truncate(cut)
                return stream.head()

            life.call("truncate", truncate, told=cut_of, stream=life.stream, cut=cut_of(cut))

    return body


def upkeep(rounds: int) -> Body:
    """Return a program that compacts, sweeps and maintains, by hand and as a round."""

    def body(life: Life) -> None:
        stream, draw = stream_of(life), life.source
        manager = life.manager()
        kinds = {
            "compact": lambda: stream.compact(
                include_newest=True, target=draw.choice(("16 KiB", "64 MiB", None))
            ),
            "sweep": lambda: stream.sweep(
                grace=draw.choice(("1 minute", "2 minutes", "1 hour", None)),
                retain=draw.choice(("1 minute", "5 minutes", None)),
            ),
            "maintain": lambda: manager.maintain(full=True),
            "sweep_transactions": stream.sweep_transactions,
        }
        for _ in range(rounds):
            life.wait(draw.choice((0.5, 0.5, 5.0, 20.0, 60.0, 600.0)))
            name = draw.choice(("compact", *kinds))
            if draw.random() < 0.35:  # then another one overtakes it
                life.pause_soon()
            life.call(name, kinds[name], stream=life.stream)

    return body
