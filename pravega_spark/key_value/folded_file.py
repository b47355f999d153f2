"""One file of a folded table: what the log records of it, and reads of parts of it.

A file holds a range of keys in order, in row groups of a few thousand rows. Its footer records the
first key of each row group, so that a key is found by the footer, which is kept in memory, and one
row group. The log records a digest of the footer, and pages carry a CRC: a damaged byte is never
returned as data.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.chunks.footer import checked_digest, has_digest, length_of
from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.positioned_file import PositionedFile
from pravega_spark.errors import CorruptChunk, CorruptLog, DataLoss, StoreError
from pravega_spark.key_value.folded_rows import RowLayout, SortKey
from pravega_spark.key_value.table_key import KeyType
from pravega_spark.limits import FOLDED_READ_BYTES, FOOTER_CACHE_BYTES
from pravega_spark.process_locks import new_lock

FIRST_KEYS: Final = b"pravega.first_keys"
"""The first key of each row group, in the footer: a JSON list of texts."""
_STATS_CHARACTERS: Final = 32
"""Delta's writers keep so many characters of a text's bounds."""
_GREATEST: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
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
        return Add(self.path, {}, self.size, now_ms, to_json(self._stats(layout)), tags)

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
            add.path,
            add.size,
            int(tags["rows"]),
            layout.of_text(tags["firstKey"]),
            layout.of_text(tags["lastKey"]),
            int(tags["minTimestamp"]),
            int(tags["maxTimestamp"]),
            checked_digest(tags["footer"]),
        )
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"{where}: the log's file {add.path} is no file of a folded table: {error!r}. Restore "
            "the log from a copy.",
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
        """Take the table's path."""
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
                raise ValueError(f"it yields {rows.num_rows} rows in place of {expected}")
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
