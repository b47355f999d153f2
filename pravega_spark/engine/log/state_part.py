"""Parts of a state: what the commits of a range of versions changed, in one small object.

A state file holds all domains, however few of them changed since the last one. So a large state is
written rarely, and between two state files each part stands for the commits of its range: the last
value of each domain that they changed, and their net file actions. A part is complete in itself: it
is decoded without another one, and what stands in a part that is torn or lost is read from its
commits instead.

The hint names the state file and the parts behind it, whose ranges follow one another. A new part
takes the place of those before it that are not longer, so there are few, and each change is written
again only a few times. What is named no more stays until cleanup deletes its versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from pravega_spark.engine.json_codec import DECODE_ERRORS
from pravega_spark.engine.log.file_index import RecentLayer
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.state_file import FORMAT, layer_of, seal, unseal
from pravega_spark.model import FileTotals
from pravega_spark.names import is_number


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


@dataclass(frozen=True, slots=True)
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

    def behind(self, older: StatePart) -> StatePart:
        """Return this part with one joined to it that ends where it begins."""
        return replace(
            self,
            span=Span(self.version, older.since),
            since_token=older.since_token,
            domains={**older.domains, **self.domains},
            protocol=self.protocol or older.protocol,
            metadata=self.metadata or older.metadata,
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
            span,
            header["sinceToken"],
            header["token"],
            header["timestamp"],
            state["domains"],
            state["protocol"],
            state["metaData"],
            FileTotals(*map(int, state["files"])),
            tuple(lines[1:]),
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
