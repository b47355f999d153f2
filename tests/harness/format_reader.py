"""A reader of streams on a local disk that was written from docs/FORMAT.md.

It imports the standard library, pyarrow and its own columns alone, so that nothing of the package
can help it.
Neither contains XXH3: to check digests, pass the two functions.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness import format_columns

END, FUTURE = -1, -2
KNOWN_FEATURES = {
    *("domainMetadata", "inCommitTimestamp"),
    *("pravega-stream", "pravega-rows", "pravega-columns"),
}
CHUNK_COLUMNS = [
    ("offset_delta", pa.int32()),
    ("routing_key", pa.string()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("event", pa.binary()),
]

Digest = Callable[[bytes], str]
Add = dict[str, Any]


class Refused(Exception):
    """Data that a reader must refuse according to the page."""


# ------------------------------------------------------------------- names, ids and texts

_MASK = (1 << 64) - 1
_P1, _P2, _P3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
_P4, _P5 = 9650029242287828579, 2870177450012600261


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _round(state: int, lane: int) -> int:
    return _rotate((state + lane * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification has it."""
    lanes = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data) // 32 * 32, 8)]
    if lanes:
        states = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        for at, lane in enumerate(lanes):
            states[at % 4] = _round(states[at % 4], lane)
        found = sum(map(_rotate, states, (1, 7, 12, 18))) & _MASK
        for state in states:
            found = ((found ^ _round(0, state)) * _P1 + _P4) & _MASK
    else:
        found = (seed + _P5) & _MASK
    found = (found + len(data)) & _MASK
    at = len(lanes) * 8
    while at + 8 <= len(data):
        lane = int.from_bytes(data[at : at + 8], "little")
        found = (_rotate(found ^ _round(0, lane), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= len(data):
        lane = int.from_bytes(data[at : at + 4], "little")
        found = (_rotate(found ^ lane * _P1 & _MASK, 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotate(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def position(routing_key: str) -> float:
    """Where a key lies in [0, 1)."""
    return (xxh64(routing_key.encode(), 42) >> 11) / (1 << 53)


def segment_text(segment_id: int) -> str:
    """A segment as text, ``number#epoch``."""
    return f"{segment_id & 0xFFFFFFFF}#{segment_id >> 32}"


def cut_text(stream: str, life: int, offsets: dict[int, int]) -> str:
    """A cut as text."""
    marks = {END: "end", FUTURE: "future"}
    cells = (f"{segment_text(s)}={marks.get(o, o)}" for s, o in sorted(offsets.items()))
    return f"{stream}@{life}:{','.join(cells)}"


# ------------------------------------------------------------------------- a table's log


@dataclass
class Layer:
    """The net file actions of the versions behind ``older``."""

    older: int
    adds: dict[str, Add] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def apply(self, actions: list[dict[str, Any]]) -> None:
        for action in actions:
            if "add" in action:
                self.adds[action["add"]["path"]] = action["add"]
            elif "remove" in action and not self.adds.pop(action["remove"]["path"], None):
                self.removed.add(action["remove"]["path"])


@dataclass
class Base:
    """A state that a table can be opened from: of a state file, a checkpoint or version 0."""

    version: int
    protocol: dict[str, Any]
    domains: dict[str, str]
    schema_string: str = ""


class Table:
    """A table of a root on a local disk, as of its newest version."""

    def __init__(self, folder: Path, digest_64: Digest | None, digest_128: Digest | None) -> None:
        self._folder = folder
        self._digest_64, self._digest_128 = digest_64, digest_128
        base = self._base()
        self.version, self._protocol, self.domains = base.version, base.protocol, base.domains
        self.schema_string = base.schema_string
        newest = Layer(base.version)
        self._guard()
        while (actions := self._commit(self.version + 1)) is not None:
            self.version += 1
            self._apply(actions)
            newest.apply(actions)
        self._layers = [newest]

    def live(self) -> list[Add]:
        """The live files, by the layers of the page."""
        while self._layers[-1].older >= 0:
            self._layers.append(self._layer(self._layers[-1].older))
        removed: set[str] = set()
        found: list[Add] = []
        for layer in self._layers:
            found += [add for path, add in layer.adds.items() if path not in removed]
            removed |= layer.removed
        return found

    def read(self, add: Add) -> bytes:
        """The bytes of a live file."""
        data = Path(self._folder, add["path"]).read_bytes()
        if len(data) != add["size"]:
            raise Refused(f"{add['path']} has {len(data)} bytes")
        length, _, digest = (add.get("tags") or {}).get("footer", "").partition("-")
        if self._digest_64 and length and self._digest_64(data[-int(length) :]) != digest:
            raise Refused(f"{add['path']} has another footer")
        return data

    def payload(self, add: Add, row: bytes) -> bytes:
        """The bytes of a large event, by the reference that its chunk holds."""
        reference = json.loads(row)
        size, digest = reference["bytes"], reference["digest"]
        path = add["path"].removesuffix(f"-{size}.parquet")
        if (add["tags"]["attachment"], path) != (f"{size}-{digest}", reference["large_event"]):
            raise Refused(f"{add['path']} names another object")
        data = Path(self._folder, path).read_bytes()
        step = reference["block_bytes"]
        blocks = [data[at : at + step] for at in range(0, len(data), step)]
        if len(data) != size or (self._digest_128 and self._digest_128(data) != digest):
            raise Refused(f"{path} is damaged")
        if self._digest_64 and [*map(self._digest_64, blocks)] != reference["blocks"]:
            raise Refused(f"{path} is damaged")
        return data

    # ---- the log

    def _get(self, key: str) -> bytes | None:
        path = self._folder / key
        return path.read_bytes() if path.exists() else None

    def _commit(self, version: int) -> list[dict[str, Any]] | None:
        data = self._get(f"_delta_log/{version:020d}.json")
        if data is None:
            return None
        first, _, rest = data.partition(b"\n")
        head, _, digest = first.rpartition(b',"digest":"')
        actions = [json.loads(line) for line in data.splitlines()]
        info = actions[0]["commitInfo"]
        if not info["engineInfo"].startswith("pravega_spark/"):
            raise Refused(f"version {version} is of {info['engineInfo']}")
        if self._digest_64 and f'{self._digest_64(head + rest)}"}}}}'.encode() != digest:
            raise Refused(f"version {version} is damaged")
        return actions

    def committed_ms(self) -> int:
        """The time of the newest commit."""
        actions = self._commit(self.version)
        assert actions is not None
        found: int = actions[0]["commitInfo"]["inCommitTimestamp"]
        return found

    def _token(self, version: int) -> str | None:
        actions = self._commit(version)
        return None if actions is None else actions[0]["commitInfo"]["txnId"]

    def _apply(self, actions: list[dict[str, Any]]) -> None:
        for action in actions:
            if "protocol" in action:
                self._protocol = action["protocol"]
                self._guard()
            elif "metaData" in action:
                self.schema_string = action["metaData"]["schemaString"]
            elif "domainMetadata" in action:
                record = action["domainMetadata"]
                if record["removed"]:
                    self.domains.pop(record["domain"], None)
                else:
                    self.domains[record["domain"]] = record["configuration"]

    def _guard(self) -> None:
        features = set(self._protocol.get("writerFeatures") or ())
        versions = self._protocol["minReaderVersion"], self._protocol["minWriterVersion"]
        if versions != (1, 7) or "pravega-stream" not in features or features - KNOWN_FEATURES:
            raise Refused(f"protocol {versions}, features {sorted(features)}")

    # ---- bases

    def _base(self) -> Base:
        hint = json.loads(self._get("_pravega/latest.json") or b'{"state":-1}')
        state = self._state(hint["state"])
        if state is not None:
            return self._with_parts(state[0], hint.get("parts", []))
        first = self._commit(0)
        if first is None:
            raise Refused("there is no log, or it has no version 0")
        for version in self._listed("state"):
            state = self._state(version)
            if state is not None:
                return state[0]
        for version in self._listed("checkpoint"):
            checkpoint = self._checkpoint(version)
            if checkpoint is not None:
                return checkpoint[0]
        protocol = next(action["protocol"] for action in first if "protocol" in action)
        return Base(-1, protocol, {})

    def _with_parts(self, base: Base, ends: list[int]) -> Base:
        """The state after as many of the parts as are intact and follow one another."""
        token = self._token(base.version)
        for end in ends:
            part = self._part(base.version, end)
            if part is None or part[0]["sinceToken"] != token:
                break
            record, (state, *_) = part
            base.version, token = end, record["token"]
            base.protocol = state["protocol"] or base.protocol
            if state["metaData"]:
                base.schema_string = state["metaData"]["schemaString"]
            for name, text in state["domains"].items():
                if text is None:
                    base.domains.pop(name, None)
                else:
                    base.domains[name] = text
        return base

    def _part(self, since: int, end: int) -> tuple[dict[str, Any], list[Any]] | None:
        data = self._get(f"_pravega/part/{end:020d}-{since:020d}.json")
        first, _, rest = (data or b"{}").partition(b"\n")
        record = None if data is None else self._vouched(first, rest)
        if record is None or record["format"] != 2:
            return None
        rest = pa.decompress(rest, record["size"], codec="zstd", asbytes=True)
        return record, [json.loads(line) for line in rest.splitlines()]

    def _listed(self, kind: str) -> list[int]:
        found = (self._folder / "_pravega" / kind).glob("*.json")
        return sorted((int(path.stem) for path in found), reverse=True)

    def _vouched(self, line: bytes, rest: bytes) -> dict[str, Any] | None:
        """The record of a line, if its digest and its token are right."""
        record: dict[str, Any] = json.loads(line)
        head, _, _ = line.rpartition(b',"digest":"')
        if self._digest_128 and self._digest_128(head + b"}" + rest) != record["digest"]:
            return None
        return record if record["token"] == self._token(record["version"]) else None

    def _state(self, version: int) -> tuple[Base, Layer] | None:
        data = self._get(f"_pravega/state/{version:020d}.json") if version >= 0 else None
        if data is None:
            return None
        first, _, rest = data.partition(b"\n")
        record = self._vouched(first, rest)
        if record is None or record["format"] not in (1, 2) or record["version"] != version:
            return None
        if record["format"] == 2:
            rest = pa.decompress(rest, record["size"], codec="zstd", asbytes=True)
        state, *lines = [json.loads(line) for line in rest.splitlines()]
        layer = self._layer_of(record["since"], lines)
        base = Base(version, state["protocol"], dict(state["domains"]))
        base.schema_string = state["metaData"]["schemaString"]
        return base, layer

    def _layer_of(self, since: int, lines: list[Any]) -> Layer:
        layer = Layer(since)
        for line in lines:
            if "add" in line:
                layer.adds[line["add"]["path"]] = line["add"]
            else:
                layer.removed.add(line["remove"])
        return layer

    def _checkpoint(self, version: int) -> tuple[Base, Layer] | None:
        data = self._get(f"_delta_log/{version:020d}.checkpoint.parquet")
        line = self._get(f"_pravega/checkpoint/{version:020d}.json")
        record = None if data is None or line is None else self._vouched(line.rstrip(), data)
        if data is None or record is None or record["size"] != len(data):
            return None
        rows = pq.ParquetFile(pa.BufferReader(data)).read().to_pylist()
        base = Base(version, {}, {})
        layer = Layer(-1)
        for row in rows:
            if row["protocol"]:
                base.protocol = {k: v for k, v in row["protocol"].items() if v is not None}
            if row["metaData"]:
                base.schema_string = row["metaData"]["schemaString"]
            if row["domainMetadata"]:
                record = row["domainMetadata"]
                base.domains[record["domain"]] = record["configuration"]
            if row["add"]:
                maps = {name: dict(row["add"][name] or ()) for name in ("partitionValues", "tags")}
                layer.adds[row["add"]["path"]] = {**row["add"], **maps}
        return base, layer

    def _layer(self, version: int) -> Layer:
        checkpoint = self._checkpoint(version)
        if checkpoint is not None:
            return checkpoint[1]
        between = [v for v in self._listed("checkpoint") if v < version]
        state = self._state(version)
        if state is not None and not any(v > state[1].older for v in between):
            return state[1]
        for path in (self._folder / "_pravega/part").glob(f"{version:020d}-*.json"):
            since = int(path.stem[-20:])
            part = self._part(since, version)
            if part is not None and not any(v > since for v in between):
                return self._layer_of(since, part[1][1:])
        sound = (v for v in between if self._checkpoint(v) is not None)
        layer = Layer(next(sound, -1))
        for number in range(layer.older + 1, version + 1):
            actions = self._commit(number)
            if actions is None:
                raise Refused(f"version {number} of the log is missing")
            layer.apply(actions)
        return layer


# ------------------------------------------------------------------------------ a stream


@dataclass(frozen=True)
class Event:
    """An event as it was read."""

    offset: int
    routing_key: str | None
    timestamp_us: int
    data: Any
    """Bytes, or of a typed stream a dict of its columns."""


class Stream:
    """A stream as of the newest version of its log."""

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        digest_64: Digest | None = None,
        digest_128: Digest | None = None,
    ) -> None:
        marker = json.loads((root / "_pravega_spark.json").read_bytes())
        if marker["format"] != 1:
            raise Refused(f"the root has format {marker['format']}")
        self.name = name
        self._table = Table(root / name / "events", digest_64, digest_128)
        self._record = self._json("pravega.stream")
        if self._record["format"] != 1:
            raise Refused(f"the stream has format {self._record['format']}")
        if self._record["state"] == "DELETED":
            raise Refused(f"there is no stream {name}")
        self.life: int = self._record["life"]
        self.columns = format_columns.typed_columns(self._table.schema_string)
        self._live: dict[int, list[Add]] = {}
        for add in self._table.live():
            self._live.setdefault(int(add["partitionValues"]["segment_id"]), []).append(add)
        for adds in self._live.values():
            adds.sort(key=_base_offset)

    def _json(self, domain: str) -> Any:
        return json.loads(self._table.domains[domain])

    @property
    def version(self) -> int:
        """The newest version of the log."""
        return self._table.version

    @property
    def state(self) -> str:
        """ACTIVE, SEALING or SEALED."""
        return str(self._record["state"])

    @property
    def committed_ms(self) -> int:
        """The time of the newest commit."""
        return self._table.committed_ms()

    def record(self, domain: str) -> Any:
        """The record of a domain; None if the state has none."""
        text = self._table.domains.get(domain)
        return None if text is None else json.loads(text)

    @property
    def configuration(self) -> dict[str, Any]:
        """What the stream was configured with."""
        found: dict[str, Any] = self._record["configuration"]
        return found

    def epochs(self) -> dict[int, list[tuple[int, float, float]]]:
        """The kept epochs: of each the segments with their ranges."""
        numbers = range(self._record["oldestEpoch"], self._record["activeEpoch"] + 1)
        return {n: self._segments_of(n) for n in numbers}

    def _segments_of(self, epoch: int) -> list[tuple[int, float, float]]:
        return [(s, low, high) for s, low, high in self._json(f"pravega.epoch.{epoch}")["segments"]]

    def head(self) -> str:
        """The head, as text."""
        return cut_text(self.name, self.life, self._head())

    def _head(self) -> dict[int, int]:
        return {int(segment): offset for segment, offset in self._record["head"].items()}

    def tail(self) -> str:
        """The tail, as text."""
        offsets = {}
        for segment, _, _ in self._segments_of(self._record["activeEpoch"]):
            length, _, sealed = self._json(f"pravega.segment.{segment}")
            offsets[segment] = length if sealed is None else END
        return cut_text(self.name, self.life, offsets)

    def writer(self, writer_id: str) -> tuple[int, int, int, str | None, int]:
        """Session, last number and version of a writer, its note and the note's number."""
        session, last, version, *early = self._json(f"pravega.writer.{writer_id}")
        note = early or [None, 0]
        if not early and f"pravega.note.{writer_id}" in self._table.domains:
            note = self._json(f"pravega.note.{writer_id}")
        return session, last, version, note[0], note[1]

    def transactions(self) -> dict[str, tuple[bool, int]]:
        """Of each transaction that has ended whether it was committed, and with how many events."""
        prefix = "pravega.transaction."
        found = {n.removeprefix(prefix): self._json(n) for n in self._table.domains if prefix in n}
        return {name: (record[0], record[5]) for name, record in found.items()}

    def successors(self, segment: int) -> list[int]:
        """The segments that go on with a segment's keys."""
        sealed = self._json(f"pravega.segment.{segment}")[2]
        if sealed is None or segment in [s for s, _, _ in self._segments_of(sealed)]:
            return []
        return self._overlapping(sealed, *self._range(segment))

    def predecessors(self, segment: int) -> list[int]:
        """Return the predecessors of a segment."""
        if segment >> 32 <= self._record["oldestEpoch"]:
            return []
        return self._overlapping((segment >> 32) - 1, *self._range(segment))

    def _range(self, segment: int) -> tuple[float, float]:
        created = max(segment >> 32, self._record["oldestEpoch"])
        ranges = {s: (low, high) for s, low, high in self._segments_of(created)}
        return ranges[segment]

    def _overlapping(self, epoch: int, low: float, high: float) -> list[int]:
        return [s for s, a, b in self._segments_of(epoch) if a < high and low < b]

    def route(self, routing_key: str) -> int:
        """The segment that takes an event with this key now."""
        segments = self._segments_of(self._record["activeEpoch"])
        at = bisect_right([low for _, low, _ in segments], position(routing_key)) - 1
        return segments[at][0]

    def read(self) -> dict[int, list[Event]]:
        """All events from the head to the tail by segment, predecessors before their successors."""
        head = self._head()
        begun = {segment: offset for segment, offset in head.items() if offset != FUTURE}
        finished: dict[int, list[Event]] = {}
        todo = list(begun)
        while todo:
            segment = todo.pop(0)
            length = self._json(f"pravega.segment.{segment}")[0]
            start = length if begun[segment] == END else begun[segment]
            finished[segment] = list(self._events(segment, start, length))
            for after in self.successors(segment):
                before = self.predecessors(after)
                if after not in begun and all(s in finished for s in before):
                    begun[after] = 0
                    todo.append(after)
        return {segment: events for segment, events in finished.items() if events}

    def _events(self, segment: int, start: int, end: int) -> Iterator[Event]:
        at = start
        for add in self._live.get(segment, ()):
            base, rows = _base_offset(add), int(add["tags"]["rows"])
            if base + rows <= at or base >= end:
                continue
            if base > at:
                break
            for event in self._chunk(add, base, rows):
                if at <= event.offset < end:
                    yield event
            at = min(end, base + rows)
        if at < end:
            raise Refused(f"segment {segment_text(segment)} has no event at offset {at}")

    def _chunk(self, add: Add, base: int, rows: int) -> Iterator[Event]:
        source = pa.BufferReader(self._table.read(add))
        table = pq.ParquetFile(source, page_checksum_verification=True).read()
        if not self._has_columns(table.schema) or table.num_rows != rows:
            raise Refused(f"{add['path']} is no chunk of {rows} events")
        if table.column("offset_delta").to_pylist() != list(range(rows)):
            raise Refused(f"{add['path']} does not count its events")
        keys, times = table.column("routing_key"), table.column("timestamp").cast(pa.int64())
        cells = zip(keys.to_pylist(), times.to_pylist(), self._payloads(table), strict=True)
        for delta, (key, time_us, row) in enumerate(cells):
            data = self._table.payload(add, row) if "attachment" in add["tags"] else row
            yield Event(base + delta, key, time_us, data)

    def _has_columns(self, schema: pa.Schema) -> bool:
        """Whether a chunk has the columns of the page, or of a typed stream some of its own."""
        found = [(f.name, f.type) for f in schema]
        if self.columns is None:
            return found == CHUNK_COLUMNS
        known = {field["name"]: field["type"] for field in self.columns}
        own = found[3:]
        in_order = [name for name in known if name in dict(own)] == [name for name, _ in own]
        fit = all(format_columns.is_older(kind, known[name]) for name, kind in own if name in known)
        return found[:3] == CHUNK_COLUMNS[:3] and bool(own) and in_order and fit

    def _payloads(self, table: pa.Table) -> list[Any]:
        if self.columns is None:
            return list(table.column("event").to_pylist())
        rows = table.select(table.column_names[3:]).to_pylist()
        kinds = [(field["name"], field["type"]) for field in self.columns]
        return [{n: format_columns.as_read(row.get(n), kind) for n, kind in kinds} for row in rows]


def _base_offset(add: Add) -> int:
    return int(add["partitionValues"]["base_offset"])
