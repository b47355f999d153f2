"""What an open transaction holds: manifests 0, 1, 2, ... in a folder of its own.

Each names the staged chunks of one finished write and is put if absent, so that any number of
processes may write into one transaction. The last one is the closing mark, COMMITTING or
ABORTING: the decision, which whoever comes next may only carry out. After PREPARED only a mark
may follow.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import xxhash

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.log.create_once import create_once
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CommitUnknown, CorruptLog

_MOST_AHEAD = 64
"""So many manifests of a transaction are asked for at once, at most."""


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

    A closing mark may bring a last write. ``order`` is its place among the decisions of the
    stream (``carrying.turn``); ``note`` and ``timestamp_us`` are the user's; ``reason`` says
    why it was aborted. ``token`` is nobody else's.
    """

    kind: Kind
    chunks: tuple[StagedChunk, ...] = ()
    writer: str | None = None
    number: int = 0
    order: int = 0
    note: str | None = None
    timestamp_us: int | None = None
    reason: str | None = None
    token: str = ""

    def encode(self) -> bytes:
        """Return the bytes: one line of JSON, and its digest on the next."""
        record = {
            "kind": self.kind.value,
            "token": self.token,
            "order": self.order or None,
            "writer": self.writer,
            "number": self.number or None,
            "note": self.note,
            "timestamp": self.timestamp_us,
            "reason": self.reason,
            "chunks": [_cells(chunk) for chunk in self.chunks] or None,
        }
        said = {name: value for name, value in record.items() if value is not None}
        line = to_json(said).encode()
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
        raise CorruptLog(f"{where} is torn or was changed; restore it from a copy.", path=where)
    try:
        record = json.loads(line)
        return Manifest(
            Kind(record["kind"]),
            tuple(StagedChunk(*cells) for cells in record.get("chunks", ())),
            record.get("writer"),
            record.get("number", 0),
            record.get("order", 0),
            record.get("note"),
            record.get("timestamp"),
            record.get("reason"),
            record["token"],
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{where} is damaged ({error!r}); restore it from a copy.", path=where
        ) from error


Decide = Callable[[Sequence[Manifest]], Manifest | None]
"""Given all entries so far, the next one; None: nothing is left to say."""


class Manifests:
    """The entries of one transaction as this process knows them; not for several threads."""

    def __init__(self, stream: StreamLog, transaction_id: str) -> None:
        """Name the transaction; nothing is read yet."""
        self.transaction_id = transaction_id
        self.name = f"transaction {transaction_id} of stream {stream.name}"
        """As errors name it."""
        self.store = stream.store
        self._runtime = stream.runtime
        self._folder = folder(stream, transaction_id)
        self.entries: list[Manifest] = []

    def copy(self) -> Manifests:
        """Return the same entries, for another thread to go on from."""
        other = copy(self)
        other.entries = list(self.entries)
        return other

    def read(self) -> list[Manifest]:
        """Read the entries that are new, make them durable, and return all.

        What is seen is durable: another may have put an entry, and not been told so yet.
        """
        known = len(self.entries)
        read_new([self])
        if len(self.entries) > known:
            self._make_durable()
        return self.entries

    def key(self, number: int) -> str:
        """Return the key of an entry."""
        return f"{self._folder}/{number:08d}.json"

    def take(self, found: Iterable[bytes | None]) -> bool:
        """Take what is stored of the next entries; False if one is absent, or is the mark."""
        for data in found:
            if data is None or self.is_closed:
                return False
            where = f"{self.store.url}: manifest {len(self.entries)} of {self.name}"
            self.entries.append(decode(data, where))
        return not self.is_closed

    @property
    def last(self) -> Kind:
        """What the last known entry says; a transaction without any takes writes."""
        return self.entries[-1].kind if self.entries else Kind.WRITE

    @property
    def is_closed(self) -> bool:
        """Whether the last known entry is the closing mark."""
        return self.last.is_closing

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

        None if nothing is left to say, and then what says so is durable. Raises CommitUnknown if
        nobody can tell whether the entry landed: decide again, on what is there then.
        """
        while True:
            entry = decide(self.entries)
            if entry is None:
                self._make_durable()
                return None
            entry = replace(entry, token=self._runtime.token())
            if self._put(entry):
                self.entries.append(entry)
                return entry
            self.read()

    def _put(self, entry: Manifest) -> bool:
        number = len(self.entries)
        data = entry.encode()

        def unknown() -> CommitUnknown:
            return CommitUnknown(
                f"{self.store.url}: nobody can tell whether manifest {number} of {self.name} "
                "was written; call again, which settles it, or look at the status."
            )

        return create_once(
            self.store,
            self._runtime,
            self.key(number),
            data,
            is_ours=lambda found: found == data,
            unknown=unknown,
        )

    def _make_durable(self) -> None:
        self.store.make_durable(self._folder)


def read_new(several: Iterable[Manifests]) -> None:
    """Read the entries that are new of several transactions of one stream, side by side.

    Entry n + 1 is put by who knew entry n, so what is behind an absent one does not count.
    """
    behind = [manifests for manifests in several if not manifests.is_closed]
    ahead = 1
    while behind:
        keys = [m.key(len(m.entries) + n) for m in behind for n in range(ahead)]
        found = iter(behind[0].store.get_many(keys))
        behind = [m for m in behind if m.take(list(islice(found, ahead)))]
        ahead = min(2 * ahead, _MOST_AHEAD)


def not_in(entries: Iterable[Manifest], chunks: Iterable[StagedChunk]) -> list[StagedChunk]:
    """Return the chunks that no entry names."""
    named = {chunk.path for entry in entries for chunk in entry.chunks}
    return [chunk for chunk in chunks if chunk.path not in named]


def rows_of(chunks: Iterable[StagedChunk]) -> int:
    """Return how many events the chunks hold."""
    return sum(chunk.rows for chunk in chunks)


def folder(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of the folder that holds a transaction's manifests and its lease."""
    return f"{stream.name}/transactions/{transaction_id}"


def chunk_folder(transaction_id: str) -> str:
    """Return the folder of a transaction's chunks, below ``data``."""
    return f"t-{transaction_id}"


def commit_intent_key(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of the object that announces a transaction's commit before its mark."""
    return f"{_commit_intent_folder(stream)}/{transaction_id}.json"


def commit_intents(stream: StreamLog) -> set[str]:
    """Return the ids of the transactions whose commit was announced and not cleared away yet."""
    entries = stream.store.list(_commit_intent_folder(stream))
    return {entry.key.rsplit("/", 1)[-1].removesuffix(".json") for entry in entries}


def _commit_intent_folder(stream: StreamLog) -> str:
    return f"{stream.name}/transactions/closing"
