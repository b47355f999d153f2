"""Short histories, told call by call, for the tests of the checkers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.sim.history import Call, History


class Story(History):
    """A history in which most calls end before the next one begins."""

    def ok(self, operation: str, value: Any = None, by: str = "p", **arguments: Any) -> None:
        self.invoke(by, operation, **arguments).ok(value)

    def fail(
        self, operation: str, error: str, value: Any = None, by: str = "p", **arguments: Any
    ) -> None:
        self.invoke(by, operation, **arguments).failed(error, value)

    def unknown(self, operation: str, by: str = "p", **arguments: Any) -> None:
        self.invoke(by, operation, **arguments).unknown()

    def begin(self, operation: str, by: str = "p", **arguments: Any) -> Call:
        return self.invoke(by, operation, **arguments)

    def write(self, at: Sequence[int], *events: str, key: str | None = "k", **more: Any) -> None:
        """Acknowledge events of one key, the first of which is at a position."""
        pairs = [[key, event] for event in events]
        places = [[at[0], at[1] + n] for n in range(len(events))]
        self.ok("write", places, **{"stream": "s", "writer": "w", "events": pairs, **more})

    def read(self, *events: str | Sequence[Any], stream: str = "s", **cuts: Any) -> None:
        """Read events of key ``k`` in segment 0, or ``(segment, offset, key, event)``, in order."""
        start = cuts.get("start", {"0": 0})
        found = self._placed(events, start.get("0", 0))
        end = dict(start)
        for segment, offset, *_ in found:
            end[str(segment)] = max(end.get(str(segment), 0), offset + 1)
        end = cuts.get("end", end)
        value = {"from": start, "to": end, "events": found}
        self.ok("read", value, stream=stream, **({"to": end} if "end" in cuts else {}))

    def _placed(self, events: Iterable[str | Sequence[Any]], first: int) -> list[list[Any]]:
        found: list[list[Any]] = []
        for event in events:
            if isinstance(event, str):
                found.append([0, first, "k", event])
                first += 1
            else:
                found.append(list(event))
        return found

    def scale(
        self,
        seal: Sequence[str],
        ranges: Sequence[Sequence[float]],
        epoch: int = 1,
        sealed: Sequence[Sequence[float]] = ((0.0, 1.0),),
    ) -> None:
        """Acknowledge a scale of segments that have the keys of ``sealed``."""
        of: dict[str, Any] = {"seal": list(seal), "sealed": [list(r) for r in sealed]}
        self.ok("scale", epoch, stream="s", ranges=[list(r) for r in ranges], **of)

    def bytes_written(self, text: str, writer: str = "w") -> None:
        self.ok("write_bytes", stream="b", writer=writer, text=text)

    def bytes_read(self, text: str, start: int = 0) -> None:
        self.ok("read_bytes", {"from": start, "text": text}, stream="b")

    def copied(self, *events: Sequence[Any]) -> None:
        """Read the whole of stream ``s`` in copy ``c``."""
        value = {"from": {"0": 0}, "events": [list(event) for event in events]}
        self.ok("read_copy", value, copy="c", stream="s")

    def got(self, reader: str, at: Sequence[int], event: str, by: str | None = None) -> None:
        """A reader of group ``g`` got an event."""
        value = {"stream": "s", "position": list(at), "event": event}
        self.ok("next", value, by=by or reader, group="g", reader=reader)

    def marker(self, reader: str, name: str) -> None:
        self.ok("next", {"checkpoint": name}, by=reader, group="g", reader=reader)

    def join(self, reader: str, acknowledge: str = "next", **more: Any) -> None:
        of = {"group": "g", "reader": reader, "acknowledge": acknowledge, "streams": ["s"]}
        self.ok("join", by=reader, **of, **more)

    def leave(self, reader: str) -> None:
        self.ok("leave", by=reader, group="g", reader=reader)

    def expire(self, reader: str) -> None:
        self.ok("expire", group="g", reader=reader)

    def stage(self, transaction: str, **streams: Sequence[str]) -> None:
        """A transaction has events of key ``k`` in streams."""
        pairs = {name: [["k", event] for event in events] for name, events in streams.items()}
        self.ok("stage", transaction=transaction, streams=pairs)

    def commit(self, transaction: str, **more: Any) -> None:
        self.ok("commit", transaction=transaction, **more)

    def put(self, version: int, by: str = "p", **changes: str | None) -> None:
        """Acknowledge an update; each key is a segment of its own."""
        keys = [{"key": key, "value": value} for key, value in changes.items()]
        versions = [_version_of(key, version) for key in changes]
        self.ok("update", versions, by=by, table="t", changes=keys)

    def get(
        self, found: Mapping[str, tuple[str, int] | None], by: str = "p", *, fresh: bool = True
    ) -> None:
        """Get keys; an entry is its value and version."""
        values = [pair and [pair[0], _version_of(key, pair[1])] for key, pair in found.items()]
        self.ok("get", values, by=by, table="t", keys=list(found), fresh=fresh)

    def scan(self, by: str = "p", **found: tuple[str, int]) -> None:
        """Scan a table; an entry is its value and version."""
        entries = {key: [value, _version_of(key, n)] for key, (value, n) in found.items()}
        self.ok("scan", entries, by=by, table="t")


def _version_of(key: str, number: int) -> list[int]:
    return ["abc".index(key), number]
