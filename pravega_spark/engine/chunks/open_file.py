"""Opens the file of a chunk and checks what it says against what the log records.

Pages carry a CRC, which is verified, so a damaged byte is never returned as data. The log records
a digest of the footer. A footer that was checked against it describes the row groups truly; with
any other, as of chunks that earlier versions wrote, only rows that were read and checked count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.chunks.arrow_arrays import lengths_of, numbers
from pravega_spark.engine.chunks.chunk import FILE_SCHEMA, ChunkRef
from pravega_spark.engine.chunks.footer import decode_sums, has_digest, is_signed, key_of, length_of
from pravega_spark.engine.chunks.format import EventFormat, is_narrower, is_raw, payload_names
from pravega_spark.engine.key_management import decryption_properties
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import CorruptChunk, KeyUnavailable, StoreError
from pravega_spark.values.limits import MAX_EVENT_BYTES, READ_BATCH_EVENTS

_EVENT_INDEX: Final = FILE_SCHEMA.get_field_index("event")
_SYSTEM_FIELDS: Final = tuple(FILE_SCHEMA)[:_EVENT_INDEX]
"""The first columns of every file; the events' own ones follow."""
_TIMESTAMP_INDEX: Final = FILE_SCHEMA.get_field_index("timestamp")
_NEVER_ENCRYPTED: Final = frozenset(("offset_delta", "timestamp"))
_PLAIN: Final = frozenset(("PLAIN", "RLE", "BIT_PACKED"))
"""Encodings in which an event takes as many bytes as it has."""
_PAGE_HEADERS: Final = 64 << 10
_SAFE_BYTES: Final = 64 << 20
"""Bytes that may be unpacked before the sizes of an unchecked footer are checked."""
_RESTORE: Final = "Restore the file from a copy."


class ChunkFile:
    """The open file of a chunk. Rows are counted from 0, as ``offset_delta`` counts them."""

    def __init__(
        self, source: pa.NativeFile, ref: ChunkRef, *, is_local: bool, is_fetched: bool = False
    ) -> None:
        """Read the footer; raise an error if it does not match the log."""
        if source.size() != ref.size:
            raise _Mismatch(f"has {source.size()} bytes; the log records {ref.size}.")
        self._ref = ref
        self._is_checked = ref.footer != ""
        self._source = source
        self._footer = _checked_footer(source, ref) if self._is_checked else None
        self._is_fetched = is_fetched
        self._pre_buffer = not is_local and not is_fetched
        self._file = self._opened()
        self._metadata = self._file.metadata
        self._locked_by = key_of(self._metadata.metadata)
        """The key that its events still need; other columns are read without it."""
        self.schema: pa.Schema = self._file.schema_arrow
        """The columns of the file."""
        if not _is_chunk(self.schema):
            raise _Mismatch(f"has the columns {self.schema}, not those of a chunk.")
        self.payload = payload_names(self.schema)
        """The columns of the file that hold the event itself."""
        if self._metadata.num_rows != ref.rows:
            raise _Mismatch(f"holds {self._metadata.num_rows} events; the log records {ref.rows}.")
        if self._is_checked and not self._locked_by:
            self._refuse_unknown_key()
        groups = range(self._metadata.num_row_groups)
        counts = (self._metadata.row_group(group).num_rows for group in groups)
        self._starts = list(accumulate(counts, initial=0))

    def _opened(self, decryption: Any = None) -> pq.ParquetFile:
        """Return the file. Remote storage: one request for a row group's columns."""
        metadata = None
        # Fetched bytes do not change, so the file that pyarrow opens has the checked footer.
        if self._footer is not None and not self._is_fetched:
            footer = pa.BufferReader(self._footer)
            metadata = pq.read_metadata(footer, decryption_properties=decryption)
        return pq.ParquetFile(
            self._source,
            metadata=metadata,
            pre_buffer=self._pre_buffer,
            page_checksum_verification=True,
            decryption_properties=decryption,
        )

    def _refuse_unknown_key(self) -> None:
        """Raise an error if columns are encrypted and the footer names no key."""
        end = self._footer
        if end is None:
            self._source.seek(max(0, self._ref.size - 8))
            end = self._source.read_buffer(8)
        if is_signed(self._metadata, end):
            raise _Mismatch("has encrypted columns, and its footer does not name their key.")

    def _unlock(self, names: Sequence[str]) -> None:
        """Have the key of the columns, if they are encrypted; raise KeyUnavailable."""
        if not self._locked_by or _NEVER_ENCRYPTED.issuperset(names):
            return
        try:
            self._file = self._opened(decryption_properties())
        except KeyUnavailable as error:
            raise type(error)(error.message, key=self._locked_by) from error
        except (pa.ArrowException, OSError) as error:
            if not self._is_checked or isinstance(error, MemoryError | StoreError):
                raise
            raise KeyUnavailable(  # its digest shows that the footer is whole: the key is wrong
                f"the KMS has another key by the name {self._locked_by!r} than the one that the "
                f"chunk was encrypted with ({error}). Give this process the former key.",
                key=self._locked_by,
            ) from error
        self._locked_by = ""

    def rows(
        self,
        first: int,
        last: int,
        names: Sequence[str],
        batch_rows: int = READ_BATCH_EVENTS,
        groups: frozenset[int] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (first row, columns) of the checked parts of rows [first, last), in order.

        Reads the row groups that hold them, one after the other, or only those in ``groups``.
        """
        columns = ["offset_delta", *names]
        is_encrypted = key_of(self._metadata.metadata) != ""
        self._unlock(names)
        # Also of a footer with the right digest: a process that can write the file can write the
        # log. An encrypted page is authenticated. A look at its column's metadata may wait for a
        # thread that asks the KMS, which waits for Python's lock, which this thread holds.
        unchecked = not is_encrypted and not set(self.payload).isdisjoint(names)
        if unchecked and not _is_safe_to_unpack(self._metadata):
            self._refuse_unknown_key()
            check_sizes(self._metadata, self._ref)
            unchecked = False
        for group in range(max(0, bisect_right(self._starts, first) - 1), len(self._starts) - 1):
            at = self._starts[group]
            if at >= last:
                return
            if groups is not None and group not in groups:
                if self._starts[group + 1] >= last:
                    return
                continue
            for batch in self._file.iter_batches(batch_rows, [group], columns, use_threads=False):
                if unchecked:
                    check_sizes(self._metadata, self._ref)
                    unchecked = False
                _check_deltas(numbers(batch.column("offset_delta")), at)
                if "event" in names:
                    _check_events(batch.column("event"))
                low, high = max(first, at), min(last, at + batch.num_rows)
                if low < high:
                    yield low, batch.slice(low - at, high - low)
                at += batch.num_rows
                if at >= last:
                    return
        raise _Mismatch(f"ends after {self._starts[-1]} events.")

    def expect(self, wanted: EventFormat) -> None:
        """Raise an error unless the file has events of this format, or of another schema of it."""
        if is_raw(self.schema) != wanted.is_raw:
            kinds = ("typed", "raw") if wanted.is_raw else ("raw", "typed")
            raise _Mismatch(
                f"has the columns {', '.join(self.schema.names)}, those of {kinds[0]} events; the "
                f"stream is {kinds[1]}."
            )
        for name in () if wanted.is_raw else self.payload:
            kind, index = self.schema.field(name).type, wanted.events.get_field_index(name)
            if index >= 0 and not is_narrower(kind, wanted.events.field(index).type):
                raise _Mismatch(
                    f"has the column {name} of type {kind}; the schema of the stream says "
                    f"{wanted.events.field(index).type}."
                )

    def groups_with(self, where: Any, columns: pa.Schema) -> frozenset[int]:
        """Return the row groups that may hold a row for which an expression of columns is true.

        The bounds of a footer that was not checked against the log prove nothing, and pyarrow reads
        none from the footer of an encrypted file.
        """
        every = frozenset(range(len(self._starts) - 1))
        if self._footer is None or key_of(self._metadata.metadata):
            return every
        # late: slow to import
        from pravega_spark.engine.chunks.row_group_bounds import cases_of, may_hold, places_of

        places, base = places_of(self.schema), self._ref.base_offset
        known = self._metadata.row_group
        return frozenset(
            group
            for group in every
            if may_hold(
                where,
                columns,
                cases_of(known(group), places, columns, base + self._starts[group]),
            )
        )

    def parts(self) -> Iterator[tuple[int, int, int | None]]:
        """Yield [first, last) of each row group and its latest timestamp, if that is certain."""
        for group, (first, last) in enumerate(pairwise(self._starts)):
            latest = None
            if self._is_checked:
                found = self._metadata.row_group(group).column(_TIMESTAMP_INDEX).statistics
                latest = found.max_raw if found is not None and found.has_min_max else None
            yield first, last, latest

    def sums(self) -> list[tuple[int, int]]:
        """Return rows and the event bytes before each; at least those of both ends.

        A large chunk has one entry for each row group.
        """
        sums = decode_sums(self._metadata.metadata) if self._is_checked else None
        if sums is None or len(sums) != len(self._starts) - 1:
            return [(0, 0), (self._ref.rows, self._ref.event_bytes)]
        return [*zip(self._starts, [*sums, self._ref.event_bytes], strict=True)]


@contextmanager
def open_chunk(
    store: Store, table_path: str, ref: ChunkRef, data: bytes | None = None
) -> Iterator[ChunkFile]:
    """Yield the file of a chunk, or ``data``, its fetched bytes.

    Errors of a damaged file become CorruptChunk in the block, and the disk's StoreError.
    """
    where = f"{store.url.rstrip('/')}/{table_path}/{ref.path}"
    try:
        source = store.open(f"{table_path}/{ref.path}") if data is None else pa.BufferReader(data)
        with source:
            yield ChunkFile(source, ref, is_local=store.is_local, is_fetched=data is not None)
    except KeyUnavailable as error:
        raise type(error)(
            f"{where}: {ref} cannot be read: {error.message}", url=where, key=error.key
        ) from error
    except (FileNotFoundError, StoreError):
        raise
    except _Mismatch as error:
        raise CorruptChunk(f"{where}: {ref} {error} {_RESTORE}", path=where) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
            raise StoreError(f"{where}: {ref} cannot be read: {error}.", url=where) from error
        raise CorruptChunk(
            f"{where}: {ref} is not a valid Parquet file: {error}. {_RESTORE}", path=where
        ) from error


def check_sizes(metadata: pq.FileMetaData, ref: ChunkRef) -> None:
    """Raise an error if the events would take, or have taken, too much memory.

    Each raw event that is not stored plainly may be as long as all stored bytes together.
    """
    is_typed = metadata.schema.column(_EVENT_INDEX).path != "event"
    leaves = range(_EVENT_INDEX, metadata.num_columns if is_typed else _EVENT_INDEX + 1)
    size = values = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for leaf in leaves:
            events = group.column(leaf)
            plain = is_typed or _PLAIN.issuperset(events.encodings)
            size += events.total_uncompressed_size * (1 if plain else group.num_rows)
            values += events.num_values if is_typed else 0
    expected = min(ref.event_bytes, ref.rows * MAX_EVENT_BYTES) + 16 * max(ref.rows, values)
    if size > 2 * expected + _PAGE_HEADERS * len(leaves):
        raise _Mismatch(
            f"would unpack to {size} bytes of events; the log records {ref.event_bytes}, and "
            f"an event has at most {MAX_EVENT_BYTES}."
        )


class _Mismatch(ValueError):
    """A file that is not what the log records; the text continues a sentence about the chunk."""


def _is_chunk(schema: pa.Schema) -> bool:
    """Return whether a file with these columns is a chunk: one of raw events, or of typed ones."""
    if is_raw(schema):
        return bool(schema.equals(FILE_SCHEMA))
    if len(schema) <= len(_SYSTEM_FIELDS):
        return False
    return all(schema.field(i).equals(field) for i, field in enumerate(_SYSTEM_FIELDS))


def _checked_footer(source: pa.NativeFile, ref: ChunkRef) -> pa.Buffer:
    """Return the footer if it is the one that was written; pyarrow aborts at some damaged ones."""
    length = length_of(ref.footer)
    source.seek(max(0, ref.size - length))
    footer = source.read_buffer(length)
    if not has_digest(footer, ref.footer):
        raise _Mismatch("has a footer other than the one that the log records.")
    return footer


def _check_deltas(deltas: np.ndarray[tuple[int], np.dtype[np.int32]], at: int) -> None:
    if not np.array_equal(deltas, np.arange(at, at + len(deltas), dtype=np.int32)):
        raise _Mismatch(
            f"numbers its events {deltas[0]}..{deltas[-1]} instead of {at}..{at + len(deltas) - 1}."
        )


def _is_safe_to_unpack(metadata: pq.FileMetaData) -> bool:
    """Return True for a file with little data even if each event had all stored bytes.

    pyarrow ends the process at a column's metadata if that is damaged, unless a read of the column
    has found the damage before. So the sizes of such files are checked after their first batch.
    """
    if metadata.num_row_groups != 1:
        return False
    group = metadata.row_group(0)
    most: int = group.num_rows * group.total_byte_size
    return 0 <= most <= _SAFE_BYTES


def _check_events(events: pa.Array) -> None:
    data = events.buffers()[2]
    if not events.null_count and (data is None or data.size <= MAX_EVENT_BYTES):
        return  # no event is longer than all events together
    longest = int(lengths_of(events).max(initial=0))
    if events.null_count or longest > MAX_EVENT_BYTES:
        raise _Mismatch(
            f"has an event that is null or has {longest} bytes; writers write at most "
            f"{MAX_EVENT_BYTES}."
        )
