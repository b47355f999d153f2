"""A process that stops between what it has decided and its commit, while another goes past it.

A scene has one program that is slow, at a failpoint, and one that waits until it has stopped there,
does what the slow one does not know of, and lets it go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.sim.answers import cut_of, position_of
from tests.sim.lives import Body, Life
from tests.sim.workloads import quiet, retention
from tests.sim.workloads.common import read_all, stream_of

_KEPT = "1 minute"
"""What sweeps keep: the least that they take."""
_AGED = 62.0
"""Seconds after which what was written is just older than that."""


@dataclass(frozen=True)
class Scene:
    """What one process does slowly, where it stops, and what another one does meanwhile."""

    at: str
    slow: Callable[[Life], object]
    meanwhile: Callable[[Life], object]
    afterwards: Callable[[Life], object] = bool
    """What it does as soon as the slow one goes on."""
    seconds: float = 60.0
    """How long it may take until the slow one stops."""
    rounds: int = 3


def slow_one(scene: Scene) -> Body:
    """Return the program that is overtaken."""

    def body(life: Life) -> None:
        stream_of(life, life.quiet)
        while life.state.setdefault("round", 0) < scene.rounds:
            life.state["round"] += 1
            scene.slow(life)
            life.wait(1.0)

    return body


def fast_one(scene: Scene) -> Body:
    """Return the program that overtakes."""

    def body(life: Life) -> None:
        stream_of(life, life.quiet)
        while life.state.setdefault("round", 0) < scene.rounds:
            life.state["round"] += 1
            if life.meanwhile(scene.at, scene.seconds):
                scene.meanwhile(life)
                life.go_on(scene.at)
                scene.afterwards(life)

    return body


def _event(life: Life) -> str:
    life.state["event"] = life.state.setdefault("event", 0) + 1
    return f"{life.author}-{life.state['event']}"


def write(life: Life, key: str = "k0", events: int = 1) -> Any:
    """Write events in one call, as one chunk; return the first position, if it is known."""
    writer = life.until_it_works(stream_of(life, life.quiet).create_writer)
    texts = [_event(life) for _ in range(events)]
    is_done, found = life.call(
        "write",
        lambda: writer.write_events(texts, key).result(),
        told=lambda found: [position_of(pointer) for pointer in found],
        stream=life.quiet,
        writer=f"{life.name}/{texts[0]}",
        events=[[key, text] for text in texts],
    )
    life.until_it_works(writer.close)
    return found[0] if is_done else None


def sweep(life: Life) -> bool:
    """Sweep the stream; return whether that was done."""
    work = partial(stream_of(life, life.quiet).sweep, grace=_KEPT, retain=_KEPT)
    return life.call("sweep", work, stream=life.quiet)[0]


def _compact(life: Life) -> None:
    compact = partial(stream_of(life, life.quiet).compact, include_newest=True)
    life.call("compact", compact, stream=life.quiet)


def compact(life: Life) -> None:
    """Write three chunks, truncate amid the first, and stop before they are replaced."""
    stream = stream_of(life, life.quiet)
    first = write(life, events=2)
    if first is not None:
        cut = life.until_it_works(stream.tail)
        cut = replace(cut, positions={**cut.positions, first.segment_id: first.offset + 1})

        def truncate() -> Any:
            stream.truncate(cut)
            return stream.head()

        life.call("truncate", truncate, told=cut_of, stream=life.quiet, cut=cut_of(cut))
    for _ in range(2):
        write(life)
    life.until_it_works(partial(quiet._seal_all, stream))
    life.stop_at("compact.commit")
    _compact(life)


def retain(life: Life) -> None:
    """Release all that is there, and run the retention, which stops when it has decided.

    Perhaps another subscriber has released nothing.
    """
    stream = stream_of(life, life.quiet)
    write(life)
    who = {"stream": life.quiet, "subscriber": life.author}
    other = {**who, "subscriber": f"{life.author}-behind"}
    is_held = life.source.random() < 0.5
    for one in (who, other) if is_held else (who,):
        subscribe = partial(stream.subscribe, one["subscriber"])
        if not life.call("subscribe", subscribe, **one)[0]:
            return
    cut = life.until_it_works(stream.tail)
    life.call("release", partial(stream.publish, life.author, cut), **who, cut=cut_of(cut))

    life.stop_at("retention.decided")
    retention.retain(life, life.quiet)
    if is_held:
        unsubscribe = partial(stream.unsubscribe, other["subscriber"])
        life.call("unsubscribe", unsubscribe, **other)


def write_and_sweep(life: Life) -> None:
    """Make a newer version, and let the horizon pass all before it."""
    write(life)
    life.wait(_AGED)
    sweep(life)


def compact_twice(life: Life) -> None:
    """Rewrite the head and merge what is behind it, and then both."""
    _compact(life)
    _compact(life)


def subscribe(life: Life) -> None:
    """Subscribe at the head, and read from there."""
    stream = stream_of(life, life.quiet)
    who = {"stream": life.quiet, "subscriber": f"{life.author}-{life.state['round']}"}
    life.call("subscribe", partial(stream.subscribe, who["subscriber"]), **who)
    read_all(life, life.quiet)


SCENES = (
    Scene("compact.commit", compact, write_and_sweep),
    Scene("compact.commit", compact, compact_twice),
    Scene("retention.decided", retain, subscribe),
)
