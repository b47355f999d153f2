"""The manifests of an open transaction: their fields and bytes, and the folder that holds them.

Each manifest names the staged chunks of one write and is put if absent, so that any number of
processes can write into one transaction. The closing manifest, COMMITTING or ABORTING, is the
decision: it is final, and any process can commit it to the log. After PREPARED only a closing
manifest may follow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from pravega_spark.engine.chunks.chunk import ColumnBounds, StagedChunk
from pravega_spark.engine.log.commit import create_once
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, digested_record, to_digested_line
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CommitUnknown, CorruptLog, RootChanged


def transaction_folder(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of the folder of a transaction's manifests and lease."""
    return f"{stream.name}/transactions/{transaction_id}"


def announcement_key(stream: StreamLog, transaction_id: str) -> str:
    """Return the key of a transaction's announcement, which precedes its closing manifest."""
    return f"{_announcement_folder(stream)}/{transaction_id}.json"


def announced_transactions(stream: StreamLog) -> set[str]:
    """Return the ids of the announced transactions."""
    entries = stream.store.list(_announcement_folder(stream))
    return {entry.key.rsplit("/", 1)[-1].removesuffix(".json") for entry in entries}


def _announcement_folder(stream: StreamLog) -> str:
    return f"{stream.name}/transactions/closing"


_COLUMNS: Final = 10
"""The place of the bounds among the cells of a chunk."""


class ManifestKind(enum.Enum):
    """What a manifest records."""

    WRITE = "write"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"

    @property
    def is_closing(self) -> bool:
        """Whether it decides the transaction: no manifest follows it."""
        return self in (ManifestKind.COMMITTING, ManifestKind.ABORTING)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One manifest of a transaction.

    ``writer`` and ``number`` identify a numbered write (a batch of a query), which enters once. A
    closing manifest may hold a last write; its ``order`` is the commit order among the decisions
    of the stream (``committer.next_commit_order``), ``reason`` the cause of an abort. ``note`` and
    ``timestamp_us`` are the user's. ``token`` is unique to this manifest.
    """

    kind: ManifestKind
    chunks: tuple[StagedChunk, ...] = ()
    writer: str | None = None
    number: int = 0
    order: int = 0
    note: str | None = None
    timestamp_us: int | None = None
    reason: str | None = None
    token: str = ""
    origin: str | None = None
    """Where a numbered write comes from; None also if an earlier version wrote it."""

    def encode(self) -> bytes:
        """Return the bytes: a line of JSON, and its digest on the next line."""
        record = {
            "kind": self.kind.value,
            "token": self.token,
            "order": self.order or None,
            "writer": self.writer,
            "number": self.number or None,
            "origin": self.origin,
            "note": self.note,
            "timestamp": self.timestamp_us,
            "reason": self.reason,
            "chunks": [_cells(chunk) for chunk in self.chunks] or None,
        }
        given = {name: value for name, value in record.items() if value is not None}
        return to_digested_line(given)


PLAIN_WRITE = Manifest(ManifestKind.WRITE)
"""A write without a number."""


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
        *_optional(chunk),
    ]


def _optional(chunk: StagedChunk) -> list[Any]:
    """Return the cells that not every chunk has, up to the last one that this chunk has."""
    cells = [chunk.footer, chunk.attachment, chunk.columns]
    while cells and not cells[-1]:
        del cells[-1]
    return cells


def _chunk(cells: list[Any]) -> StagedChunk:
    given, columns = cells[:_COLUMNS], cells[_COLUMNS:]
    return StagedChunk(*given, *(ColumnBounds(*bounds) for bounds in columns))


def decode_manifest(data: bytes, where: str, path: str | None = None) -> Manifest:
    """Return the manifest that ``Manifest.encode`` wrote; raise CorruptLog for other bytes."""
    record = digested_record(data)
    if record is None:
        raise CorruptLog(f"{where} is torn or was modified; restore it from a copy.", path=path)
    try:
        return Manifest(
            kind=ManifestKind(record["kind"]),
            chunks=tuple(_chunk(cells) for cells in record.get("chunks", ())),
            writer=record.get("writer"),
            number=record.get("number", 0),
            order=record.get("order", 0),
            note=record.get("note"),
            timestamp_us=record.get("timestamp"),
            reason=record.get("reason"),
            token=record["token"],
            origin=record.get("origin"),
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{where} is damaged ({error!r}); restore it from a copy.", path=path
        ) from error


_MAX_READ_AHEAD = 64
"""The most manifests of one transaction that one request reads ahead."""


NextManifest = Callable[[Sequence[Manifest]], Manifest | None]
"""Given the known manifests, returns the next one, or None if none is needed."""


class Manifests:
    """The manifests of one transaction as this process knows them; not thread-safe."""

    def __init__(self, stream: StreamLog, transaction_id: str) -> None:
        """Refer to a transaction; reads nothing."""
        self.transaction_id = transaction_id
        self.name = f"transaction {transaction_id} of stream {stream.name}"
        """The transaction's name in errors."""
        self.store = stream.store
        self._stream = stream
        self._folder = transaction_folder(stream, transaction_id)
        self.entries: list[Manifest] = []
        self.is_shared = True
        """Whether other processes may have put manifests that this one does not know."""

    def copy(self) -> Manifests:
        """Return a copy with the same entries, for another thread."""
        other = copy(self)
        other.entries = list(self.entries)
        return other

    def read(self) -> list[Manifest]:
        """Read new entries and return all of them; each is durable.

        Another process may have put an entry whose acknowledgement is still pending, so new
        entries are made durable here.
        """
        known = len(self.entries)
        read_new([self])
        if len(self.entries) > known:
            self._make_durable()
        return self.entries

    def key(self, number: int) -> str:
        """Return the key of an entry."""
        return f"{self._folder}/{number:08d}.json"

    def add_stored(self, found: Iterable[bytes | None]) -> bool:
        """Add the next entries as stored; return False at an absent or a closing one."""
        for data in found:
            if data is None or self.is_closed:
                return False
            self.entries.append(self._decode(self.key(len(self.entries)), data))
        return not self.is_closed

    def _decode(self, key: str, data: bytes) -> Manifest:
        number = int(key.rpartition("/")[2].removesuffix(".json"))
        where = f"{self.store.url}: manifest {number} of {self.name}"
        return decode_manifest(data, where, self._path(key))

    def _path(self, key: str) -> str:
        return f"{self.store.url.rstrip('/')}/{key}"

    @property
    def last(self) -> ManifestKind:
        """The kind of the last known entry; WRITE if there is none."""
        return self.entries[-1].kind if self.entries else ManifestKind.WRITE

    @property
    def is_closed(self) -> bool:
        """Whether the last known entry is the closing manifest."""
        return self.last.is_closing

    @property
    def is_prepared(self) -> bool:
        """Whether a known entry has prepared the transaction."""
        return any(entry.kind is ManifestKind.PREPARED for entry in self.entries[-2:])

    @property
    def chunks(self) -> list[StagedChunk]:
        """The chunks of all known entries, in order."""
        return [chunk for entry in self.entries for chunk in entry.chunks]

    def append(self, propose: NextManifest) -> Manifest | None:
        """Put the proposed entry as the next one and return it; propose again after a lost race.

        Returns None if ``propose`` does; the known entries are durable then. Raises CommitUnknown
        if the outcome of the put is unknown: call again, which sees the entry if it landed.
        """
        while True:
            entry = propose(self.entries)
            if entry is None:
                self._make_durable()
                return None
            entry = replace(entry, token=self._stream.runtime.token())
            if self._put(entry):
                self.entries.append(entry)
                return entry
            self.read()

    def _put(self, entry: Manifest) -> bool:
        number = len(self.entries)
        data = entry.encode()

        def unknown() -> CommitUnknown:
            return CommitUnknown(
                f"{self.store.url}: it is unknown whether manifest {number} of {self.name} was "
                "written; call again, which finds out, or read the status."
            )

        before = self.key(number - 1) if number else self._stream.log.reader.key(0)
        if self.is_shared and (number == 0 or entry.kind is not ManifestKind.WRITE):
            self.check_whole(for_abort=entry.kind is ManifestKind.ABORTING)
        try:
            return create_once(
                self.store,
                self._stream.runtime,
                self.key(number),
                data,
                is_ours=lambda found: found == data,
                unknown=unknown,
                after=None if entry.kind.is_closing else before,  # its process knows all others
            )
        except RootChanged:
            if self.transaction_id not in self._stream.view().transactions:
                return True  # it has ended, and a manifest after those that were deleted is none
            if self.store.exists(before):
                raise
            raise self._missing(before) from None

    def check_whole(self, *, for_abort: bool = False) -> None:
        """Raise CorruptLog if the open transaction lacks one of its manifests; one listing.

        The stored ones after it prove that it was there. A prepared transaction lacks none, since
        its last manifest was read after all others. An abort needs no writes, but it may not
        hide that the transaction was prepared or committed.
        """
        if self.last is not ManifestKind.WRITE:
            return
        absent, end = self.key(len(self.entries)), f"{self._folder}/a"
        later = [entry.key for entry in self.store.list(self._folder, after=absent, before=end)]
        if not later or self.store.exists(absent):  # another process has put it meanwhile
            return
        if for_abort and self._kind_of(later[-1]) in (ManifestKind.WRITE, ManifestKind.ABORTING):
            return
        if self.transaction_id in self._stream.view().transactions:
            raise self._missing(absent)

    def _kind_of(self, key: str) -> ManifestKind:
        """Return the kind of a stored manifest; ABORTING if an ended transaction lost it."""
        try:
            return self._decode(key, self.store.get(key)).kind
        except FileNotFoundError:
            return ManifestKind.ABORTING

    def _missing(self, key: str) -> CorruptLog:
        """Return the error for an object that an open transaction has lost."""
        path = self._path(key)
        return CorruptLog(
            f"{path} does not exist, and {self.name} is open: its manifests were removed or moved. "
            f"Nothing was changed. Put the folder {self._folder} back as it was, or from a copy. "
            "If there is none, delete the rest of it, and abort the transaction: the events "
            "that its flushes acknowledged are lost.",
            stream=self._stream.name,
            path=path,
        )

    def _make_durable(self) -> None:
        self.store.make_durable(self._folder)


def read_new(several: Iterable[Manifests]) -> None:
    """Read the new entries of several transactions of one stream, in parallel.

    A process puts entry n + 1 only after it has read entry n, so entries after an absent one do
    not count.
    """
    behind = [manifests for manifests in several if not manifests.is_closed]
    ahead = 1
    while behind:
        keys = [m.key(len(m.entries) + n) for m in behind for n in range(ahead)]
        found = iter(behind[0].store.get_many(keys))
        behind = [m for m in behind if m.add_stored(list(islice(found, ahead)))]
        ahead = min(2 * ahead, _MAX_READ_AHEAD)


def last_manifests(stream: StreamLog, names: Collection[str]) -> dict[str, str]:
    """Return the keys of the last manifests of transactions that have one, by id; one listing."""
    found: dict[str, str] = {}
    for entry in stream.store.list(f"{stream.name}/transactions"):
        name, file = entry.key.split("/")[-2:]
        if name in names and file.removesuffix(".json").isdigit():
            found[name] = max(entry.key, found.get(name, ""))
    return found


def last_kinds(stream: StreamLog, keys: Mapping[str, str]) -> dict[str, ManifestKind]:
    """Return the kinds of manifests, given by transaction; one that was deleted is left out."""
    found = stream.store.get_many(list(keys.values()))
    return {
        name: decode_manifest(data, f"{stream.store.url}: {key}", key).kind
        for (name, key), data in zip(keys.items(), found, strict=True)
        if data is not None
    }


def not_in(entries: Iterable[Manifest], chunks: Iterable[StagedChunk]) -> list[StagedChunk]:
    """Return the chunks that no entry names."""
    named = {chunk.path for entry in entries for chunk in entry.chunks}
    return [chunk for chunk in chunks if chunk.path not in named]


def rows_of(chunks: Iterable[StagedChunk]) -> int:
    """Return the number of events in the chunks."""
    return sum(chunk.rows for chunk in chunks)
