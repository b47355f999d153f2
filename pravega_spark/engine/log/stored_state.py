"""State files and their parts: a table's state in small objects.

A state file holds all domains, however few of them changed since the last one. So a large state is
written rarely, and between two state files each part stands for the commits of its range: the last
value of each domain that they changed, and their net file actions. A part is complete in itself: it
is decoded without another one, and what stands in a part that is torn or lost is read from its
commits instead.

The hint names the state file and the parts behind it, whose ranges follow one another. A new part
takes the place of those before it that are not longer, so there are few, and each change is written
again only a few times. A part that is named no more stays until cleanup deletes its versions.

State files: a table's state in one small object, and the file actions since the last one.

| line | holds |
| --- | --- |
| 1 | format, version, token and time of that version's commit, ``since``, digest of the file, |
|   | and the length of the other lines, which are compressed (except in format 1) |
| 2 | protocol, metadata, all domains, the number and size of all live files; and for sweeps, what |
|   | each commit of (since, version] removed, and which transactions it ended |
| 3.. | ``{"add": ...}`` and ``{"remove": path}``: the net file actions of (since, version] |

An append reads lines 1 and 2 and the later commits. A read at the tail also uses the file lines,
and follows ``since`` to older state files as far as it needs. The oldest state file of this chain
continues a checkpoint of its ``since`` version, or version 0 (``since`` is -1). A file whose digest
or token does not match is not used: that costs time, never data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.files import FileChanges, RecentLayer
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, decoded_lines, to_json
from pravega_spark.values.limits import TOLD_PATHS
from pravega_spark.values.names import is_number

FORMAT = 2
_PLAIN_FORMAT = 1
_CODEC = "zstd"


def state_key(path: str, version: int) -> str:
    """Return the key of the state file of a version."""
    return f"{path}/_pravega/state/{version:020d}.json"


def state_version(key: str) -> int:
    """Return the version in the key of a state file or commit; -1 for another key."""
    stem = key.rsplit("/", 1)[-1].removesuffix(".json")
    return int(stem) if len(stem) == 20 and is_number(stem) else -1


class Passed(NamedTuple):
    """What sweeps need of the commits of a range, and their net effect does not show; as JSON."""

    removed: Mapping[str, Any]
    """Bytes and paths of the files that a version removed."""
    ended: Mapping[str, int]
    """Transactions that ended, each with the version."""

    @classmethod
    def of(cls, changes: FileChanges) -> Passed | None:
        """Return what a range of commits did; None if that is too much to tell."""
        return cls(changes.to_json()["removed"], changes.ended).bounded()

    def bounded(self) -> Passed | None:
        """Return this, or None if it names more files than a state file should."""
        files = sum(len(paths) for _, paths in self.removed.values())
        return self if files <= TOLD_PATHS else None

    @classmethod
    def stored(cls, state: Mapping[str, Any]) -> Passed | None:
        """Return what a state file or a part says; None if an earlier release wrote it."""
        known = "removed" in state and "ended" in state
        return cls(state["removed"], state["ended"]) if known else None

    def behind(self, older: Passed | None) -> Passed | None:
        """Return both together; ``older`` is of the range before, and None if that is not known."""
        if older is None:
            return None
        return Passed({**older.removed, **self.removed}, {**older.ended, **self.ended}).bounded()

    def changes(self, since: int, version: int, lines: Sequence[bytes]) -> FileChanges:
        """Return all changes of the range (since, version], whose net effect the lines tell."""
        found = FileChanges.from_json(
            {"since": since, "version": version, "added": {}, "removed": self.removed}
        )
        added, removed = list[str](), set[str]()
        for action in decoded_lines(lines):  # paths suffice; objects would cost several times that
            ((kind, value),) = action.items()
            if kind == "add":
                added.append(value["path"])
            else:
                removed.add(value)
        gone = (path for _, paths in found.removed.values() for path in paths)
        found.add(added)
        found.add([path for path in gone if path not in removed])
        found.ended = {name: int(v) for name, v in self.ended.items()}
        return found


@dataclass(frozen=True, slots=True)
class StateFile:
    """A verified state file; its file lines are parsed on demand."""

    snapshot: Snapshot
    since: int
    lines: tuple[bytes, ...]
    files: FileTotals | None
    """All files that are live in the version; None if an earlier release wrote the state file."""
    passed: Passed | None = None
    """None if an earlier release wrote the state file or a part of its range, or for too much."""

    def layer(self) -> RecentLayer:
        """Return the files of (since, version] as a layer."""
        return layer_of(self.since, self.lines)

    def changes(self) -> FileChanges:
        """Return what the commits of (since, version] did to files; ``passed`` must be known."""
        assert self.passed is not None
        return self.passed.changes(self.since, self.version, self.lines)

    @property
    def version(self) -> int:
        """The version whose state this is."""
        return self.snapshot.version


def encode_state(
    snapshot: Snapshot, layer: RecentLayer, files: FileTotals, passed: Passed | None = None
) -> bytes:
    """Return the bytes of the state file of a snapshot; ``files`` counts all that are live."""
    state = {
        "protocol": dict(snapshot.protocol),
        "metaData": dict(snapshot.metadata),
        "domains": dict(sorted(snapshot.domains.items())),
        "files": [files.files, files.size_bytes],
        **({} if passed is None else passed._asdict()),
    }
    header = {
        "format": FORMAT,
        "version": snapshot.version,
        "token": snapshot.token,
        "timestamp": snapshot.timestamp_ms,
        "since": layer.older,
    }
    return seal(header, state, layer)


def seal(header: Mapping[str, Any], state: Mapping[str, Any], layer: RecentLayer) -> bytes:
    """Return a header, and compressed behind it a state and the file actions of a layer."""
    lines = [to_json(state)]
    lines.extend(to_json(add.to_action()) for add in layer.all())
    lines.extend(to_json({"remove": path}) for path in sorted(layer.removed))
    plain = ("\n".join(lines) + "\n").encode()
    rest: bytes = pa.compress(plain, codec=_CODEC, asbytes=True)
    sized = {**header, "size": len(plain)}
    return to_json({**sized, "digest": _digest(sized, rest)}).encode() + b"\n" + rest


def _digest(header: Mapping[str, Any], rest: bytes) -> str:
    hasher = xxhash.xxh3_128(to_json(header).encode())
    hasher.update(rest)
    return hasher.hexdigest()


def unseal(data: bytes) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return the header and the lines behind it if the digest matches, else None."""
    first, _, rest = data.partition(b"\n")
    try:
        header = json.loads(first)
        if header.pop("digest") != _digest(header, rest):
            return None
        if header["format"] != _PLAIN_FORMAT:
            rest = pa.decompress(rest, header["size"], codec=_CODEC, asbytes=True)
        return header, rest.splitlines()
    except (*DECODE_ERRORS, OSError):
        return None


def layer_of(since: int, lines: Sequence[bytes]) -> RecentLayer:
    """Return the file actions of stored lines as a layer above the version ``since``."""
    layer = RecentLayer(since)
    for action in decoded_lines(lines):
        ((kind, value),) = action.items()
        if kind == "add":
            layer.add(Add.from_action(value))
        else:
            layer.removed.add(value)
    return layer


def decode_state(version: int, data: bytes) -> StateFile | None:
    """Return the state file if its digest matches, else None."""
    found = unseal(data)
    if found is None:
        return None
    header, lines = found
    try:
        if header["format"] not in (FORMAT, _PLAIN_FORMAT) or header["version"] != version:
            return None
        state = json.loads(lines[0])
        snapshot = Snapshot.of(
            version,
            header["timestamp"],
            token=header["token"],
            protocol=state["protocol"],
            metadata=state["metaData"],
            domains=state["domains"],
        )
        totals = FileTotals(*map(int, state["files"])) if "files" in state else None
        passed = Passed.stored(state)
        return StateFile(snapshot, header["since"], tuple(lines[1:]), totals, passed)
    except DECODE_ERRORS:
        return None


class Span(NamedTuple):
    """The versions of a part: up to ``version``, from the one after ``since`` on."""

    version: int
    since: int

    @property
    def length(self) -> int:
        """The number of versions."""
        return self.version - self.since


def part_folder(path: str) -> str:
    """Return the folder of the parts of the table at ``path``."""
    return f"{path}/_pravega/part"


def part_key(path: str, span: Span) -> str:
    """Return the key of a part, which begins with its last version."""
    return f"{part_folder(path)}/{span.version:020d}-{span.since:020d}.json"


def part_span(key: str) -> Span | None:
    """Return the versions in the key of a part; None for another key."""
    version, _, since = key.rpartition("/")[2].removesuffix(".json").partition("-")
    if not all(len(text) == 20 and is_number(text) for text in (version, since)):
        return None
    return Span(int(version), int(since))


def spans_after(state: int, versions: Iterable[int]) -> list[Span]:
    """Return the spans of parts that follow a state file, by their last versions."""
    ends = [state, *versions]
    return [Span(version, since) for since, version in pairwise(ends)]


def joined_spans(state: int, spans: Iterable[Span]) -> list[Span]:
    """Return of some spans those that follow a state file one after another, the longest ones."""
    longest: dict[int, Span] = {}
    for span in spans:
        longest[span.since] = max(span, longest.get(span.since, span))
    found: list[Span] = []
    following = longest.get(state)
    while following is not None and following.length > 0:
        found.append(following)
        following = longest.get(following.version)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """A part whose digest matches; its file lines are parsed on demand."""

    span: Span
    since_token: str
    """The token of the commit ``since``."""
    token: str
    timestamp_ms: int
    domains: Mapping[str, str | None]
    """The last value of each domain that changed in the span; None if it was removed."""
    protocol: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    files: FileTotals
    """All files that are live in the last version."""
    passed: Passed | None = None
    """None if it is not known of all of the span."""
    lines: tuple[bytes, ...] = ()

    @property
    def since(self) -> int:
        """The version before the first one."""
        return self.span.since

    @property
    def version(self) -> int:
        """The last version."""
        return self.span.version

    def layer(self) -> RecentLayer:
        """Return the files of the span as a layer."""
        return layer_of(self.span.since, self.lines)

    def changes(self) -> FileChanges:
        """Return what the commits of the span did to files; ``passed`` must be known."""
        assert self.passed is not None
        return self.passed.changes(self.since, self.version, self.lines)

    def behind(self, older: StatePart) -> StatePart:
        """Return this part with one joined to it that ends where it begins."""
        return replace(
            self,
            span=Span(self.version, older.since),
            since_token=older.since_token,
            domains={**older.domains, **self.domains},
            protocol=self.protocol or older.protocol,
            metadata=self.metadata or older.metadata,
            passed=None if self.passed is None else self.passed.behind(older.passed),
        )

    def encode(self, layer: RecentLayer) -> bytes:
        """Return the bytes of the part with the file actions of its span."""
        header = {
            "format": FORMAT,
            "version": self.span.version,
            "token": self.token,
            "timestamp": self.timestamp_ms,
            "since": self.span.since,
            "sinceToken": self.since_token,
        }
        state = {
            "protocol": self.protocol and dict(self.protocol),
            "metaData": self.metadata and dict(self.metadata),
            "domains": dict(sorted(self.domains.items())),
            "files": [self.files.files, self.files.size_bytes],
            **({} if self.passed is None else self.passed._asdict()),
        }
        return seal(header, state, layer)


def decode_part(span: Span, data: bytes | None) -> StatePart | None:
    """Return the part of a span if its digest matches, else None."""
    found = None if data is None else unseal(data)
    if found is None:
        return None
    header, lines = found
    try:
        if (header["format"], header["version"], header["since"]) != (FORMAT, *span):
            return None
        state = json.loads(lines[0])
        return StatePart(
            span=span,
            since_token=header["sinceToken"],
            token=header["token"],
            timestamp_ms=header["timestamp"],
            domains=state["domains"],
            protocol=state["protocol"],
            metadata=state["metaData"],
            files=FileTotals(*map(int, state["files"])),
            passed=Passed.stored(state),
            lines=tuple(lines[1:]),
        )
    except DECODE_ERRORS:
        return None


def states_after(snapshot: Snapshot, parts: Iterable[StatePart | None]) -> list[Snapshot]:
    """Return a state, and those after the parts that follow it, up to one that does not."""
    found = [snapshot]
    for part in parts:
        before = found[-1]
        if part is None or (part.span.since, part.since_token) != (before.version, before.token):
            break
        found.append(before.after(part))
    return found
