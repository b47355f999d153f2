"""Writers and readers of one sequence of bytes."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.workloads.common import stream_of

_LENGTH = 12
"""Characters of a token: a writer knows by its bytes which ones are durable."""


def _stream(life: Life) -> Any:
    return stream_of(life, life.bytes, scaling=life.package.ScalingPolicy.fixed(1))


def read_bytes(life: Life) -> bool:
    """Read all bytes that there are, as a call of the history."""
    stream = _stream(life)

    def read() -> Any:
        with stream.create_byte_reader(follow=False) as reader:
            start = reader.tell()
            return start, reader.read()

    return life.call(
        "read_bytes",
        read,
        told=lambda found: {"from": found[0], "text": found[1].decode()},
        stream=life.bytes,
    )[0]


def byte_reader(rounds: int) -> Body:
    """Return a program that reads all bytes again and again."""

    def body(life: Life) -> None:
        for _ in range(rounds):
            life.wait(life.source.choice((0.3, 2.0)))
            read_bytes(life)

    return body


def byte_user(tokens: int, *, is_named: bool) -> Body:
    """Return a program that writes tokens, reads now and then, and truncates."""

    def body(life: Life) -> None:
        stream, draw, state = _stream(life), life.source, life.state
        name = life.author if is_named else life.name
        writer: Any = None
        while state.setdefault("tokens", 0) < tokens:
            if writer is None:
                writer = life.until_it_works(
                    partial(stream.create_byte_writer, name if is_named else None)
                )
                if is_named:
                    state["tokens"] = writer.acknowledged_bytes // _LENGTH
            text = ""
            for _ in range(draw.randint(1, 3)):
                text += f"{name}-{state['tokens']};".rjust(_LENGTH, "_")
                state["tokens"] += 1

            def write(writer: Any = writer, text: str = text) -> None:
                writer.write(text.encode())
                writer.flush()

            is_done, _ = life.call("write_bytes", write, stream=life.bytes, writer=name, text=text)
            if not is_done:
                writer = None
            elif draw.random() < 0.2:
                at = draw.randrange(writer.tell())
                life.call(
                    "truncate_bytes",
                    partial(writer.truncate_before, at),
                    stream=life.bytes,
                    before=at,
                )
            if draw.random() < 0.3:
                read_bytes(life)
            life.wait(draw.choice((0.0, 0.5, 3.0)))
        if writer is not None:
            life.until_it_works(writer.close)

    return body
