"""Writers with and without ids, conditional ones, fenced ones, and readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tests.sim.answers import cut_of, position_of
from tests.sim.lives import Body, Life
from tests.sim.workloads.common import KEYS, large, read_all, stream_of


class Writing:
    """Writes of one writer whose futures are waited for later."""

    def __init__(self, life: Life, writer: Any, writer_name: str, **more: Any) -> None:
        self.life, self.writer, self.name = life, writer, writer_name
        self.more = {"stream": life.stream, **more}
        self.open: list[tuple[Any, Any]] = []

    def write(self, events: list[list[Any]]) -> bool:
        """Begin to write events; return False if the writer refuses."""
        life = self.life
        call = life.begin("write", writer=self.name, events=events, **self.more)
        keys = {key for key, _ in events}
        try:
            if len(events) == 1:
                future = self.writer.write_event(events[0][1], events[0][0])
            else:
                assert len(keys) == 1
                future = self.writer.write_events([e for _, e in events], events[0][0])
        except life.errors.PravegaSparkError as error:
            call.failed(error)
            return False
        self.open.append((call, future))
        return True

    def settle(self) -> bool:
        """Wait for all that is open; return whether all was acknowledged."""
        is_good = True
        waiting, self.open = self.open, []
        for call, future in waiting:
            try:
                found = future.result()
            except self.life.errors.PravegaSparkError as error:
                is_good = False
                call.ended_with(error)
                self.life.look_at(error)
            else:
                pointers = found if isinstance(found, tuple) else (found,)
                call.ok([position_of(pointer) for pointer in pointers])
        return is_good


def nameless_writer(rounds: int, waits: Sequence[float] = (0.0, 0.05, 2.0)) -> Body:
    """Return a program that writes without an id: what failed is not written again."""

    def body(life: Life) -> None:
        stream_of(life)
        state, draw = life.state, life.source
        writing = None
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            if draw.random() < 0.25:
                life.pause_soon()
            if writing is None:
                writer = life.until_it_works(life.manager().stream(life.stream).create_writer)
                state["writer"] = state.setdefault("writer", 0) + 1
                # Of its own: what the one before tried may come late.
                writing = Writing(life, writer, f"{life.name}/{state['writer']}")
            for _ in range(draw.randint(1, 3)):
                key = draw.choice((None, *KEYS))
                events = []
                for _ in range(draw.choice((1, 1, 3))):
                    state["event"] = state.setdefault("event", 0) + 1
                    events.append([key, f"{life.author}-{state['event']}"])
                if not writing.write(events):
                    break
            if not writing.settle():
                writing = None
            life.wait(draw.choice(waits))
        if writing is not None:
            life.until_it_works(writing.writer.close)

    return body


def named_writer(writer_id: str, events: int) -> Body:
    """Return a program that writes its events once each, over all of its lives."""

    def body(life: Life) -> None:
        stream_of(life)
        draw, session = life.source, 0
        while True:
            session += 1
            own = {"session": f"{life.name}/{session}"}
            opened, writer = life.call(
                "open_writer",
                lambda: life.manager().stream(life.stream).create_writer(writer_id),
                told=lambda writer: writer.last_event_number,
                stream=life.stream,
                writer=writer_id,
                **own,
            )
            if not opened:
                life.wait(1.0)
                continue
            writing = Writing(life, writer, writer_id, **own)
            number = writer.last_event_number
            is_good = True
            while is_good and number < events:
                for _ in range(draw.randint(1, 4)):
                    number += 1
                    is_good = is_good and writing.write(
                        [[KEYS[number % 3], f"{writer_id}-{number}"]]
                    )
                    if draw.random() < 0.2:  # then it is another batch, beside those in flight
                        life.wait(0.05)
                is_good = writing.settle() and is_good
                life.wait(draw.choice((0.0, 0.05, 2.0)))
            if is_good:
                life.until_it_works(writer.close)
                return
            life.wait(draw.choice((0.0, 1.0, 10.0)))  # else two of one id fence each other for ever

    return body


def _pieces(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), 3_000_000):
        yield data[at : at + 3_000_000]


def large_writer(rounds: int) -> Body:
    """Return a program that writes large events, from bytes or pieces, between small ones."""

    def body(life: Life) -> None:
        stream, draw, state, writer = stream_of(life), life.source, life.state, None
        while state.setdefault("round", 0) < rounds:
            state["round"] += 1
            for number, is_large in enumerate(draw.choice(((True,), (False, True, False)))):
                text = f"{life.author}-{state['round']}-{number}"
                event: Any = large(text) if is_large else text
                if is_large and draw.random() < 0.5:
                    event = _pieces(event)
                if writer is None:
                    create = partial(stream.create_writer, large_events=True)
                    writer = life.until_it_works(create)
                if not write_one(life, writer, text, life.stream, draw.choice(KEYS), event):
                    writer = None
            life.wait(draw.choice((0.0, 2.0)))
        if writer is not None:
            life.until_it_works(writer.close)

    return body


def write_one(
    life: Life,
    writer: Any,
    event: str,
    name: str,
    key: str = "k0",
    data: Any = None,
    handle: str = "",
) -> bool:
    """Write an event, as a call of the history; ``data`` is it if histories have it shorter.

    ``handle`` names one of several of the process.
    """
    return life.call(
        "write",
        lambda: writer.write_event(event if data is None else data, key).result(),
        told=lambda pointer: [position_of(pointer)],
        stream=name,
        writer=life.name + handle,
        events=[[key, event]],
    )[0]


def reader(rounds: int) -> Body:
    """Return a program that reads whole streams again and again."""

    def body(life: Life) -> None:
        stream_of(life)
        for _ in range(rounds):
            names = [name for name in (life.stream, life.other) if name in life.made]
            read_all(life, life.source.choice(names))
            life.wait(life.source.choice((0.1, 3.0)))

    return body


def write_if(
    life: Life,
    writer: Any,
    written: list[str],
    expected: Any,
    recorded: Mapping[str, Any],
    *,
    stream: str,
    session: str,
) -> tuple[bool, Any]:
    """Write a key's event on a condition, as a call of the history, which has it as recorded."""
    key, event = written
    return life.call(
        "write_if",
        lambda: writer.write_event(event, key, expected=expected).result(),
        told=lambda pointer: [position_of(pointer)],
        stream=stream,
        writer=life.name,
        session=session,
        events=[written],
        expected=recorded,
    )


def conditional_writer(rounds: int) -> Body:
    """Return a program that writes only at the position that it expects."""

    def body(life: Life) -> None:
        stream, draw, state = stream_of(life), life.source, life.state
        writer = last = None
        handles = 0
        for _ in range(rounds):
            state["event"] = state.setdefault("event", 0) + 1
            event, key = f"{life.author}-{state['event']}", draw.choice(KEYS)
            if writer is None:
                writer = life.until_it_works(stream.create_writer)
                handles += 1
            kind = draw.choice(("position", "position", "cut", "number"))
            if kind == "position" and last is not None:
                expected = life.package.EventPointer(
                    last.stream, last.life, last.segment_id, last.offset + 1
                )
                recorded: Any = {"position": position_of(expected)}
            elif kind == "cut":
                expected = life.until_it_works(stream.tail)
                recorded = {"cut": cut_of(expected)}
            else:
                expected = writer.last_event_number + draw.choice((0, 0, 0, 1))
                recorded = {"number": expected}

            session = f"{life.name}/{handles}"
            is_done, found = write_if(
                life, writer, [key, event], expected, recorded, stream=life.stream, session=session
            )
            if is_done:
                last = found
            elif not isinstance(found, life.errors.ConditionFailed):
                writer = None
            life.wait(draw.choice((0.0, 0.5, 2.0)))

    return body


def fencing_writer(token: str, rounds: int) -> Body:
    """Return a program that takes the stream over by its token, and writes while it has it."""

    def body(life: Life) -> None:
        stream, draw, state = stream_of(life), life.source, life.state
        for _ in range(rounds):
            life.wait(draw.choice((0.1, 3.0)))
            mine = f"{token}{life.lives}"
            life.call("fence", partial(stream.fence, mine), stream=life.stream, token=mine)
            try:
                writer = stream.create_writer(fencing_token=mine)
            except life.errors.PravegaSparkError:
                continue
            writing = Writing(life, writer, life.name, token=mine)
            for _ in range(3):
                state["event"] = state.setdefault("event", 0) + 1
                event = [draw.choice(KEYS), f"{life.author}-{state['event']}"]
                if not (writing.write([event]) and writing.settle()):
                    break
                life.wait(draw.choice((0.0, 1.0)))

    return body
