"""The files of a folded table: read in parts, written sorted, merged with changes.

A file holds a range of keys in order, in row groups of a few thousand rows. Its footer records the
first key of each row group, so that a key is found by the footer, which is kept in memory, and one
row group. The log records a digest of the footer, and pages carry a CRC: a damaged byte is never
returned as data.

Merges changes into the files of a folded table whose ranges they touch: copy on write. The files
lie in the order of their keys, with gaps between them. Changes are read once, in order. A file that
no change touches stays as it is, unless it is small beside something that is written.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pravega_spark.engine.chunk_paths import file_path
from pravega_spark.engine.chunks.arrow_arrays import byte_ends, numbers
from pravega_spark.engine.chunks.encoder import cuts
from pravega_spark.engine.chunks.footer import (
    FooterSink,
    checked_digest,
    digest_of,
    has_digest,
    length_of,
)
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.file_objects import PositionedFile
from pravega_spark.errors import CorruptChunk, CorruptLog, DataLoss, StoreError
from pravega_spark.key_value.keys import KeyType
from pravega_spark.key_value.rows import (
    RowCursor,
    RowLayout,
    SortKey,
    first_key,
    last_key,
    present,
    with_changes,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import (
    FOLDED_GROUP_BYTES,
    FOLDED_GROUP_ROWS,
    FOLDED_READ_BYTES,
    FOOTER_CACHE_BYTES,
)

FIRST_KEYS: Final = b"pravega.first_keys"
"""The first key of each row group, in the footer: a JSON list of texts."""
_STATS_CHARACTERS: Final = 32
"""The number of characters that Delta's writers keep of a text's bounds."""
_GREATEST: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedFile:
    """A file of a folded table as the log records it; ``path`` is relative to the table."""

    path: str
    size: int
    rows: int
    first: SortKey
    last: SortKey
    min_timestamp_us: int
    max_timestamp_us: int
    footer: str

    def to_add(self, layout: RowLayout, now_ms: int) -> Add:
        """Return the action that adds the file."""
        tags = {
            "rows": str(self.rows),
            "firstKey": layout.to_text(self.first),
            "lastKey": layout.to_text(self.last),
            "minTimestamp": str(self.min_timestamp_us),
            "maxTimestamp": str(self.max_timestamp_us),
            "footer": self.footer,
        }
        return Add(
            path=self.path,
            partition={},
            size=self.size,
            modified_ms=now_ms,
            stats=to_json(self._stats(layout)),
            tags=tags,
        )

    def _stats(self, layout: RowLayout) -> dict[str, Any]:
        """Return Delta's statistics: bounds of the key where Delta has some for its type."""
        stats: dict[str, Any] = {"numRecords": self.rows}
        first, last = layout.table_key(self.first).primary, layout.table_key(self.last).primary
        if layout.key_type is KeyType.LONG:
            low, high = (int.from_bytes(key, "big") - (1 << 63) for key in (first, last))
            stats |= {"minValues": {"key": low}, "maxValues": {"key": high}}
        elif layout.key_type is KeyType.STRING:
            least, greatest = first.decode(), last.decode()
            if len(greatest) > _STATS_CHARACTERS:
                greatest = greatest[:_STATS_CHARACTERS] + _GREATEST
            bounds = least[:_STATS_CHARACTERS], greatest
            stats |= {"minValues": {"key": bounds[0]}, "maxValues": {"key": bounds[1]}}
        return {**stats, "nullCount": {"key": 0}}


def bounded_columns(layout: RowLayout) -> Sequence[str]:
    """Return the columns whose bounds are in the statistics: Delta has none of binary columns."""
    return () if layout.key_type is KeyType.BYTES else ("key",)


def folded_file(add: Add, layout: RowLayout, where: str) -> FoldedFile:
    """Return the file of an action in the log of the table at ``where``; raise CorruptLog."""
    try:
        tags = add.tags or {}
        return FoldedFile(
            path=add.path,
            size=add.size,
            rows=int(tags["rows"]),
            first=layout.of_text(tags["firstKey"]),
            last=layout.of_text(tags["lastKey"]),
            min_timestamp_us=int(tags["minTimestamp"]),
            max_timestamp_us=int(tags["maxTimestamp"]),
            footer=checked_digest(tags["footer"]),
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{where}: the log's file {add.path} is not a file of a folded table: {error!r}. "
            "Restore the log from a copy.",
            path=f"{where}/{add.path}",
        ) from error


class RowGroupPlace(NamedTuple):
    """Where a row group lies in its file, and its number of rows."""

    start: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True)
class FileFooter:
    """A checked footer: Parquet's own metadata, and the row groups by their first keys."""

    metadata: pq.FileMetaData
    first_keys: Sequence[SortKey]
    places: Sequence[RowGroupPlace]
    size: int
    """In bytes, as it is stored."""

    def group_of(self, key: SortKey) -> int:
        """Return the only row group that may hold a key that is not below the first one."""
        return max(0, bisect_right(self.first_keys, key) - 1)

    def groups_between(self, low: SortKey | None, high: SortKey | None) -> range:
        """Return the row groups that may hold keys of [low, high), one at least."""
        first = 0 if low is None else self.group_of(low)
        end = len(self.places)
        if high is not None:
            end = max(first + 1, bisect_left(self.first_keys, high))
        return range(first, end)


class FileReader:
    """Reads the files of one folded table; keeps footers within FOOTER_CACHE_BYTES. Thread-safe."""

    def __init__(self, store: Store, path: str, layout: RowLayout) -> None:
        self._store = store
        self._path = path
        self.layout = layout
        self._lock = new_lock()
        self._footers: OrderedDict[str, FileFooter] = OrderedDict()
        self._kept_bytes = 0
        """The size of the footers that are kept, as they are stored."""

    @contextmanager
    def missing_files(self) -> Iterator[None]:
        """Turn a missing file into DataLoss, which names it."""
        try:
            yield
        except FileNotFoundError as error:
            raise DataLoss(
                f"a file that the log of {self._path} names is lost: {error} Restore it from a "
                "copy; or read a newer version, if this one is no longer retained.",
                path=f"{self._store.url.rstrip('/')}/{self._path}",
            ) from error

    @property
    def log_name(self) -> str:
        """The internal name of the change log."""
        return self._path.rpartition("/")[0]

    def where(self, file: FoldedFile) -> str:
        """Return the full path or URL of a file, for errors."""
        return f"{self._store.url.rstrip('/')}/{self._path}/{file.path}"

    def footer(self, file: FoldedFile) -> FileFooter:
        """Return the footer of a file; one storage call unless it is kept."""
        with self._lock:
            known = self._footers.get(file.path)
            if known is not None:
                self._footers.move_to_end(file.path)
                return known
        with self._errors(file):
            found = self._read_footer(file)
        with self._lock:
            if file.path not in self._footers:
                self._footers[file.path] = found
                self._kept_bytes += found.size
            while self._kept_bytes > FOOTER_CACHE_BYTES and len(self._footers) > 1:
                self._kept_bytes -= self._footers.popitem(last=False)[1].size
        return found

    def group(self, file: FoldedFile, number: int) -> pa.Table:
        """Return the rows of one row group; one storage call if the footer is kept."""
        return self._groups(file, self.footer(file), [number])

    def rows(
        self,
        file: FoldedFile,
        low: SortKey | None = None,
        high: SortKey | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the row groups that may hold keys of [low, high), a few megabytes at a time.

        ``columns`` are those that the caller needs; others may be null. The keys are always read.
        """
        footer = self.footer(file)
        part: list[int] = []
        size = 0
        for number in footer.groups_between(low, high):
            place = footer.places[number]
            if part and size + place.end - place.start > FOLDED_READ_BYTES:
                yield self._groups(file, footer, part, columns)
                part, size = [], 0
            part.append(number)
            size += place.end - place.start
        if part:
            yield self._groups(file, footer, part, columns)

    def forget(self, live: Mapping[str, object]) -> None:
        """Drop the footers of files that are no longer live."""
        with self._lock:
            for path in [path for path in self._footers if path not in live]:
                self._kept_bytes -= self._footers.pop(path).size

    def _read_footer(self, file: FoldedFile) -> FileFooter:
        length = length_of(file.footer)
        data = self._store.get_range(
            f"{self._path}/{file.path}", max(0, file.size - length), file.size
        )
        if not has_digest(memoryview(data), file.footer):
            raise ValueError("its footer is not the one that the log records")
        metadata = pq.read_metadata(pa.BufferReader(data))
        texts = json.loads(metadata.metadata[FIRST_KEYS])
        keys = [self.layout.of_text(text) for text in texts]
        places = [_place(metadata.row_group(n)) for n in range(metadata.num_row_groups)]
        if metadata.num_rows != file.rows or len(keys) != len(places):
            raise ValueError(f"it holds {metadata.num_rows} rows; the log records {file.rows}")
        return FileFooter(metadata, keys, places, length)

    def _groups(
        self,
        file: FoldedFile,
        footer: FileFooter,
        numbers: Sequence[int],
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return neighbouring row groups, which are read in one call."""
        start, end = footer.places[numbers[0]].start, footer.places[numbers[-1]].end
        with self._errors(file):
            data = self._store.get_range(f"{self._path}/{file.path}", start, end)
            source = pa.PythonFile(_FilePart(data, start, file.size), mode="r")
            stored = pq.ParquetFile(
                source, metadata=footer.metadata, page_checksum_verification=True
            )
            if not stored.schema_arrow.equals(self.layout.file_schema):
                raise ValueError(f"it has the columns {stored.schema_arrow.names}")
            wanted = None if columns is None else self.layout.with_keys(columns)
            rows = stored.read_row_groups(list(numbers), wanted, use_threads=False)
            expected = sum(footer.places[number].rows for number in numbers)
            if rows.num_rows != expected:
                raise ValueError(f"it yields {rows.num_rows} rows instead of {expected}")
            return self.layout.rows_of_file(self.layout.filled(rows))

    @contextmanager
    def _errors(self, file: FoldedFile) -> Iterator[None]:
        """Turn what reading damaged bytes raises into CorruptChunk, which names the file."""
        try:
            yield
        except (FileNotFoundError, StoreError):
            raise
        except (pa.ArrowException, OSError, *DECODE_ERRORS) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise StoreError(f"{self.where(file)} cannot be read: {error}.") from error
            raise CorruptChunk(
                f"{self.where(file)} is damaged: {error}. Restore the file from a copy.",
                path=self.where(file),
            ) from error


class _FilePart(PositionedFile):
    """The fetched part of a file, at its place; a read elsewhere is an error."""

    def __init__(self, data: bytes, start: int, size: int) -> None:
        super().__init__()
        self._data = memoryview(data)
        self._start = start
        self._size = size

    def _end(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        at = self._position - self._start
        end = len(self._data) if size is None or size < 0 else at + size
        if not 0 <= at <= end <= len(self._data):
            raise ValueError(f"it ends within its row groups, at byte {self._position}")
        self._position += end - at
        return bytes(self._data[at:end])


def _place(group: pq.RowGroupMetaData) -> RowGroupPlace:
    starts, ends = [], []
    for number in range(group.num_columns):
        found = group.column(number)
        start = found.data_page_offset
        if found.dictionary_page_offset is not None:
            start = min(start, found.dictionary_page_offset)
        starts.append(start)
        ends.append(start + found.total_compressed_size)
    return RowGroupPlace(min(starts), max(ends), group.num_rows)


_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "version": "2.6",
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["segment_id"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
    "write_statistics": ["key"],
    "write_page_checksum": True,
    "store_schema": False,  # Parquet's own types are enough
}


class FoldedWriter:
    """Writes rows that arrive in the order of their keys into files of ``target_bytes``.

    Rows of one row group wait for the rest of it, and one part is encoded in the background. A
    context manager: after an error the file that was begun is discarded; earlier ones stay in the
    store, and a sweep deletes them unless a commit names them.
    """

    def __init__(
        self,
        store: Store,
        table_path: str,
        folder: str,
        layout: RowLayout,
        target_bytes: int,
        runtime: Runtime,
    ) -> None:
        """Take the folder ``<table_path>/data/<folder>/``; nothing is written yet."""
        self._store = store
        self._table_path = table_path
        self._folder = folder
        self._layout = layout
        self._target_bytes = target_bytes
        self._runtime = runtime
        self._name = runtime.token()
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._file: _OpenFile | None = None
        self.files: list[FoldedFile] = []
        """The files that are complete."""

    def write(self, rows: pa.Table) -> None:
        """Append rows; raise StoreError."""
        if not rows.num_rows:
            return
        self._held.append(rows)
        self._held_rows += rows.num_rows
        if self._held_rows >= FOLDED_GROUP_ROWS:
            self._flush(complete=False)

    @property
    def open_bytes(self) -> int:
        """About the bytes of the file that was begun; 0 between two files."""
        held = sum(part.nbytes for part in self._held)
        return int(held + (0 if self._file is None else self._file.size))

    def finish_file(self) -> None:
        """Complete the file that was begun: what follows is not its neighbour, or it is full."""
        self._flush(complete=True)
        if self._file is not None:
            self.files.append(self._file.close())
            self._file = None

    def __enter__(self) -> FoldedWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Discard a file that is not complete."""
        if self._file is not None:
            self._file.discard(error or RuntimeError("not finished"))
            self._file = None

    def _flush(self, *, complete: bool) -> None:
        """Write the full row groups of what is held; with ``complete`` also the rest."""
        if not self._held:
            return
        rows = pa.concat_tables(self._held).combine_chunks()
        self._held, self._held_rows = [], 0
        sizes = _row_bytes(rows, self._layout)
        for first, last, size in cuts(sizes, FOLDED_GROUP_ROWS, FOLDED_GROUP_BYTES):
            part = rows.slice(first, last - first)
            is_full = last - first == FOLDED_GROUP_ROWS or last < rows.num_rows
            if not (is_full or complete):
                self._held, self._held_rows = [part], part.num_rows
                return
            if self._file is not None and self._file.size + size // 2 > self._target_bytes:
                self.files.append(self._file.close())
                self._file = None
            if self._file is None:
                number = len(self.files)
                path = file_path(self._folder, f"{self._name}-{number}")
                self._file = _OpenFile(
                    self._store, self._table_path, path, self._layout, self._runtime
                )
            self._file.write(part)


class _OpenFile:
    """A file that is being written."""

    def __init__(
        self, store: Store, table_path: str, path: str, layout: RowLayout, runtime: Runtime
    ) -> None:
        self._layout = layout
        self._runtime = runtime
        self._path = path
        self._first_keys: list[SortKey] = []
        self._last: SortKey = b""
        self._rows = 0
        self._least_us = self._greatest_us = 0
        self._encoded: Future[None] | None = None
        self._object = store.writer(f"{table_path}/{path}")
        self._sink = FooterSink(self._object.__enter__())
        file = pa.PythonFile(self._sink, mode="w")
        self._writer = pq.ParquetWriter(file, layout.file_schema, **_WRITER_OPTIONS)

    @property
    def size(self) -> int:
        """The bytes that were written; a part may still be on its way."""
        return self._sink.size

    def write(self, rows: pa.Table) -> None:
        """Write one row group in the background, after the one before."""
        self._wait()
        times = numbers(rows.column("timestamp").combine_chunks().view(pa.int64()))
        low, high = int(times.min()), int(times.max())
        self._least_us = min(self._least_us, low) if self._rows else low
        self._greatest_us = max(self._greatest_us, high) if self._rows else high
        self._first_keys.append(first_key(rows))
        self._last = last_key(rows)
        self._rows += rows.num_rows
        self._encoded = self._runtime.start(partial(self._encode, rows))

    def _encode(self, rows: pa.Table) -> None:
        self._writer.write_table(
            self._layout.columns_of_rows(rows.combine_chunks()), row_group_size=rows.num_rows
        )

    def close(self) -> FoldedFile:
        """Make the file durable and return it."""
        self._wait()
        texts = [self._layout.to_text(key) for key in self._first_keys]
        self._writer.add_key_value_metadata({FIRST_KEYS: to_json(texts).encode()})
        self._sink.keep()
        self._writer.close()
        size, footer = self._sink.size, digest_of(pa.py_buffer(self._sink.kept))
        self._object.__exit__(None, None, None)
        return FoldedFile(
            path=self._path,
            size=size,
            rows=self._rows,
            first=self._first_keys[0],
            last=self._last,
            min_timestamp_us=self._least_us,
            max_timestamp_us=self._greatest_us,
            footer=footer,
        )

    def discard(self, error: BaseException) -> None:
        if self._encoded is not None:
            wait([self._encoded])
        self._writer.is_open = False  # so that its finalizer writes no footer
        leave: Callable[..., object] = self._object.__exit__
        try:
            leave(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                raise

    def _wait(self) -> None:
        """Wait for the row group in the background, and raise its error."""
        if self._encoded is not None:
            self._encoded.result()


def _row_bytes(rows: pa.Table, layout: RowLayout) -> Any:
    """Return the cumulative bytes of keys and values after each row."""
    ends = byte_ends(rows.column("value"))
    if not layout.is_number:
        ends = ends + np.cumsum(numbers(pc.binary_length(rows.column("k"))), dtype=np.int64)
    return ends


_SMALL = 4
"""A file is small below this fraction of the target."""


@dataclass(slots=True)
class MergePlan:
    """What a merge found: which files it replaces, and how many changes there were."""

    replaced: list[FoldedFile] = field(default_factory=list)
    changes: int = 0


class FileMerge:
    """One merge of changes into sorted files."""

    def __init__(
        self,
        reader: FileReader,
        writer: FoldedWriter,
        target_bytes: int,
        expired_us: int | None = None,
    ) -> None:
        """Take where to read and to write; entries older than a time are dropped."""
        self._reader = reader
        self._writer = writer
        self._small_bytes = target_bytes // _SMALL
        self._expired_us = expired_us
        self._held: FoldedFile | None = None
        """A small file that stays, unless its next neighbour is written."""
        self.plan = MergePlan()

    def run(
        self, files: Sequence[FoldedFile], changes: Iterable[pa.Table], expired: set[str]
    ) -> MergePlan:
        """Merge sorted changes into the files; those named in ``expired`` are rewritten, too."""
        cursor = RowCursor(self._counted(changes))
        for file in files:
            first = cursor.first()
            if first is not None and first < file.first:
                self._write(present(rows) for rows in cursor.until(file.first))
                first = cursor.first()
            is_touched = first is not None and first <= file.last
            if is_touched or file.path in expired:
                self._begin()
                self._replace(file, cursor.until(file.last, through=True))
            else:
                self._keep(file)
        self._write(present(rows) for rows in cursor.until(None))
        self._writer.finish_file()
        return self.plan

    def _counted(self, changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for rows in changes:
            self.plan.changes += rows.num_rows
            yield rows

    def _keep(self, file: FoldedFile) -> None:
        """Leave a file as it is, or merge it with a small neighbour before it."""
        is_small = file.size < self._small_bytes
        open_bytes = self._writer.open_bytes
        if open_bytes and (is_small or open_bytes < self._small_bytes):
            self._replace(file, ())
        elif self._held is not None and is_small:
            self._begin()
            self._replace(file, ())
        else:
            self._writer.finish_file()
            self._held = file if is_small else None

    def _begin(self) -> None:
        """Write the small file before what is written next, so that both become one."""
        held, self._held = self._held, None
        if held is not None:
            self._replace(held, ())

    def _replace(self, file: FoldedFile, changes: Iterable[pa.Table]) -> None:
        self.plan.replaced.append(file)
        self._write(with_changes(self._reader.rows(file), changes))

    def _write(self, parts: Iterable[pa.Table]) -> None:
        for rows in parts:
            kept = self._unexpired(rows)
            if kept.num_rows:
                self._begin()
                self._writer.write(kept)

    def _unexpired(self, rows: pa.Table) -> pa.Table:
        if self._expired_us is None:
            return rows
        limit = pa.scalar(self._expired_us, pa.int64()).cast(pa.timestamp("us", "UTC"))
        return rows.filter(pc.greater(rows.column("timestamp"), limit))
