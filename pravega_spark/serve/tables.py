"""The key-value tables of a root: their list, and the entries, values and changes of one.

With ``--hide-events`` the paths of keys and values answer 403, whatever they are asked.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import (
    Damaged,
    InvalidInput,
    InvalidName,
    KeyUnavailable,
    NoSuchTable,
    NotFound,
    TruncatedData,
)
from pravega_spark.key_value.change_log import advised
from pravega_spark.key_value.changes import (
    Change,
    Changes,
    EntriesAtVersion,
    decode_change,
    is_alive,
    read_changes,
    unreadable,
)
from pravega_spark.key_value.entry import KeyVersion
from pravega_spark.key_value.folded_table import FoldedState
from pravega_spark.key_value.keys import (
    KeyBounds,
    KeyCodec,
    KeyType,
    TableKey,
    bounds,
    token_of,
)
from pravega_spark.key_value.shared_table import SharedTable, key_codec, open_table
from pravega_spark.key_value.snapshot import TableSnapshot, table_snapshot
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.api import Name, PageSize, Search, page_of_names
from pravega_spark.serve.event_rows import SHOWN_BYTES, SHOWN_KEY, text_of
from pravega_spark.serve.event_starts import WalkStart, route_of
from pravega_spark.serve.event_walk import Budget, Rows, Walk
from pravega_spark.serve.events import (
    HIDDEN,
    PAGE_BUDGET,
    SEARCH_BUDGET,
    SEARCH_PART_EVENTS,
    SHOWN_EVENT_BYTES,
    LookedRow,
    LostRow,
    Order,
    Position,
    WalkGate,
    looked_row,
    lost_row,
    refuse_hidden,
    saved_as,
)
from pravega_spark.serve.found_damage import TABLE, FoundDamage, Subject
from pravega_spark.serve.rest import NOT_FOUND
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.typed_keys import read_bytes, read_key, typed_bytes, typed_key
from pravega_spark.serve.watch import RootWatch
from pravega_spark.serve.web_problems import Refused
from pravega_spark.values.checks import shown
from pravega_spark.values.names import split_table, table_log
from pravega_spark.values.segments import SegmentRange, segment_text
from pravega_spark.values.units import MIB

_KEPT_SECONDS: Final = 10.0
UNFOLDED_CHANGES: Final = 131_072
UNFOLDED_BYTES: Final = 32 * MIB
"""Changes since the fold that a page takes into account; of more it shows the fold alone."""
OPEN_TABLES: Final = 4
"""Tables whose changes since the fold stay in memory."""
PAGE_BYTES: Final = 16 * MIB
"""Values that are read for a page: it ends with the entry that exceeds them."""
PAGE_ENTRIES: Final = 20_000
"""Entries that are looked at for a page, expired ones included."""


class TableRow(BaseModel):
    """A key-value table."""

    scope: str
    table: str
    state: str
    key_type: str
    has_secondary_key: bool
    ttl: str | None
    tags: list[str]
    partitions: int
    version: int
    unfolded_changes: int
    unfolded_bytes: int
    folded_entries: int
    folded_files: int
    folded_bytes: int
    folded_ms: int | None


class TablesPage(BaseModel):
    """A page of key-value tables, by name."""

    tables: list[TableRow]
    total: int
    next: str | None


class KeyRow(BaseModel):
    """A key: what is shown of it, and the text that names it in an address."""

    id: str
    key: str = Field(
        description="A text, a number, 0x and the hexadecimal bytes, or a JSON string: as it is "
        "given to find the key."
    )
    is_key_cut: bool
    secondary_key: str | None


class EntryRow(KeyRow):
    """An entry; ``text`` is the value's beginning if that is UTF-8, else ``base64``."""

    version: str
    timestamp_ms: int
    size_bytes: int
    text: str | None
    base64: str | None
    is_cut: bool


class EntriesPage(BaseModel):
    """Entries in the order of their keys, as of one version of the table."""

    entries: list[EntryRow]
    next: str | None = Field(description="Give it as ``after`` for the next page.")
    version: int
    is_current: bool = Field(
        description="False if too many changes follow the fold: they are not in the entries."
    )
    missing_changes: int
    as_of_ms: int | None = Field(
        description="When the table was last changed up to these entries; null if they are so now."
    )
    looked: int = Field(description="Entries that the page looked at, expired ones included.")
    lost: str | None = Field(description="Why entries before ``next`` cannot be read.")


class EntryAnswer(KeyRow):
    """A key, whole, and its entry with the first 64 KiB of its value; null if it has none."""

    entry: EntryRow | None
    version: int
    is_current: bool
    missing_changes: int


class ChangeRow(KeyRow):
    """A put or a removal of a key, in the table's change log."""

    is_removal: bool
    version: str
    segment: str
    offset: int
    timestamp_ms: int
    size_bytes: int
    text: str | None
    base64: str | None
    is_cut: bool


class ChangesPage(BaseModel):
    """A page of changes, in the order of the request."""

    changes: list[ChangeRow]
    lost: list[LostRow]
    order: str
    older: str
    newer: str
    is_done: bool
    looked: LookedRow
    head: str = Field(description="The cut before the oldest change that is not folded away.")
    version: int = Field(description="Of the table's log, as the page read it.")


@dataclass(frozen=True)
class TableState:
    """A table as a page reads it."""

    name: str
    snapshot: TableSnapshot
    folded: FoldedState | None
    codec: KeyCodec
    entries: EntriesAtVersion
    is_current: bool
    """Whether the entries have the changes since the fold."""
    is_newest: bool

    @property
    def missing_changes(self) -> int:
        """The changes that the entries do not reflect."""
        return 0 if self.is_current else self.snapshot.changes

    @property
    def as_of_ms(self) -> int | None:
        """When the entries were so, if they are not now."""
        if self.is_current:
            return None if self.is_newest else self.snapshot.view.timestamp_ms
        return None if self.folded is None else self.folded.record.folded_ms


class OpenTables:
    """Tables of which the changes since the fold are in memory: few, and of bounded size."""

    def __init__(self, root: ServedRoot) -> None:
        """Take the root; no table is open."""
        self._root = root
        self._lock = new_lock()
        self._held = OrderedDict[tuple[str, int | None], SharedTable | TableState]()
        """By name, and by the version of an older one."""

    def snapshot(self, scope: str, table: str) -> tuple[TableSnapshot, KeyCodec]:
        """Return a table at its newest version, and how its keys are stored. Raises NoSuchTable."""
        name = f"{scope}/{table}"
        try:
            split_table(name)
        except InvalidName:
            raise NoSuchTable(f"table {name[:600]} does not exist.", table=name) from None
        found = table_snapshot(self._root.log(table_log(scope, table)))
        return found, key_codec(name, found.configuration)

    def read(self, scope: str, table: str, version: int | None = None) -> TableState:
        """Return the entries of a table: the fold, and the changes after it.

        The first look reads these changes, later ones those that are new. Of more than
        UNFOLDED_CHANGES, or UNFOLDED_BYTES, it reads none. At an older ``version`` what has expired
        since is not there. Raises NoSuchTable, InvalidInput for a version that does not exist yet,
        and TruncatedData for one that can no longer be read.
        """
        name = f"{scope}/{table}"
        snapshot, codec = self.snapshot(scope, table)
        if version is not None and version != snapshot.view.version:
            return self._older(name, snapshot, codec, version)
        log = snapshot.stream
        if not _is_small(snapshot):
            with self._lock:
                self._held.pop((name, None), None)
            found = EntriesAtVersion(log, snapshot.view, {}, snapshot.folded)
            return TableState(
                name, snapshot, snapshot.folded, codec, found, is_current=False, is_newest=True
            )
        shared = open_table(log, name, snapshot.view)
        self._keep((name, None), shared)
        index = shared.index
        index.follow()
        with index.lock:
            changes, folded = index.tables
            assert index.snapshot is not None
            found = EntriesAtVersion(log, log.view_of(index.snapshot), dict(changes), folded)
        rows = folded if isinstance(folded, FoldedState) else None
        return TableState(name, snapshot, rows, codec, found, is_current=True, is_newest=True)

    def _older(self, name: str, newest: TableSnapshot, codec: KeyCodec, version: int) -> TableState:
        held = self._held.get((name, version))
        if not isinstance(held, TableState) or held.snapshot.view.life != newest.view.life:
            snapshot = table_snapshot(newest.stream, version)
            is_small, changes = _is_small(snapshot), Changes()
            if is_small:
                dated = snapshot.configuration.ttl_ms is not None
                try:
                    changes = read_changes(snapshot.stream, iter(snapshot.ranges), dated=dated)
                except TruncatedData as error:
                    why = "its changes were folded, and are no longer in the log"
                    raise unreadable(version, newest.view, why) from error
            found = EntriesAtVersion(snapshot.stream, snapshot.view, changes, snapshot.folded)
            held = TableState(
                name, snapshot, snapshot.folded, codec, found, is_small, is_newest=False
            )
        self._keep((name, version), held)
        return replace(held, snapshot=replace(held.snapshot, expired_us=newest.expired_us))

    def _keep(self, key: tuple[str, int | None], held: SharedTable | TableState) -> None:
        with self._lock:
            self._held[key] = held
            self._held.move_to_end(key)
            if len(self._held) > OPEN_TABLES:
                self._held.popitem(last=False)


def _is_small(snapshot: TableSnapshot) -> bool:
    """Return whether a page takes the changes since the fold into account."""
    return snapshot.changes <= UNFOLDED_CHANGES and snapshot.changed_bytes <= UNFOLDED_BYTES


KeyText = Annotated[
    str | None,
    Query(max_length=4_000, description="A text, a number, 0x and bytes, or a JSON string."),
]
Version = Annotated[
    int | None, Query(ge=0, le=2**53, description="Of the table's log; the newest one by default.")
]
KeyId = Annotated[str | None, Query(max_length=12_000, description="The id of a row.")]


def table_routes(
    watch: RootWatch, cache: AnswerCache, gate: WalkGate, *, hide_events: bool
) -> list[APIRouter]:
    """Return the routes."""
    tables = OpenTables(watch.root)
    public = APIRouter(prefix="/api", tags=["Page"])
    _add_list(public, watch, cache)
    hidden = APIRouter(
        prefix="/api/tables/{scope}/{table}",
        tags=["Page"],
        dependencies=[Depends(refuse_hidden(hide_events=hide_events))],
        responses={**NOT_FOUND, **HIDDEN},
    )
    _add_entries(hidden, tables, gate, watch.damage)
    _add_changes(hidden, tables, gate, watch.damage)
    return [public, hidden]


def _add_list(routes: APIRouter, watch: RootWatch, cache: AnswerCache) -> None:
    def row(name: str) -> TableRow | None:
        try:
            return cache.get(("table", name), None, _KEPT_SECONDS, lambda: _table(watch, name))
        except NotFound:  # deleted since it was listed
            return None

    @routes.get("/tables", operation_id="pageOfTables")
    def list_tables(search: Search = None, after: Name = None, limit: PageSize = 50) -> TablesPage:
        """Return key-value tables by name."""
        page, total, following = page_of_names(watch.names().tables, search, after, limit)
        rows = SYSTEM.each(row, page)
        found = [row for row in rows if row is not None]
        return TablesPage(tables=found, total=total, next=following)

    @routes.get("/tables/{scope}/{table}", operation_id="tableDetails", responses=NOT_FOUND)
    def table_details(scope: str, table: str) -> TableRow:
        """Return a key-value table."""
        name = f"{scope}/{table}"
        found = row(name) if name in watch.names().tables else None
        if found is None:
            raise NoSuchTable(f"table {name[:600]} does not exist.", table=name)
        return found


def _add_entries(
    routes: APIRouter, tables: OpenTables, gate: WalkGate, damage: FoundDamage
) -> None:
    @routes.get("/entries", operation_id="tableEntries")
    def entries(
        scope: str,
        table: str,
        prefix: KeyText = None,
        low: KeyText = None,
        high: KeyText = None,
        after: KeyId = None,
        version: Version = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 50,
    ) -> EntriesPage:
        """Return entries in the order of their keys, each with the first KiB of its value.

        Those whose keys have a ``prefix``, or those from ``low`` to ``high``, both included.
        Expired entries are left out. All pages of one ``version`` belong together.
        """
        with gate():
            state = tables.read(scope, table, version)
            given = {
                name: read_key(state.codec, text)
                for name, text in (("prefix", prefix), ("low", low), ("high", high))
                if text
            }
            found = bounds(state.codec, **given)
            if after:
                found = found.after(state.codec, token_of(key_of_id(state.codec, after)))
            page = _entries_page(state, found, limit)
        query = {"prefix": prefix, "low": low, "high": high, "after": after}
        if page.lost or state.is_newest:  # an older version tells not that this one is sound
            damage.looked_at_page(Subject(TABLE, state.name), query, page.lost)
        return page

    @routes.get("/entry", operation_id="tableEntry")
    def entry(
        scope: str,
        table: str,
        id: KeyId = None,
        key: KeyText = None,
        secondary: KeyText = None,
        version: Version = None,
    ) -> EntryAnswer:
        """Return the entry of a key with the first 64 KiB of its value.

        The key is the ``id`` of a row, or ``key`` with the ``secondary`` one of a table that has
        some.
        """
        with gate():
            state = tables.read(scope, table, version)
            stored = _wanted_key(state.codec, id, key, secondary)
            change = _find(state, stored)
            found = None if change is None else _entry(state, stored, change, SHOWN_EVENT_BYTES)
        return EntryAnswer(
            **_key_fields(state.codec, stored, None),
            entry=found,
            version=state.entries.version,
            is_current=state.is_current,
            missing_changes=state.missing_changes,
        )

    @routes.get(
        "/entry/value",
        operation_id="tableEntryValue",
        response_class=Response,
        responses={200: {"content": {"application/octet-stream": {}}}},
    )
    def value(
        scope: str,
        table: str,
        id: KeyId = None,
        key: KeyText = None,
        secondary: KeyText = None,
        version: Version = None,
    ) -> Response:
        """Return the value of a key, to be saved; values have at most 8 MiB."""
        with gate():
            state = tables.read(scope, table, version)
            stored = _wanted_key(state.codec, id, key, secondary)
            change = _find(state, stored)
            if change is None:
                raise Refused(404, "NoSuchKey", f"table {state.name} has no entry of that key.")
            data = state.entries.value(change)
        return saved_as(data, f"{state.name}-value.bin")


def _add_changes(
    routes: APIRouter, tables: OpenTables, gate: WalkGate, damage: FoundDamage
) -> None:
    @routes.get("/changes", operation_id="tableChanges")
    def changes(
        scope: str,
        table: str,
        at: Position = None,
        order: Order | None = None,
        id: KeyId = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> ChangesPage:
        """Return puts and removals from a position of the change log on, the newest ones first.

        With ``id`` those of one key alone. Changes that were folded away are no longer there.
        """
        name = f"{scope}/{table}"
        with gate(), advised(name):
            snapshot, codec = tables.snapshot(scope, table)
            stored = None if not id else key_of_id(codec, id)
            log, view = snapshot.stream, snapshot.view
            back = (order or ("newest" if at in (None, "tail") else "oldest")) == "newest"
            key = None if stored is None else codec.routing_key(stored.primary)
            start = WalkStart(at=at, time_us=None, segment=None, key=key, back=back)
            reader = ChangeRows(codec, view.life, stored)
            subject = Subject(TABLE, name)
            damage.follow(subject, view)
            found = Walk(
                log=log,
                view=view,
                route=route_of(log, view, start),
                reader=reader,
                back=back,
                limit=limit,
                part_events=limit if stored is None else SEARCH_PART_EVENTS,
                budget=Budget(*(PAGE_BUDGET if stored is None else SEARCH_BUDGET)),
                on_read=partial(damage.looked, subject),
            ).run()
        return ChangesPage(
            changes=found.rows,
            lost=[lost_row(lost, log.store.url) for lost in found.lost],
            order="newest" if back else "oldest",
            older=found.end if back else found.begin,
            newer=found.begin if back else found.end,
            is_done=found.is_done,
            looked=looked_row(found.looked),
            head=str(view.head),
            version=view.version,
        )


class ChangeRows:
    """Makes rows of the events of a change log: of all, or of those of one key."""

    def __init__(self, codec: KeyCodec, life: int, wanted: TableKey | None) -> None:
        """Take how keys are stored, and the key."""
        self._codec, self._life, self._wanted = codec, life, wanted

    @property
    def is_selective(self) -> bool:
        """Whether events may be left out."""
        return self._wanted is not None

    def rows(self, rng: SegmentRange, batch: pa.RecordBatch) -> Rows:
        """Yield the wanted changes of a batch."""
        if self._wanted is not None:
            mine = self._codec.routing_key(self._wanted.primary)
            keys = batch.column("routing_key")
            batch = batch.filter(pc.fill_null(pc.equal(keys, mine), False))
        times = batch.column("timestamp").view(pa.int64()).to_pylist()
        offsets, payloads = batch.column("offset").to_pylist(), batch.column("event")
        for offset, time_us, payload in zip(offsets, times, payloads, strict=True):
            stored, value = decode_change(payload.as_py())
            if self._wanted in (None, stored):
                yield offset, self._row(rng, offset, time_us, stored, value)

    def locked_rows(self, rng: SegmentRange, batch: pa.RecordBatch, error: KeyUnavailable) -> Rows:
        """Raise the error: logs of tables are not encrypted."""
        raise error

    def _row(
        self, rng: SegmentRange, offset: int, time_us: int, stored: TableKey, value: bytes | None
    ) -> ChangeRow:
        return ChangeRow(
            **_key_fields(self._codec, stored),
            **_value_fields(value or b"", SHOWN_BYTES),
            is_removal=value is None,
            version=str(KeyVersion(self._life, rng.segment_id, offset)),
            segment=segment_text(rng.segment_id),
            offset=offset,
            timestamp_ms=time_us // 1_000,
        )


def _entries_page(state: TableState, wanted: KeyBounds, limit: int) -> EntriesPage:
    """Return the entries of a range of keys, as far as a page may look."""
    expired_us = state.snapshot.expired_us
    rows, looked, size = list[EntryRow](), 0, 0
    last: TableKey | None = None
    following: str | None = None
    lost: str | None = None
    try:
        for key, change in state.entries.scan(wanted.low, wanted.high):
            if len(rows) == limit or looked == PAGE_ENTRIES or size >= PAGE_BYTES:
                following = None if last is None else id_of(last)
                break
            last, looked = key, looked + 1
            size += len(change.value or b"")
            if is_alive(change, expired_us):
                rows.append(_entry(state, key, change, SHOWN_BYTES))
    except Damaged as error:
        lost = said(error, state.snapshot.stream.store.url)
        following = _after_damage(state, wanted.low if last is None else last)
    return EntriesPage(
        entries=rows,
        next=following,
        version=state.entries.version,
        is_current=state.is_current,
        missing_changes=state.missing_changes,
        as_of_ms=state.as_of_ms,
        looked=looked,
        lost=lost,
    )


def _after_damage(state: TableState, last: TableKey | None) -> str | None:
    """Return the id of the last key of the folded file that a scan was in; None at the end."""
    if state.folded is None:
        return None
    layout = state.snapshot.table.layout
    at = None if last is None else layout.sort_key(last)
    for file in state.folded.files:
        if at is None or file.last > at:
            return id_of(layout.table_key(file.last))
    return None


def _find(state: TableState, stored: TableKey) -> Change | None:
    change = state.entries.find([stored]).get(stored)
    return change if is_alive(change, state.snapshot.expired_us) else None


def _entry(state: TableState, stored: TableKey, change: Change, shown_bytes: int) -> EntryRow:
    version = KeyVersion(state.entries.view.life, change.segment_id, change.offset)
    return EntryRow(
        **_key_fields(state.codec, stored),
        **_value_fields(state.entries.value(change), shown_bytes),
        version=str(version),
        timestamp_ms=change.timestamp_us // 1_000,
    )


def _key_fields(codec: KeyCodec, stored: TableKey, most: int | None = SHOWN_KEY) -> dict[str, Any]:
    text, secondary = typed_key(codec.decode(stored.primary)), typed_bytes(stored.secondary)
    return {
        "id": id_of(stored),
        "key": text[:most],
        "is_key_cut": len(text[:most]) < len(text),
        "secondary_key": secondary[:most] if codec.has_secondary else None,
    }


def _value_fields(value: bytes, shown_bytes: int) -> dict[str, Any]:
    beginning, is_cut = value[:shown_bytes], len(value) > shown_bytes
    text = text_of(beginning, is_cut=is_cut)
    return {
        "size_bytes": len(value),
        "text": text,
        "base64": None if text is not None else base64.b64encode(beginning).decode(),
        "is_cut": is_cut,
    }


def id_of(stored: TableKey) -> str:
    """Return the text that names a key in an address."""
    parts = (base64.urlsafe_b64encode(part).decode().rstrip("=") for part in stored)
    return ".".join(parts).rstrip(".")


def key_of_id(codec: KeyCodec, text: str) -> TableKey:
    """Return the key of :func:`id_of`; raise InvalidInput for any other text."""
    try:
        parts = [base64.urlsafe_b64decode(f"{part}==") for part in text.split(".")]
        stored = TableKey(*parts)
        key = codec.decode(stored.primary)
        if codec.encode(key, stored.secondary) == stored:
            return stored
    except (binascii.Error, ValueError, TypeError, struct.error):
        pass
    raise InvalidInput(
        f"{shown(text)} is no id of a key of table {codec.table}: take it from a row."
    )


def _wanted_key(
    codec: KeyCodec, key_id: str | None, key: str | None, secondary: str | None
) -> TableKey:
    if (key_id is None) == (key is None):
        raise InvalidInput("give the id of a row, or a key.")
    if key_id is not None:
        return key_of_id(codec, key_id)
    return codec.encode(read_key(codec, key or ""), read_bytes(secondary or ""))


def _table(watch: RootWatch, name: str) -> TableRow:
    scope, table = split_table(name)
    found = table_snapshot(watch.root.log(table_log(scope, table)))
    configuration = found.configuration
    folded = None if found.folded is None else found.folded.record
    return TableRow(
        scope=scope,
        table=table,
        state=found.view.record.state.value,
        key_type=KeyType(configuration.key_type).value,
        has_secondary_key=configuration.secondary_key_length > 0,
        ttl=None if configuration.ttl is None else str(configuration.ttl),
        tags=sorted(configuration.tags),
        partitions=len(found.view.active.segments),
        version=found.view.version,
        unfolded_changes=found.changes,
        unfolded_bytes=found.changed_bytes,
        folded_entries=0 if folded is None else folded.rows,
        folded_files=0 if folded is None else folded.files,
        folded_bytes=0 if folded is None else folded.size_bytes,
        folded_ms=None if folded is None else folded.folded_ms,
    )
