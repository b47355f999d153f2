"""What a history says of one stream: who tried to write which event, and who read it where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.sim.checkers.layouts import Layout
from tests.sim.recorded import Recorded

Position = tuple[str, int]
Cut = Mapping[str, int]


@dataclass
class Tried:
    """An event that somebody tried to write."""

    event: str
    key: str | None
    calls: list[Recorded] = field(default_factory=list)
    """Those that may put it into its stream: of a transaction its commits."""
    transaction: str | None = None
    batch: int = 0
    """The call, or the transaction's stage, that wrote it first."""
    writer: str | None = None
    number: int = 0
    """Its place among the events of the history, in the order in which they were first tried."""
    told: int | None = None
    """The line on which a writer with an id was told that it is durable, by its number."""

    @property
    def began(self) -> int | None:
        """The first line at which it may have come into the stream; None if it never may."""
        return min((call.began for call in self.calls if call.may_have_happened), default=None)

    def acknowledged(self) -> int | None:
        """The line from which on it is visible."""
        ended = [c.ended for c in self.calls if c.ok and c.arguments.get("wait", True)]
        lines = [line for line in (*ended, self.told) if line is not None]
        return min(lines, default=None)

    def positions(self) -> Iterator[tuple[Recorded, Position]]:
        """Yield where it lies by each acknowledgement."""
        for call in self.calls:
            if call.ok and call.operation in ("write", "write_if"):
                for (_, event), position in zip(call.arguments["events"], call.value, strict=True):
                    if event == self.event:
                        yield call, placed(position)


@dataclass
class Seen:
    """An event that a call got, from a read or as a reader of a group."""

    call: Recorded
    position: Position
    event: str
    key: str | None = None


@dataclass
class Read:
    """A read of a stream between two cuts."""

    call: Recorded
    start: Cut
    end: Cut
    seen: list[Seen]

    def covers(self, position: Position, layout: Layout) -> bool:
        """Return whether a position lies between the read's cuts."""
        return layout.before(position, self.end) and not layout.before(position, self.start)

    def is_whole(self, layout: Layout) -> bool:
        """Return whether it begins at the first event that the stream ever had."""
        return layout.is_first(self.start)

    @property
    def to_the_tail(self) -> bool:
        return self.call.arguments.get("to") is None


@dataclass
class StreamHistory:
    """All calls of a history that concern one stream."""

    name: str
    tried: dict[str, Tried] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    handed: list[Seen] = field(default_factory=list)
    """What readers of groups got."""
    heads: list[tuple[Recorded, Cut]] = field(default_factory=list)
    """Heads, by the calls that told them."""
    truncations: list[Recorded] = field(default_factory=list)
    """Those that were acknowledged."""
    layout: Layout = field(default_factory=Layout)
    is_deleted: bool = False

    def heads_until(self, line: int | None = None) -> list[Cut]:
        """Return the heads that calls saw or made that had begun before a line; by default all."""
        known = [*self.heads, *((call, call.arguments["cut"]) for call in self.truncations)]
        return [cut for call, cut in known if line is None or call.began < line]

    def seen(self) -> Iterator[Seen]:
        """Yield all that anybody got, reads first."""
        for read in self.reads:
            yield from read.seen
        yield from self.handed

    def order(self) -> dict[str, int]:
        """Return the place of each event in the read that shows most of them."""
        longest = max(self.reads, key=lambda read: len(read.seen), default=None)
        return {} if longest is None else {s.event: n for n, s in enumerate(longest.seen)}

    def is_behind(self, start: Cut, tried: Tried) -> bool:
        """Return whether an event lies behind a cut, wherever that is: nothing was before the cut,
        or it was told as a head before anybody may have put the event there."""
        if self.layout.is_first(start):
            return True
        began = tried.began
        told = (call.ended for call, head in self.heads if head == start)
        return began is not None and any(line is not None and line < began for line in told)

    def is_truncated(self, position: Position) -> bool:
        """Return whether a position lies before a head that the history shows, or is gone with its
        stream."""
        return self.is_deleted or any(self.layout.before(position, head) for _, head in self.heads)

    def places(self) -> dict[str, Position]:
        """Return where events lie, as far as the history shows it."""
        places = {e: where for e, t in self.tried.items() for _, where in t.positions()}
        return places | {seen.event: seen.position for seen in self.seen()}


def placed(position: Sequence[Any]) -> Position:
    """Return a position with its segment as a text, as cuts have it."""
    return str(position[0]), int(position[1])


def streams_of(calls: Sequence[Recorded]) -> dict[str, StreamHistory]:
    """Return the streams of a history by name."""
    found: dict[str, StreamHistory] = {}

    def stream(name: str) -> StreamHistory:
        return found.setdefault(name, StreamHistory(name))

    ends: dict[str, list[Recorded]] = {}
    for call in calls:
        if call.operation == "commit":
            ends.setdefault(call.arguments["transaction"], []).append(call)
    number = 0
    for call in calls:
        of = call.arguments
        if call.operation in ("write", "write_if"):
            for key, event in of["events"]:
                number += 1
                tried = Tried(event, key, batch=call.number, writer=of["writer"], number=number)
                stream(of["stream"]).tried.setdefault(event, tried).calls.append(call)
        elif call.operation == "stage":
            commits = ends.get(of["transaction"], [])
            for name, events in of["streams"].items():
                for key, event in events:
                    number += 1
                    stream(name).tried[event] = Tried(
                        *(event, key, commits, of["transaction"], call.number),
                        number=number,
                    )
        elif call.operation == "read" and call.ok:
            seen = [Seen(call, placed(e[:2]), e[3], e[2]) for e in call.value["events"]]
            read = Read(call, call.value["from"], call.value["to"], seen)
            stream(of["stream"]).reads.append(read)
            if of.get("from") is None:
                stream(of["stream"]).heads.append((call, read.start))
        elif call.operation in ("truncate", "retain") and call.ok:
            if call.value is not None:
                stream(of["stream"]).heads.append((call, call.value))
            if call.operation == "truncate":
                stream(of["stream"]).truncations.append(call)
        elif call.operation == "next" and call.ok and call.value and "event" in call.value:
            got = call.value
            stream(got["stream"]).handed.append(Seen(call, placed(got["position"]), got["event"]))
        elif call.operation == "open_writer" and call.ok:
            _tell(stream(of["stream"]), call)
        elif call.operation == "delete_stream" and call.may_have_happened:
            stream(of["stream"]).is_deleted = True
        elif call.operation == "layout" and call.ok:
            stream(of["stream"]).layout = Layout(call.value)
    return found


def _tell(stream: StreamHistory, opened: Recorded) -> None:
    """Note which events are durable by the number that a writer with an id was told.

    Whoever continues the id begins after that number, so its events were first tried in order.
    """
    its = [t for t in stream.tried.values() if t.writer == opened.arguments["writer"]]
    for tried in its[: opened.value]:
        if tried.told is None:
            tried.told = opened.ended
