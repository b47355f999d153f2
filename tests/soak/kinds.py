"""Streams whose events are stored in other ways: large ones, rows, and encrypted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.sim import large_events
from tests.sim.answers import position_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import KEYS, read_all, stream_of

MASTER_KEY = "master"
"""Of the encrypted stream: processes have a key management system that knows it."""


def text_of_row(row: Mapping[str, Any]) -> str:
    """Return the text of a row; one with another number has a text that nobody wrote."""
    text: str = row["item"]
    return text if row["number"] == len(text) else f"{text}, not whole"


@dataclass(frozen=True)
class Kind:
    """A stream, and what is stored there for an event, which in a history is a short text."""

    name: str
    stored: Callable[[str], Any]
    text: Callable[[Any], str]
    configured: Callable[[Any], Mapping[str, Any]] = lambda package: {}
    """The fields of the stream's configuration."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of writers."""

    def of(self, life: Life) -> str:
        """Return the stream's name, and create it unless it is there."""
        name = f"{life.scope}/{self.name}"
        stream_of(life, name, **self.configured(life.package))
        return name

    def read(self, life: Life) -> bool:
        """Read all of the stream, as a call of the history."""
        return read_all(life, self.of(life), self.text)


LARGE = Kind(
    "large", large_events.large_event, large_events.text_of, options={"large_events": True}
)
ROWS = Kind(
    "rows",
    lambda text: {"item": text, "number": len(text)},
    text_of_row,
    lambda package: {"schema": package.StreamSchema.from_ddl("item string, number int")},
)
SECRET = Kind(
    "secret",
    str,
    bytes.decode,
    lambda package: {"encryption": package.EncryptionPolicy(MASTER_KEY)},
)
KINDS = (LARGE, ROWS, SECRET)


def user(kind: Kind, rounds: int) -> Body:
    """Return a program that writes events and transactions to a stream of a kind, and reads it."""

    def body(life: Life) -> None:
        stream, draw, state = life.manager().stream(kind.of(life)), life.source, life.state
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            name = f"{life.author}-{state['round']}"
            if draw.random() < 0.4:
                _commit(life, kind, stream, name)
            else:
                _write(life, kind, stream, name)
            if draw.random() < 0.3:
                kind.read(life)
            life.wait(draw.choice((0.0, 0.1, 1.0)))

    return body


def _write(life: Life, kind: Kind, stream: Any, event: str) -> None:
    writer = life.until_it_works(partial(stream.create_writer, **kind.options))
    key = life.source.choice(KEYS)
    is_done, _ = life.call(
        "write",
        lambda: writer.write_event(kind.stored(event), key).result(),
        told=lambda pointer: [position_of(pointer)],
        stream=stream.name,
        writer=life.name,
        events=[[key, event]],
    )
    if is_done:
        life.until_it_works(writer.close)


def _commit(life: Life, kind: Kind, stream: Any, name: str) -> None:
    writer = life.until_it_works(partial(stream.create_transactional_writer, **kind.options))
    pairs = [[life.source.choice(KEYS), f"{name}.{n}"] for n in range(life.source.randint(1, 2))]
    life.call("stage", lambda: None, transaction=name, streams={stream.name: pairs})

    def commit() -> None:
        transaction = writer.begin_transaction()
        for key, event in pairs:
            transaction.write_event(kind.stored(event), key)
        transaction.commit()

    is_done, _ = life.call("commit", commit, transaction=name)
    if is_done:
        life.until_it_works(writer.close)
