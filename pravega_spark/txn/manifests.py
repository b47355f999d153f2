"""What an open transaction holds: manifests 0, 1, 2, ... in a folder of its own.

Each names the staged chunks of one finished write and is put if absent, so that any number of
processes may write into one transaction. The last one is the closing mark, COMMITTING or
ABORTING: the decision, which whoever comes next may only carry out. After PREPARED only a mark
may follow.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from pravega_spark.engine.actions import to_json
from pravega_spark.engine.chunk import StagedChunk
from pravega_spark.engine.resolve import create
from pravega_spark.engine.stream import Stream
from pravega_spark.errors import CommitUnknown, CorruptLog


class Kind(enum.Enum):
    """What a manifest says."""

    WRITE = "write"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"

    @property
    def is_closing(self) -> bool:
        """Whether it is the decision, after which nothing follows."""
        return self in (Kind.COMMITTING, Kind.ABORTING)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One entry. ``writer`` and ``number`` make a numbered write (a batch of a query) happen once.

    A closing mark has the log ``version`` and the time at which it was decided, which order the
    commits; ``note`` and ``timestamp_us`` are the user's; ``reason`` says why it was aborted.
    """

    kind: Kind
    chunks: tuple[StagedChunk, ...] = ()
    writer: str | None = None
    number: int = 0
    version: int = 0
    time_ms: int = 0
    note: str | None = None
    timestamp_us: int | None = None
    reason: str | None = None
    token: str = ""

    def encode(self) -> bytes:
        """Return the bytes: one line of JSON, and its digest on the next."""
        record = {
            "kind": self.kind.value,
            "token": self.token,
            "version": self.version,
            "time": self.time_ms,
            "writer": self.writer,
            "number": self.number,
            "note": self.note,
            "timestamp": self.timestamp_us,
            "reason": self.reason,
            "chunks": [_cells(chunk) for chunk in self.chunks],
        }
        line = to_json({name: value for name, value in record.items() if value}).encode()
        return b"%b\n%b\n" % (line, xxhash.xxh3_128_hexdigest(line).encode())


def _cells(chunk: StagedChunk) -> list[Any]:
    return [
        chunk.path,
        chunk.segment_id,
        chunk.rows,
        chunk.size,
        chunk.event_bytes,
        chunk.min_timestamp_us,
        chunk.max_timestamp_us,
        chunk.null_keys,
    ]


def decode(data: bytes, where: str) -> Manifest:
    """Read what ``Manifest.encode`` wrote; raise CorruptLog for anything else."""
    line, _, digest = data.partition(b"\n")
    if xxhash.xxh3_128_hexdigest(line).encode() != digest.strip():
        raise CorruptLog(f"{where} is torn or was changed; restore it from a copy.")
    record = json.loads(line)
    return Manifest(
        Kind(record["kind"]),
        tuple(StagedChunk(*cells) for cells in record.get("chunks", ())),
        record.get("writer"),
        record.get("number", 0),
        record.get("version", 0),
        record.get("time", 0),
        record.get("note"),
        record.get("timestamp"),
        record.get("reason"),
        record["token"],
    )


Decide = Callable[[Sequence[Manifest]], Manifest | None]
"""Given all entries so far, the next one; None: nothing is left to say."""


class Manifests:
    """The entries of one transaction as this process knows them; not for several threads."""

    def __init__(self, stream: Stream, transaction_id: str) -> None:
        """Name the transaction; nothing is read yet."""
        self.transaction_id = transaction_id
        self._stream = stream
        self._folder = folder(stream, transaction_id)
        self._where = f"{stream.store.url}: transaction {transaction_id} of {stream.name}"
        self.entries: list[Manifest] = []

    def read(self) -> list[Manifest]:
        """Read the entries that are new, and return all."""
        while not self.is_closed:
            (data,) = self._stream.store.get_many([self._key(len(self.entries))])
            if data is None:
                break
            self.add(data)
        return self.entries

    @property
    def next_key(self) -> str:
        """The key of the first entry that is not known."""
        return self._key(len(self.entries))

    def add(self, data: bytes) -> None:
        """Take the entry of ``next_key``."""
        self.entries.append(decode(data, f"{self._where}: manifest {len(self.entries)}"))

    @property
    def is_closed(self) -> bool:
        """Whether the last known entry is the closing mark."""
        return bool(self.entries) and self.entries[-1].kind.is_closing

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction was prepared, as far as is known."""
        return any(entry.kind is Kind.PREPARED for entry in self.entries[-2:])

    @property
    def chunks(self) -> list[StagedChunk]:
        """All chunks that the known entries name, in order."""
        return [chunk for entry in self.entries for chunk in entry.chunks]

    def append(self, decide: Decide) -> Manifest | None:
        """Put what ``decide`` says as the next entry; it is asked again after a lost race.

        Raises CommitUnknown if nobody can tell whether the entry landed.
        """
        runtime = self._stream.runtime
        while True:
            entry = decide(self.entries)
            if entry is None:
                return None
            entry = replace(entry, token=runtime.token())
            if self._put(entry):
                self.entries.append(entry)
                return entry
            self.read()

    def _put(self, entry: Manifest) -> bool:
        number = len(self.entries)
        data = entry.encode()

        def unknown() -> CommitUnknown:
            return CommitUnknown(
                f"{self._where}: nobody can tell whether manifest {number} was written; open the "
                "transaction again by its id, and look at its status."
            )

        return create(
            self._stream.store,
            self._stream.runtime,
            self._key(number),
            data,
            is_ours=data.__eq__,
            unknown=unknown,
        )

    def _key(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.json"


def folder(stream: Stream, transaction_id: str) -> str:
    """Return the key of the folder that holds a transaction's manifests and its lease."""
    return f"{stream.name}/transactions/{transaction_id}"


def chunk_folder(transaction_id: str) -> str:
    """Return the folder of a transaction's chunks, below ``data``."""
    return f"t-{transaction_id}"
