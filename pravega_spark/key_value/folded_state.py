"""One version of a folded table: look-ups of keys, and scans in their order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.stream.folded_record import FoldedRecord
from pravega_spark.key_value.change_codec import Change
from pravega_spark.key_value.folded_file import FileReader, FoldedFile
from pravega_spark.key_value.folded_rows import (
    SortKey,
    first_key,
    keys_of,
    last_key,
    position,
)
from pravega_spark.key_value.table_key import TableKey
from pravega_spark.model import StreamCut


class FoldedState:
    """One version of a folded table. Immutable and thread-safe; its files stay until a sweep."""

    def __init__(
        self,
        reader: FileReader,
        version: int,
        record: FoldedRecord,
        files: Sequence[FoldedFile],
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Take the files in the order of their keys."""
        self._reader = reader
        self._runtime = runtime
        self.version = version
        self.record = record
        self.files = files
        self._firsts = [file.first for file in files]

    @property
    def life(self) -> int:
        """The life of the change log."""
        return self.record.life

    @property
    def cut(self) -> StreamCut:
        """The cut of the change log that the table reflects."""
        if self.record.cut is None:
            return StreamCut.EARLIEST
        return StreamCut(self._reader.log_name, self.life, self.record.cut)

    @property
    def log_version(self) -> int:
        """The version of the change log that the table reflects."""
        return self.record.log_version

    def get(self, keys: Sequence[TableKey]) -> dict[TableKey, Change]:
        """Return the entries of some keys; those without an entry are left out.

        Each row group with wanted keys costs one storage call, and each file whose footer is not
        kept one more. Raises CorruptChunk and DataLoss, which name the file.
        """
        layout, reader = self._reader.layout, self._reader
        wanted: dict[str, list[tuple[SortKey, TableKey]]] = defaultdict(list)
        files: dict[str, FoldedFile] = {}
        for key in keys:
            order = layout.sort_key(key)
            at = bisect_right(self._firsts, order) - 1
            if at >= 0 and order <= self.files[at].last:
                file = self.files[at]
                files[file.path] = file
                wanted[file.path].append((order, key))

        def look_up(path: str) -> list[tuple[TableKey, Change]]:
            file, groups = files[path], defaultdict(list)
            footer = reader.footer(file)
            for order, key in wanted[path]:
                groups[footer.group_of(order)].append((order, key))
            return [
                found
                for number, some in groups.items()
                for found in _entries(reader.group(file, number), some)
            ]

        with reader.missing_files():
            parts = self._runtime.each(look_up, list(wanted))
        return {key: entry for part in parts for key, entry in part}

    def scan(
        self,
        low: TableKey | None = None,
        high: TableKey | None = None,
        after: TableKey | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries of [low, high), or those behind ``after``, sorted by key.

        Batches have ``ENTRY_SCHEMA``; a few megabytes are in memory. Raises what :meth:`get` does.
        """
        layout, reader = self._reader.layout, self._reader
        least = None if low is None else layout.sort_key(low)
        end = None if high is None else layout.sort_key(high)
        behind = None if after is None else layout.sort_key(after)
        if behind is not None and (least is None or behind >= least):
            least = behind
        else:
            behind = None
        first = 0
        if least is not None:
            first = max(0, bisect_right(self._firsts, least) - 1)
        last = len(self.files)
        if end is not None:
            last = bisect_left(self._firsts, end)
        for file in self.files[first:last]:
            with reader.missing_files():
                for rows in reader.rows(file, least, end):
                    part = rows_between(rows, least, end, is_after=behind is not None)
                    if part.num_rows:
                        yield from layout.entries_of_rows(part).to_batches()

    def entries(
        self, low: TableKey | None = None, high: TableKey | None = None
    ) -> Iterator[tuple[TableKey, Change]]:
        """Yield the entries of [low, high), sorted by key, as :meth:`scan` does."""
        for batch in self.scan(low, high):
            columns = [batch.column(n).to_pylist() for n in ("segment_id", "offset")]
            columns += [batch.column("timestamp").view(pa.int64()).to_pylist()]
            columns += [batch.column("value").to_pylist()]
            keys = map(
                TableKey,
                batch.column("key").to_pylist(),
                batch.column("secondary_key").to_pylist(),
            )
            yield from zip(keys, map(Change, *columns), strict=True)


def _entries(
    rows: pa.Table, wanted: Iterable[tuple[SortKey, TableKey]]
) -> Iterator[tuple[TableKey, Change]]:
    """Yield the entries of a row group."""
    order = keys_of(rows)
    for key, name in wanted:
        at = position(order, key)
        if at < len(order) and order[at].as_py() == key:
            row = [rows.column(column)[at] for column in ("segment_id", "offset", "timestamp")]
            place = row[0].as_py(), row[1].as_py(), row[2].value
            yield name, Change(*place, rows.column("value")[at].as_py())


def rows_between(
    rows: pa.Table, low: SortKey | None, high: SortKey | None, *, is_after: bool = False
) -> pa.Table:
    """Return the sorted rows of the keys of [low, high), or those behind ``low``."""
    order = keys_of(rows)
    first, last = 0, rows.num_rows
    if not last:
        return rows
    if low is not None and not first_key(rows) > low:
        first = position(order, low, after=is_after)
    if high is not None and not last_key(rows) < high:
        last = position(order, high)
    return rows.slice(first, max(0, last - first))
