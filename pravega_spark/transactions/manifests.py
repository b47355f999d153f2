"""The manifests of an open transaction: a sequence 0, 1, 2, ... of objects in its own folder.

Each manifest names the staged chunks of one write and is put if absent, so that any number of
processes can write into one transaction. The closing manifest, COMMITTING or ABORTING, is the
decision: it is final, and any process can commit it to the log. After PREPARED only a closing
manifest may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.create_once import create_once
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CommitUnknown, CorruptLog, RootChanged
from pravega_spark.transactions.manifest_codec import Manifest, ManifestKind, decode_manifest
from pravega_spark.transactions.transaction_paths import transaction_folder

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
            "If there is none, delete what is left of it, and abort the transaction: the events "
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


def not_in(entries: Iterable[Manifest], chunks: Iterable[StagedChunk]) -> list[StagedChunk]:
    """Return the chunks that no entry names."""
    named = {chunk.path for entry in entries for chunk in entry.chunks}
    return [chunk for chunk in chunks if chunk.path not in named]


def rows_of(chunks: Iterable[StagedChunk]) -> int:
    """Return the number of events in the chunks."""
    return sum(chunk.rows for chunk in chunks)
