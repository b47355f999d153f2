"""What programs share: the stream, cuts and positions as histories have them, whole reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.answers import cut_of
from tests.sim.lives import Life

KEYS = ("k0", "k1", "k2")
LARGE_BYTES = 8 * 1024 * 1024 + 1
"""The least size of a large event."""


def large(text: str) -> bytes:
    """Return a large event that histories have as a text."""
    return f"{text}|".encode().ljust(LARGE_BYTES, b".")


def text_of(data: bytes) -> str:
    """Return an event as histories have it: of a large one the text, if all of it is right."""
    if len(data) < LARGE_BYTES:
        return data.decode()
    text = data[: data.find(b"|")].decode()
    return text if data == large(text) else f"{text}, damaged"


def stream_of(life: Life, name: str | None = None, **configuration: Any) -> Any:
    """Return a stream; create it and its scope before, whoever else does."""
    manager, package, name = life.manager(), life.package, name or life.stream
    if name not in life.made:
        life.until_it_works(lambda: manager.create_scope(life.scope))
        scaling = package.ScalingPolicy.fixed(life.segments)
        kept = package.RetentionPolicy.by_consumption()
        made = package.StreamConfiguration(
            **{"scaling": scaling, "retention": kept, **configuration}
        )
        life.until_it_works(lambda: manager.create_stream(name, made))
        life.made.add(name)
    return manager.stream(name)


def read_all(life: Life, name: str | None = None, text: Callable[[Any], str] = text_of) -> bool:
    """Read a stream from its head to its tail, as a call of the history.

    ``text`` makes of an event's data what the history has of it.
    """
    stream = stream_of(life, name)

    def read() -> Any:
        head = stream.head()
        reader = stream.create_reader()
        rows = [
            [str(event.segment_id), event.offset, event.routing_key, text(event.data)]
            for event in reader.events(head)
        ]
        return {"from": cut_of(head), "to": cut_of(reader.position), "events": rows}

    return life.call("read", read, told=dict, stream=stream.name)[0]


def record_segments(life: Life, name: str | None = None) -> Any:
    """Record the ranges of keys that the segments of a stream have now; return the segments."""
    stream = stream_of(life, name)

    def told(found: Any) -> Any:
        return [[one.key_range.low, one.key_range.high] for one in found]

    def segments() -> Any:
        return sorted(stream.segments(), key=lambda one: one.key_range.low)

    while True:
        is_done, found = life.call("segments", segments, told=told, stream=stream.name)
        if is_done:
            return found
        life.wait(1.0)


def record_layout(life: Life, name: str | None = None) -> None:
    """Record which segments of a stream came after which."""
    stream = stream_of(life, name)

    def layout() -> Any:
        found: dict[str, list[str]] = {}
        for epoch in stream.epochs():
            for segment in epoch.segments:
                text = str(segment.segment_id)
                if text not in found:
                    above = stream.predecessors(segment)
                    found[text] = [str(one.segment_id) for one, _ in above]
        return found

    life.call("layout", layout, told=dict, stream=stream.name)
