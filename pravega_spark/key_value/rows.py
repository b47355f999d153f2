"""Rows and changes as columns: in the engine's order, sorted and merged in bounded memory.

The engine's rows have a column ``k``, one value by which both parts of a key are compared: in the
order of the stored keys (``keys``), first the primary and then the secondary part.

Merges sorted rows, a few megabytes at a time: a base with its changes, and runs of changes. Keys
are compared as folded rows are. Rows of one input have different keys.

Events of a change log as columns: all changes of a batch are decoded at once. The lengths before
the parts of the keys say where everything begins. A batch with a long key is decoded one by one,
with the codec.

Sorts any number of changes by key in bounded memory, and keeps the newest one of each key. Changes
that do not fit lie in sorted runs in a temporary folder of this host, until the end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import (
    column,
    constant,
    mask,
    numbers,
    offsets_of,
    ready,
)
from pravega_spark.key_value.changes import PUT, REMOVE, decode_change
from pravega_spark.key_value.keys import KeyType, TableKey
from pravega_spark.values.limits import FOLD_RUN_BYTES

SortKey = Any
"""A key as one value: an int for tables of whole numbers alone, otherwise bytes."""

ENTRY_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("secondary_key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("segment_id", pa.int64()),
        ("offset", pa.int64()),
    ]
)
"""Changes and entries between the parts of the engine: keys as they are stored; a value of null is
a removal."""
_REST: Final = ("value", "timestamp", "segment_id", "offset")
_NATIVE: Final = {
    KeyType.BYTES: (pa.binary(), "binary"),
    KeyType.STRING: (pa.string(), "string"),
    KeyType.LONG: (pa.int64(), "long"),
}
_END, _ESCAPED = b"\x00\x01", b"\x00\xff"
_SIGN: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How the keys of one table are stored in its files, and compared."""

    key_type: KeyType
    has_secondary: bool

    @property
    def is_number(self) -> bool:
        """Whether a whole number is all of a key."""
        return self.key_type is KeyType.LONG and not self.has_secondary

    @property
    def delta_columns(self) -> dict[str, str]:
        """The columns of the Delta table with their types."""
        secondary = {"secondary_key": "binary"} if self.has_secondary else {}
        rest = {"value": "binary", "timestamp": "timestamp", "segment_id": "long", "offset": "long"}
        return {"key": _NATIVE[self.key_type][1], **secondary, **rest}

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of a file."""
        found = [pa.field("key", _NATIVE[self.key_type][0])]
        names = ("secondary_key", *_REST) if self.has_secondary else _REST
        return pa.schema([*found, *(ENTRY_SCHEMA.field(name) for name in names)])

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of the engine's rows."""
        kind = pa.int64() if self.is_number else pa.binary()
        parts = ("key", "secondary_key") if self.has_secondary else ()
        rest = (ENTRY_SCHEMA.field(name) for name in (*parts, *_REST))
        return pa.schema([pa.field("k", kind), *rest])

    def sort_key(self, key: TableKey) -> SortKey:
        """Return a key, or the bound of a range of keys, as one value."""
        if self.is_number:
            return int.from_bytes(key.primary, "big") - _SIGN
        if not self.has_secondary:
            return key.primary
        return key.primary.replace(b"\x00", _ESCAPED) + _END + key.secondary

    def table_key(self, sort_key: SortKey) -> TableKey:
        """Return the key of the result of :meth:`sort_key`."""
        if isinstance(sort_key, int):
            return TableKey((sort_key + _SIGN).to_bytes(8, "big"))
        if not self.has_secondary:
            return TableKey(sort_key)
        primary, _, secondary = sort_key.partition(_END)
        return TableKey(primary.replace(_ESCAPED, b"\x00"), secondary)

    def to_text(self, sort_key: SortKey) -> str:
        """Return a key as the text of a tag: hexadecimal digits of its stored parts."""
        key = self.table_key(sort_key)
        return f"{key.primary.hex()}.{key.secondary.hex()}" if self.has_secondary else key[0].hex()

    def of_text(self, text: str) -> SortKey:
        """Return the key of such a text; raise ValueError for any other."""
        primary, _, secondary = text.partition(".")
        return self.sort_key(TableKey(bytes.fromhex(primary), bytes.fromhex(secondary)))

    def rows_of_entries(self, entries: pa.Table) -> pa.Table:
        """Return entries of ``ENTRY_SCHEMA`` as rows."""
        entries = entries.combine_chunks()
        columns = {name: _whole(entries.column(name)) for name in ENTRY_SCHEMA.names}
        primary, secondary = columns["key"], columns["secondary_key"]
        if self.is_number:
            order = _to_numbers(primary)
        elif self.has_secondary:
            order = _joined(primary, secondary)
        else:
            order = primary
        return self._table({"k": order, **columns})

    def entries_of_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows as entries of ``ENTRY_SCHEMA``."""
        rows = rows.combine_chunks()
        if self.has_secondary:
            return rows.select(ENTRY_SCHEMA.names)
        order = _whole(rows.column("k"))
        primary = to_stored_numbers(numbers(order)) if self.is_number else order
        rest = [_whole(rows.column(name)) for name in _REST]
        return pa.Table.from_arrays([primary, _empty(rows.num_rows), *rest], schema=ENTRY_SCHEMA)

    def with_keys(self, columns: Sequence[str]) -> list[str]:
        """Return columns of a file, with those of the keys."""
        keys = ("key", "secondary_key")
        return [name for name in self.file_schema.names if name in keys or name in columns]

    def filled(self, stored: pa.Table) -> pa.Table:
        """Return some columns of a file as all of them; those that were not read are null."""
        schema = self.file_schema
        if stored.num_columns == len(schema):
            return stored
        columns = [
            stored.column(field.name)
            if field.name in stored.column_names
            else pa.nulls(stored.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def rows_of_file(self, stored: pa.Table) -> pa.Table:
        """Return the columns of a file as rows."""
        stored = stored.combine_chunks()
        columns = {name: _whole(stored.column(name)) for name in stored.column_names}
        native = columns["key"]
        if self.is_number:
            return self._table({"k": native, **columns})
        primary = native.view(pa.binary()) if self.key_type is not KeyType.LONG else None
        if primary is None:
            primary = to_stored_numbers(numbers(native))
        order = _joined(primary, columns["secondary_key"]) if self.has_secondary else primary
        return self._table({**columns, "k": order, "key": primary})

    def columns_of_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows as the columns of a file."""
        primary = _whole(rows.column("key" if self.has_secondary else "k"))
        if self.key_type is KeyType.STRING:
            primary = primary.view(pa.string())
        elif self.key_type is KeyType.LONG and self.has_secondary:
            primary = _to_numbers(primary)
        schema = self.file_schema
        rest = [_whole(rows.column(name)) for name in schema.names[1:]]
        return pa.Table.from_arrays([primary, *rest], schema=schema)

    def empty(self) -> pa.Table:
        """Return no rows."""
        ready()
        return self.row_schema.empty_table()

    def _table(self, columns: dict[str, pa.Array]) -> pa.Table:
        schema = self.row_schema
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def position(order: pa.Array, key: SortKey, *, after: bool = False) -> int:
    """Return how many sorted keys are below a key, or with ``after`` up to it."""
    if isinstance(key, int):
        return int(np.searchsorted(numbers(order), key, side="right" if after else "left"))
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        found = order[middle].as_py()
        if found < key or (after and found == key):
            low = middle + 1
        else:
            high = middle
    return low


def keys_of(rows: pa.Table) -> pa.Array:
    """Return the keys of rows as one array."""
    return _whole(rows.column("k"))


def first_key(rows: pa.Table) -> SortKey:
    """Return the first key of rows."""
    found: SortKey = rows.column("k")[0].as_py()
    return found


def last_key(rows: pa.Table) -> SortKey:
    """Return the last key of rows."""
    found: SortKey = rows.column("k")[rows.num_rows - 1].as_py()
    return found


def joined_rows(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables as one, whose columns are in one piece."""
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).combine_chunks()


def _whole(found: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(found, pa.Array):
        return found
    if found.num_chunks == 1:
        return found.chunk(0)
    ready()
    return found.combine_chunks() if found.num_chunks else pa.array([], found.type)


def _joined(primary: pa.Array, secondary: pa.Array) -> pa.Array:
    """Return both parts as one value that is in the order of the pairs, for parts of any length."""
    escaped: Any = pc.replace_substring(primary, pattern=b"\x00", replacement=_ESCAPED)
    return pc.binary_join_element_wise(escaped, secondary, pa.scalar(_END, pa.binary()))


def _to_numbers(primary: pa.Array) -> pa.Array:
    """Return stored whole numbers as such."""
    buffer = primary.buffers()[2]
    start = 0 if buffer is None else np.frombuffer(primary.buffers()[1], np.int32)[primary.offset]
    data = np.frombuffer(buffer or b"", ">u8", len(primary), int(start))
    return column((data ^ np.uint64(_SIGN)).astype(np.uint64).view(np.int64), pa.int64())


def to_stored_numbers(values: NDArray[np.int64]) -> pa.Array:
    """Return whole numbers as they are stored."""
    data = (values.view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8")
    ends = np.arange(len(values) + 1, dtype=np.int32) * 8
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _empty(rows: int) -> pa.Array:
    ends = np.zeros(rows + 1, np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(b"")])


_FEW: Final = 8
"""A merge looks up the places of changes if the rows are this many times more; or sorts all."""


class RowCursor:
    """Sorted rows that are taken from the front, up to a key."""

    def __init__(self, parts: Iterable[pa.Table]) -> None:
        """Take the parts in order; they are read when they are needed."""
        self._parts = iter(parts)
        self._rest: pa.Table | None = None

    def _fill(self) -> pa.Table | None:
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._parts, None)
            if self._rest is None:
                return None
        return self._rest

    def first(self) -> SortKey | None:
        """Return the key of the first row; None at the end."""
        rows = self._fill()
        return None if rows is None else first_key(rows)

    def last_at_hand(self) -> SortKey | None:
        """Return the last key of the part at hand; None at the end."""
        rows = self._fill()
        return None if rows is None else last_key(rows)

    def take(self, key: SortKey, *, through: bool) -> pa.Table | None:
        """Take the rows of the part at hand below a key, or ``through`` it; None for no rows."""
        rows = self._fill()
        if rows is None:
            return None
        last = last_key(rows)
        if last < key or (through and last == key):
            self._rest = None
            return rows
        count = position(keys_of(rows), key, after=through)
        if not count:
            return None
        self._rest = rows.slice(count)
        return rows.slice(0, count)

    def until(self, key: SortKey | None, *, through: bool = False) -> Iterator[pa.Table]:
        """Take all rows below a key, or ``through`` it, part by part; None: to the end."""
        while True:
            if key is None:
                rows, self._rest = self._fill(), None
            else:
                rows = self.take(key, through=through)
            if rows is None:
                return
            yield rows


def with_changes(base: Iterable[pa.Table], changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of a base after changes: a change replaces its key's row, or removes it."""
    left, right = RowCursor(base), RowCursor(changes)
    while True:
        first, second = left.last_at_hand(), right.last_at_hand()
        if first is None:
            yield from (present(rows) for rows in right.until(None))
            return
        if second is None:
            yield from left.until(None)
            return
        bound = min(first, second)
        rows, changed = left.take(bound, through=True), right.take(bound, through=True)
        if rows is None or changed is None:
            yield present(changed) if changed is not None else rows
        else:
            yield _changed(rows, changed)


def present(changes: pa.Table) -> pa.Table:
    """Return the changes that set a value."""
    if not changes.column("value").null_count:
        return changes
    return changes.filter(changes.column("value").is_valid())


def newest(rows: pa.Table) -> pa.Table:
    """Return the newest change of each key, sorted by key."""
    rows = rows.combine_chunks()
    order = [("k", "ascending"), ("segment_id", "ascending"), ("offset", "ascending")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()
    return rows.filter(mask(_is_last(keys_of(rows))))


def merged_runs(runs: Sequence[Iterable[pa.Table]]) -> Iterator[pa.Table]:
    """Yield the newest change of each key of several runs, in which it may be more than once."""
    cursors = [RowCursor(run) for run in runs]
    while True:
        lasts = [last for cursor in cursors if (last := cursor.last_at_hand()) is not None]
        if not lasts:
            return
        bound = min(lasts)
        taken = (cursor.take(bound, through=True) for cursor in cursors)
        yield newest(pa.concat_tables([rows for rows in taken if rows is not None]))


def _changed(base: pa.Table, changes: pa.Table) -> pa.Table:
    """Return sorted rows after sorted changes of the same range of keys."""
    together = joined_rows([base, changes])
    keys, own = keys_of(base), keys_of(changes)
    if len(own) * _FEW < len(keys):
        order, is_kept = _placed(keys, own)
    else:
        order = numbers(pc.sort_indices(keys_of(together))).astype(np.int64)  # it is stable
        is_kept = _is_last(keys_of(together).take(pa.array(order)))
    valid = np.ones(len(order), np.bool_)
    values = changes.column("value")
    if values.null_count:
        removed = ~np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        is_change = order >= len(keys)
        valid[is_change] = ~removed[order[is_change] - len(keys)]
    return together.take(pa.array(order[is_kept & valid]))


def _placed(keys: pa.Array, own: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the order of both, the few keys of ``own`` in their places, and which rows stay."""
    from bisect import bisect_left

    if pa.types.is_integer(keys.type):
        base, few = numbers(keys), numbers(own)
        places = np.searchsorted(base, few)
        equal = base[np.minimum(places, len(base) - 1)] == few
    else:
        known, wanted = keys.to_pylist(), own.to_pylist()
        places = np.fromiter((bisect_left(known, key) for key in wanted), np.int64, len(wanted))
        found = zip(places.tolist(), wanted, strict=True)
        equal = np.fromiter(
            (at < len(known) and known[at] == key for at, key in found), np.bool_, len(wanted)
        )
    order = np.insert(np.arange(len(keys)), places, len(keys) + np.arange(len(own)))
    is_kept = np.ones(len(order), np.bool_)
    is_replaced = np.zeros(len(keys) + 1, np.bool_)
    is_replaced[places[equal]] = True
    is_base = order < len(keys)
    is_kept[is_base] = ~is_replaced[order[is_base]]
    return order, is_kept


def _is_last(keys: pa.Array) -> NDArray[np.bool_]:
    """Return for each of sorted keys whether the next one differs."""
    found = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        differs: Any = pc.not_equal(keys[:-1], keys[1:])
        found[:-1] = np.asarray(differs.to_numpy(zero_copy_only=False), np.bool_)
    return found


_SHORT: Final = 0x80
_LEAST: Final = 3
"""Bytes of a change without a key: the operation and two lengths."""
_LONG: Final = 1_024
"""Parts that are longer than that on average are copied one by one."""
_TOGETHER: Final = 8_192
"""The number of shorter parts that are copied together: the places of their bytes are in memory."""


def entries_of_events(
    segment_id: int, events: pa.RecordBatch, times_us: NDArray[np.int64] | None = None
) -> pa.Table:
    """Return the changes of a segment's events (``offset``, ``timestamp``, ``event``) as entries.

    ``times_us`` stand for the timestamps if they are given. Raises CorruptChunk for an event that
    is not a change.
    """
    ready()
    payloads = events.column("event")
    if times_us is None:
        times = events.column("timestamp")
    else:
        times = column(times_us, pa.timestamp("us", "UTC"))
    parts = _columns(payloads) or _one_by_one(payloads)
    place = constant(segment_id, pa.int64(), len(payloads)), events.column("offset")
    return pa.Table.from_arrays([*parts, times, *place], schema=ENTRY_SCHEMA)


def _columns(payloads: pa.Array) -> list[pa.Array] | None:
    """Return keys, secondary keys and values; None if one by one is needed, or tells what is wrong.

    Only lengths below 128 are read here, which take one byte.
    """
    if not len(payloads):
        return None
    ends = offsets_of(payloads)
    data = np.frombuffer(payloads.buffers()[2] or b"", np.uint8)
    starts, sizes = ends[:-1], np.diff(ends)
    if sizes.min() < _LEAST:
        return None
    operation, first = data[starts], data[starts + 1].astype(np.int64)
    if first.max() >= _SHORT or (first + _LEAST > sizes).any():
        return None
    second = data[starts + 2 + first].astype(np.int64)
    heads = _LEAST + first + second
    if second.max() >= _SHORT or (heads > sizes).any():
        return None
    is_put, is_removal = operation == PUT, operation == REMOVE
    if not (is_put | (is_removal & (heads == sizes))).all():
        return None
    keys = _cut_out(data, starts + 2, first)
    secondary = _cut_out(data, starts + _LEAST + first, second)
    values = _cut_out(data, starts + heads, sizes - heads)
    if is_removal.any():
        values = pc.if_else(mask(is_put), values, pa.scalar(None, pa.binary()))
    return [keys, secondary, values]


def _cut_out(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> pa.Array:
    """Return the parts of the data that begin somewhere and have some sizes."""
    ends = np.cumsum(sizes)
    found = np.empty(int(ends[-1]), np.uint8)
    if len(found) > _LONG * len(sizes):
        befores = ends - sizes
        for start, before, end in zip(
            starts.tolist(), befores.tolist(), ends.tolist(), strict=True
        ):
            found[before:end] = data[start : start + end - before]
    else:
        for first in range(0, len(sizes), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            before, end = int(ends[some][0] - sizes[some][0]), int(ends[some][-1])
            shifts = np.repeat(starts[some] - (ends[some] - sizes[some]), sizes[some])
            found[before:end] = data[shifts + np.arange(before, end)]
    offsets = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(found)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def _one_by_one(payloads: pa.Array) -> list[pa.Array]:
    """Return what :func:`_cut_out` does; raise CorruptChunk."""
    changes = [decode_change(payload) for payload in payloads.to_pylist()]
    columns = (
        [key.primary for key, _ in changes],
        [key.secondary for key, _ in changes],
        [value for _, value in changes],
    )
    return [pa.array(part, pa.binary()) for part in columns]


_PART_BYTES: Final = 2 << 20
"""About the size of what is read of a run at a time."""


class ChangeSorter:
    """Takes rows in any order, and yields them sorted; a context manager."""

    def __init__(self, run_bytes: int = FOLD_RUN_BYTES) -> None:
        """Hold at most about ``run_bytes`` of changes in memory."""
        self._run_bytes = run_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs: list[Path] = []

    @property
    def runs(self) -> int:
        """The number of runs that were spilled."""
        return len(self._runs)

    def add(self, rows: pa.Table) -> None:
        """Add changes: rows of the engine."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._run_bytes:
            self._reduce()
            if self._held_bytes >= self._run_bytes // 2:
                self._spill()

    def sorted(self) -> Iterator[pa.Table]:
        """Yield the newest change of each key, in order, a part at a time."""
        self._reduce()
        if not self._runs:
            yield from self._held
            return
        if self._held:
            self._spill()
        yield from merged_runs([_parts(path) for path in self._runs])

    def __enter__(self) -> ChangeSorter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Delete the runs."""
        if self._folder is not None:
            self._folder.cleanup()

    def _reduce(self) -> None:
        """Keep the newest change of each key of what is held."""
        if self._held:
            self._held = [newest(pa.concat_tables(self._held))]
            self._held_bytes = self._held[0].nbytes

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="pravega-fold-")
        (rows,) = self._held
        path = Path(self._folder.name) / f"{len(self._runs)}.arrow"
        most = max(1, rows.num_rows * _PART_BYTES // max(1, rows.nbytes))
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with (
            pa.OSFile(str(path), "w") as file,
            pa.ipc.new_stream(file, rows.schema, options=options) as writer,
        ):
            writer.write_table(rows, max_chunksize=most)
        self._runs.append(path)
        self._held, self._held_bytes = [], 0


def _parts(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path), "r") as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])
