"""Due hints: when maintenance has to look at a stream again, unless the log has a newer version.

A hint names the newest version of a table's log at which a kind of work was done, when the commit
of that version was written, and the time at which the work is due again if nothing is committed. It
holds while that very commit is stored and no next one is. A log that was restored or made again
has another commit at that version, or none. Hints are kept in the root, in shards of some hundred
tables, and nothing depends on them: without a hint, or with a damaged one, the table is looked at
fully. A wrong hint delays that by about a day at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import xxhash

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.runtime.json_codec import (
    DECODE_ERRORS,
    digested_record,
    to_digested_line,
    to_json,
)
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.state.maintenance_table import MAINTENANCE_TABLE
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.store.root_marker import check_same
from pravega_spark.errors import StoreError, StoreFull, without_credentials
from pravega_spark.values.limits import (
    CLOCK_SKEW_MS,
    DUE_CHECKED_MS,
    DUE_LATEST_MS,
    DUE_SHARD_STREAMS,
)

logger = own_logger(__name__)

DUE_FOLDER: Final = f"{MAINTENANCE_TABLE}/_pravega/due"
_FORMAT: Final = 1

Kinds = Sequence[MaintenanceKind]


class KindHint(NamedTuple):
    """The version at which a kind of work was done, and when it is due without a newer one."""

    version: int
    due_ms: int
    written_ms: int
    """When the commit of that version was written, by the storage's clock."""

    def is_of(self, version: int, written_ms: int) -> bool:
        """Return whether the work was done at this very commit."""
        return (self.version, self.written_ms) == (version, written_ms)


@dataclass(slots=True)
class TableHint:
    """The hints of one table by kind, and when their commit was last seen to be the newest."""

    checked_ms: int
    kinds: dict[MaintenanceKind, KindHint] = field(default_factory=dict)

    @property
    def newest(self) -> KindHint:
        """The hint of a kind that has seen the newest version."""
        return max(self.kinds.values(), key=lambda hint: hint.version)

    def is_believed(self, now_ms: int) -> bool:
        """Return whether no time in the hint was written by a clock that was far ahead."""
        latest_ms = now_ms + 2 * DUE_LATEST_MS
        dues = (hint.due_ms <= latest_ms for hint in self.kinds.values())
        return self.checked_ms <= now_ms + CLOCK_SKEW_MS and all(dues)


class DueHints:
    """The hints of some tables of one scope; for one thread, except for its checks for news."""

    def __init__(
        self,
        store: Store,
        group: str,
        names: Collection[str],
        path_of: Callable[[str], str],
        basis: str,
        *,
        shards: int | None = None,
        known: Callable[[str], int] = lambda name: -1,
    ) -> None:
        """Take the tables; reads nothing yet.

        ``group`` begins the keys of the hints, ``path_of`` returns the key of a table by its name.
        ``basis`` names the settings by which times were computed: with others, no hint holds.
        ``shards`` is by default a number that follows that of the tables. ``known`` returns the
        newest version of a table that this process has seen, such as its own: of a later one than a
        hint names, nobody is asked.
        """
        self._store = store
        self._begin = f"{DUE_FOLDER}/{group}"
        self._names = set(names)
        self._path_of = path_of
        self._basis = basis
        self._shards = _shard_count(len(self._names)) if shards is None else shards
        self._known = known
        self._hints: dict[str, TableHint] = {}
        self._changed: set[int] = set()
        self._read = False

    def read(self) -> None:
        """Read the hints of all tables, once."""
        if self._read:
            return
        self._read = True
        keys = [self._key(shard) for shard in sorted({self._shard(n) for n in self._names})]
        try:
            stored = self._store.get_many(keys)
        except StoreError as error:
            root = self._store.url
            logger.warning(
                "due hints of %s could not be read; every stream is looked at: %s",
                root,
                error,
                extra=log_fields("maintain", root=root),
            )
            return
        for data in stored:
            found = {} if data is None else _decode(data, self._basis)
            self._hints |= {n: hint for n, hint in found.items() if n in self._names}

    def due(
        self, kinds: Kinds, now_ms: int, names: Iterable[str] | None = None
    ) -> dict[str, Kinds]:
        """Return the tables at which a round has to look fully, each with the kinds that are due.

        Makes one storage call for each table with a hint: whether there is a next version. Once in
        DUE_CHECKED_MS a second one shows that the commit which the hint names is still stored.
        """
        self.read()
        check_same(self._store)
        wanted = sorted(self._names if names is None else names)
        found = in_rounds(self._store, lambda name: self._due(name, kinds, now_ms), wanted)
        return {name: due for name, due in zip(wanted, found, strict=True) if due}

    def _due(self, name: str, kinds: Kinds, now_ms: int) -> Kinds:
        hint = self._hints.get(name)
        if hint is None or not hint.kinds or not hint.is_believed(now_ms):
            return kinds
        newest = hint.newest
        due = [
            kind
            for kind in kinds
            if (known := hint.kinds.get(kind)) is None
            or not known.is_of(newest.version, newest.written_ms)
            or known.due_ms <= now_ms
        ]
        if len(due) == len(kinds) or self._known(name) > newest.version:
            return kinds
        reader = LogReader(self._store, self._path_of(name))
        if min(newest.version, newest.written_ms) < 0 or reader.has(newest.version + 1):
            return kinds
        if now_ms - hint.checked_ms > DUE_CHECKED_MS:
            if reader.written_ms(newest.version) != newest.written_ms:
                return kinds
            hint.checked_ms = now_ms
            self._changed.add(self._shard(name))
        return due

    def note(
        self,
        name: str,
        kind: MaintenanceKind,
        version: int,
        written_ms: int,
        due_ms: int,
        now_ms: int,
    ) -> None:
        """Note that a kind of work was done at a commit, and when it is due again.

        ``now_ms`` is a time before the version was read. Notes of kinds about a later version, or
        about another commit of this one, are forgotten: that log exists no more.
        """
        if name not in self._names:
            return
        latest_ms = now_ms + int(DUE_LATEST_MS * (0.75 + _part(name) / 4))
        hint = self._hints.setdefault(name, TableHint(now_ms))
        hint.checked_ms = now_ms
        for other, seen in list(hint.kinds.items()):
            if not (seen.version < version or seen.is_of(version, written_ms)):
                del hint.kinds[other]
                self._changed.add(self._shard(name))
        known = KindHint(version, min(due_ms, latest_ms), written_ms)
        if hint.kinds.get(kind) != known:
            hint.kinds[kind] = known
            self._changed.add(self._shard(name))

    def drop(self, name: str) -> None:
        """Forget a table, so that the next round looks at it fully."""
        if self._hints.pop(name, None) is not None:
            self._changed.add(self._shard(name))

    def save(self) -> None:
        """Write the shards that changed. The last of several writers of a shard wins."""
        shards, self._changed = sorted(self._changed), set()
        for shard in shards:
            kept = {n: hint for n, hint in self._hints.items() if self._shard(n) == shard}
            try:
                self._store.put(self._key(shard), _encode(kept, self._basis), durable=False)
            except StoreError as error:
                root = self._store.url
                is_told = isinstance(error, StoreFull)  # by whoever has no space for its record
                logger.log(
                    logging.DEBUG if is_told else logging.WARNING,
                    "due hints of %s could not be written: %s",
                    root,
                    error,
                    extra=log_fields("maintain", root=root),
                )
                return

    def keys(self) -> set[str]:
        """Return the keys of all objects that may hold hints of these tables."""
        return {self._key(shard) for shard in range(self._shards)}

    def _shard(self, name: str) -> int:
        return xxhash.xxh3_64_intdigest(name.encode()) & (self._shards - 1)

    def _key(self, shard: int) -> str:
        return f"{self._begin}-{self._shards}-{shard}.json"


def basis_of(settings: Mapping[str, object]) -> str:
    """Return a text that names the settings of a root."""
    return str(xxhash.xxh3_64_hexdigest(to_json(dict(sorted(settings.items()))).encode()))


def drop_hints(store: Store, kept: Collection[str] = ()) -> None:
    """Delete the hints of a root, except those with some keys."""
    try:
        store.delete([entry.key for entry in store.list(DUE_FOLDER) if entry.key not in kept])
    except StoreError as error:
        logger.warning(
            "old due hints of %s could not be deleted: %s",
            without_credentials(store.url),
            error,
            extra=log_fields("maintain", root=without_credentials(store.url)),
        )


def _shard_count(tables: int) -> int:
    """Return a power of two, so that it seldom changes: then all hints are lost once."""
    return 1 << max(0, (tables - 1) // DUE_SHARD_STREAMS).bit_length()


def _part(name: str) -> float:
    """Return a number in [0, 1) by the name, so that many tables are not due at the same time."""
    return xxhash.xxh3_64_intdigest(name.encode()) / 2**64


def _encode(hints: Mapping[str, TableHint], basis: str) -> bytes:
    tables = {
        name: [hint.checked_ms, {kind.value: list(known) for kind, known in hint.kinds.items()}]
        for name, hint in sorted(hints.items())
    }
    return to_digested_line({"format": _FORMAT, "basis": basis, "tables": tables})


def _decode(data: bytes, basis: str) -> dict[str, TableHint]:
    """Return the hints of an object; none of a damaged one, or of other settings."""
    record = digested_record(data)
    known = {kind.value: kind for kind in MaintenanceKind}
    try:
        if record is None or record["format"] != _FORMAT or record["basis"] != basis:
            return {}
        return {
            name: TableHint(
                int(checked_ms),
                {known[k]: KindHint(*map(int, hint)) for k, hint in kinds.items() if k in known},
            )
            for name, (checked_ms, kinds) in record["tables"].items()
        }
    except DECODE_ERRORS:
        return {}
