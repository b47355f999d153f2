"""State files: a table's state in one small object, and the file actions since the last one.

| line | holds |
| --- | --- |
| 1 | format, version, token and time of that version's commit, ``since``, digest of the file, |
|   | and the length of the other lines, which are compressed (except in format 1) |
| 2 | protocol, metadata, all domains, the number and size of all live files |
| 3.. | ``{"add": ...}`` and ``{"remove": path}``: the net file actions of (since, version] |

An append reads lines 1 and 2 and the later commits. A read at the tail also uses the file lines,
and follows ``since`` to older state files as far as it needs. The oldest state file of this chain
continues a checkpoint of its ``since`` version, or version 0 (``since`` is -1). A file whose digest
or token does not match is not used: that costs time, never data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.file_index import RecentLayer
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.model import FileTotals
from pravega_spark.names import is_number

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


@dataclass(frozen=True, slots=True)
class StateFile:
    """A verified state file; its file lines are parsed on demand."""

    snapshot: Snapshot
    since: int
    lines: tuple[bytes, ...]
    files: FileTotals | None
    """All files that are live in the version; None if an earlier release wrote the state file."""

    def layer(self) -> RecentLayer:
        """Return the files of (since, version] as a layer."""
        return layer_of(self.since, self.lines)


def encode_state(snapshot: Snapshot, layer: RecentLayer, files: FileTotals) -> bytes:
    """Return the bytes of the state file of a snapshot; ``files`` counts all that are live."""
    state = {
        "protocol": dict(snapshot.protocol),
        "metaData": dict(snapshot.metadata),
        "domains": dict(sorted(snapshot.domains.items())),
        "files": [files.files, files.size_bytes],
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


def layer_of(since: int, lines: Iterable[bytes]) -> RecentLayer:
    """Return the file actions of stored lines as a layer above the version ``since``."""
    layer = RecentLayer(since)
    for line in lines:
        ((kind, value),) = json.loads(line).items()
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
            header["token"],
            state["protocol"],
            state["metaData"],
            state["domains"],
        )
        totals = FileTotals(*map(int, state["files"])) if "files" in state else None
        return StateFile(snapshot, header["since"], tuple(lines[1:]), totals)
    except DECODE_ERRORS:
        return None
