"""A stream that is scaled by its load, at a pace of seconds."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.common import KEYS, read_all, stream_of

MINIMUM = 2


def loader(rounds: int) -> Body:
    """Return a program that loads the stream in bursts, scales it by that, and lets it be idle."""

    def body(life: Life) -> None:
        package, draw, state = life.package, life.source, life.state
        policy = package.ScalingPolicy.by_event_rate(1, minimum=MINIMUM)
        stream = stream_of(life, life.loaded, scaling=policy)
        pace = package.ScalingPace().scaled(1 / 200)
        for _ in range(rounds):
            if draw.random() < 0.6:
                _burst(life, stream, state)
            life.wait(draw.choice((1.0, 4.0, 10.0)))

            def run() -> int:
                stream.scaling().run(pace=pace)
                return len(stream.segments())

            life.call("autoscale", run, told=int, stream=life.loaded, minimum=MINIMUM)
        read_all(life, life.loaded)

    return body


def _burst(life: Life, stream: Any, state: MutableMapping[str, Any]) -> None:
    events = []
    for _ in range(30):
        state["event"] = state.setdefault("event", 0) + 1
        events.append([KEYS[0], f"{life.author}-{state['event']}"])

    def write() -> Any:
        writer = stream.create_writer()
        return writer.write_events([event for _, event in events], KEYS[0]).result()

    life.call(
        "write",
        write,
        told=lambda found: [[str(p.segment_id), p.offset] for p in found],
        stream=life.loaded,
        writer=life.name,
        events=events,
    )
