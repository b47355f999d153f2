"""Encodes and decodes the Parquet file of a few events without Arrow's writer and reader.

A Parquet writer takes a quarter of a millisecond to be set up, which is most of what a lone append
computes. So the file of a few events is put together here: one row group, and for each column one
uncompressed page of plain values. The metadata is Thrift's compact protocol, written field by field
as https://parquet.apache.org/docs/file-format defines it. Compression would save nothing: a file
takes at least a block of the disk, and an object store charges by calls.

Decodes the file of a few events without Arrow's reader. A Parquet reader is set up for each file,
and touches so much code that it takes a millisecond in a process that slept: most of the processor
time of a reader at the tail. The layout of a file that is written here is known, so its values
are cut out, and encoding them again shows that the whole file is what they make. Any other file,
damaged or not, is left to Arrow's reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import FILE_SCHEMA, ChunkRef
from pravega_spark.engine.chunks.footer import digest_of_parts, has_digest, length_of
from pravega_spark.values.package import __version__

TINY_ROWS: Final = 16
"""For more events Arrow's writer takes less time for each than this module."""
PAGE_ROWS: Final = 4
"""Long events in one page: a reader has a page in memory."""
Part = bytes | memoryview
PAGES_KEY: Final = b"pravega.pages"
"""The digests of the pages of long events, in the footer: a reader checks them and not CRCs."""
TINY_BYTES: Final = 2_048
"""The most bytes of keys and events: then the file fits into a block of 4 KiB."""


class LoneEvent(NamedTuple):
    """The only event of a batch, short enough for a tiny chunk: it needs no Arrow table."""

    key: str | None
    time_us: int
    event: bytes

    @classmethod
    def of(cls, key: str | None, time_us: int, event: bytes) -> LoneEvent | None:
        """Return the event; None if its chunk would not be tiny."""
        most = TINY_BYTES - len(event)
        if most < 0 or (key is not None and len(key) > most):
            return None
        if key is not None and not key.isascii() and len(key.encode()) > most:
            return None
        return cls(key, time_us, event)

    @property
    def nbytes(self) -> int:
        """The bytes of the key and the event."""
        return len(self.event) + (0 if self.key is None else len(self.key.encode()))


_AUTHOR: Final = b"pravega_spark version "
_THIS_AUTHOR: Final = _AUTHOR + __version__.encode()
_INT32, _INT64, _BYTE_ARRAY = 1, 2, 6
_PLAIN, _RLE = 0, 3
_LENGTH: Final = Struct("<I")
_MAGIC: Final = b"PAR1"


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


@lru_cache(maxsize=4_096)
def _number(value: int) -> bytes:
    """Return a signed number, zigzag-encoded."""
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _text(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _schema() -> bytes:
    """Return the file's version and its schema: the first two fields of the footer."""
    utf8 = b"\x25\x00\x4c\x1c\x00\x00"  # converted type UTF8, logical type STRING
    micros = b"\x25\x14\x4c\x8c\x11\x1c\x2c\x00\x00\x00\x00"  # microseconds, adjusted to UTC
    columns = (
        b"".join(
            (
                b"\x15",
                _number(kind),
                b"\x25",
                _number(optional),
                b"\x18",
                _text(name),
                logical,
                b"\0",
            )
        )
        for name, kind, optional, logical in (
            (b"offset_delta", _INT32, 0, b""),
            (b"routing_key", _BYTE_ARRAY, 1, utf8),
            (b"timestamp", _INT64, 1, micros),
            (b"event", _BYTE_ARRAY, 1, b""),
        )
    )
    root = b"\x48%b\x15%b\x00" % (_text(b"schema"), _number(4))
    return b"\x15%b\x19\x5c%b%b" % (_number(2), root, b"".join(columns))


_HEAD: Final = _schema() + b"\x16"
_ORDERS: Final = b"\x19\x4c%b\x00" % (b"\x1c\x00\x00" * 4)
"""That each column is ordered as its type defines: the end of the footer, behind the author."""
_NO_METADATA: Final = b"\x28"
_DELTAS: Final = [Struct(f"<{n}i").pack(*range(n)) for n in range(TINY_ROWS + 1)]
_TIMES: Final = [Struct(f"<{n}q") for n in range(TINY_ROWS + 1)]
_DELTA_BOUNDS: Final = [
    (Struct("<i").pack(max(0, n - 1)), Struct("<i").pack(0)) for n in range(TINY_ROWS + 1)
]


@lru_cache(maxsize=TINY_ROWS)
def all_present(rows: int) -> bytes:
    """Return the definition levels of an optional column without nulls: one run."""
    return _levels(_number(rows) + b"\x01")


def _levels(encoded: bytes) -> bytes:
    return _LENGTH.pack(len(encoded)) + encoded


def _present(values: Sequence[bytes | None]) -> bytes:
    """Return the definition levels of a column: a bit for each row, in groups of eight."""
    if None not in values:
        return all_present(len(values))
    bits = sum(1 << row for row, value in enumerate(values) if value is not None)
    groups = -(-len(values) // 8)
    return _levels(_varint(groups << 1 | 1) + bits.to_bytes(groups, "little"))


def _joined(values: Sequence[bytes]) -> bytes:
    """Return plain byte arrays, each after its length."""
    if len(values) == 1:
        return _LENGTH.pack(len(values[0])) + values[0]
    return b"".join([part for value in values for part in (_LENGTH.pack(len(value)), value)])


def _page(rows: int, data: bytes) -> bytes:
    """Return a data page with its header, which holds a checksum."""
    return _page_header(rows, len(data), crc32(data)) + data


def _page_header(rows: int, length: int, check: int) -> bytes:
    """Return the header of a page of ``rows`` rows and ``length`` bytes, with their CRC."""
    size = _number(length)
    return b"\x15\x00\x15%b\x15%b\x15%b\x1c\x15%b\x15\x00\x15\x06\x15\x06\x00\x00" % (
        size, size, _number(check - (1 << 32) if check >> 31 else check), _number(rows)
    )  # fmt: skip


def _blocks_page(events: Sequence[memoryview]) -> Iterator[Part]:
    """Yield the parts of a page: its header, and each event after its length."""
    parts: list[Part] = [all_present(len(events))]
    for event in events:
        parts += (_LENGTH.pack(len(event)), event)
    check = 0
    for part in parts:
        check = crc32(part, check)
    yield _page_header(len(events), sum(map(len, parts)), check)
    yield from parts


@lru_cache(maxsize=64)
def _column_head(name: bytes, kind: int, rows: int) -> bytes:
    """Return the metadata of a column up to its sizes; the codec is UNCOMPRESSED."""
    encodings = b"\x19\x25" + _number(_RLE) + _number(_PLAIN)
    return b"\x26\x00\x1c\x15%b%b\x19\x18%b\x15\x00\x16%b\x16" % (
        _number(kind), encodings, _text(name), _number(rows)
    )  # fmt: skip


def _bounds(nulls: int, high: bytes, low: bytes) -> bytes:
    """Return a column's statistics: the nulls, the largest and the smallest value."""
    return b"\x3c\x36%b\x28%b\x18%b\x00" % (_number(nulls), _text(high), _text(low))


def author_of(data: bytes) -> bytes:
    """Return which version of the package made a file, from its footer or all of it.

    Raises ValueError for a file that no version made.
    """
    end = len(data) - len(_MAGIC) - _LENGTH.size - len(_ORDERS)
    return data[data.rindex(_AUTHOR, 0, end) : end]


def encode_tiny(
    keys: Sequence[bytes | None],
    times_us: Sequence[int],
    events: Sequence[bytes],
    author: bytes = _THIS_AUTHOR,
) -> bytes:
    """Return the file of the events, at least one and at most ``TINY_ROWS``, in their order.

    ``times_us`` are in microseconds since 1970, keys in UTF-8. The events are not checked here.
    """
    page = _page(len(events), all_present(len(events)) + _joined(events))
    head, footer = _frame(keys, times_us, len(page), author=author)
    return b"".join((head, page, footer))


def encode_blocks(times_us: Sequence[int], events: Sequence[memoryview]) -> list[Part]:
    """Return the file of long events without keys, at most ``TINY_ROWS``, in parts.

    The parts that hold events are the callers' buffers, of which nothing is copied.
    """
    firsts = range(0, len(events), PAGE_ROWS)
    pages = [list(_blocks_page(events[first : first + PAGE_ROWS])) for first in firsts]
    head, footer = block_frame(times_us, [digest_of_parts(page) for page in pages])
    return [head, *chain.from_iterable(pages), footer]


def block_frame(
    times_us: Sequence[int], pages: Sequence[str], author: bytes = _THIS_AUTHOR
) -> tuple[bytes, bytes]:
    """Return what stands before the pages of :func:`encode_blocks`, and what stands behind them.

    The pages are given by their digests, which the footer records.
    """
    text = ",".join(pages).encode()
    metadata = b"\x19\x1c\x18%b\x18%b\x00\x18" % (_text(PAGES_KEY), _text(text))
    return _frame([None] * len(times_us), times_us, sum(map(length_of, pages)), metadata, author)


def _frame(
    keys: Sequence[bytes | None],
    times_us: Sequence[int],
    events_bytes: int,
    metadata: bytes = _NO_METADATA,
    author: bytes = _THIS_AUTHOR,
) -> tuple[bytes, bytes]:
    """Return the bytes before the pages of events, and the footer."""
    rows = len(keys)
    named = [key for key in keys if key is not None]
    present = all_present(rows)
    time = _TIMES[1].pack
    key_bounds = b"\x3c\x36%b\x00" % _number(rows)
    if named:
        key_bounds = _bounds(rows - len(named), max(named), min(named))
    columns = (
        (b"offset_delta", _INT32, _DELTAS[rows], _bounds(0, *_DELTA_BOUNDS[rows])),
        (b"routing_key", _BYTE_ARRAY, _present(keys) + _joined(named), key_bounds),
        (
            b"timestamp",
            _INT64,
            present + _TIMES[rows].pack(*times_us),
            _bounds(0, time(max(times_us)), time(min(times_us))),
        ),
        (b"event", _BYTE_ARRAY, b"", b""),
    )
    pages = [_page(rows, data) for _, _, data, _ in columns[:-1]]
    sizes = [*map(len, pages), events_bytes]
    *starts, end = accumulate(sizes, initial=len(_MAGIC))
    chunks = [
        b"%b%b\x16%b\x26%b%b\x00\x00"
        % (_column_head(name, kind, rows), size, size, _number(start), bounds)
        for (name, kind, _, bounds), start, size in zip(
            columns, starts, map(_number, sizes), strict=True
        )
    ]
    count, size = _number(rows), _number(end - len(_MAGIC))
    footer = b"%b%b\x19\x1c\x19\x4c%b\x16%b\x16%b\x26%b\x16%b\x14\x00\x00%b%b%b" % (
        _HEAD, count, b"".join(chunks), size, count, _number(len(_MAGIC)), size, metadata,
        _text(author), _ORDERS,
    )  # fmt: skip
    return b"".join((_MAGIC, *pages)), footer + _LENGTH.pack(len(footer)) + _MAGIC


_MOST_BYTES: Final = 4_096
MAGIC_BYTES: Final = 4
_TIME_BYTES: Final = 8
_TYPES: Final = {field.name: field.type for field in FILE_SCHEMA}
_PAGE_END: Final = b"\x15\x00\x15\x06\x15\x06\x00\x00"
"""The last bytes of a page's header: its encodings."""


def tiny_columns(ref: ChunkRef, data: bytes) -> dict[str, pa.Array] | None:
    """Return the columns of a chunk's file; None if Arrow's reader must read it.

    A file that is returned is complete, undamaged, and the one that the log records.
    """
    rows = ref.rows
    if not (0 < rows <= TINY_ROWS and len(data) == ref.size <= _MOST_BYTES and ref.footer):
        return None
    if not has_digest(memoryview(data)[-length_of(ref.footer) :], ref.footer):
        return None
    try:
        deltas, keys_page, times_page, events_page = _pages(data)
        times = times_page[-_TIME_BYTES * rows :]
        events = list(_values(events_page, rows))
        keys = _keys(keys_page, rows)
        again = encode_tiny(keys, Struct(f"<{rows}q").unpack(times), events, author_of(data))
        b"".join(filter(None, keys)).decode()
    except (StructError, ValueError, IndexError):
        return None
    if again != data or sum(map(len, events)) != ref.event_bytes:
        return None
    return {
        "offset_delta": _fixed("offset_delta", rows, deltas),
        "routing_key": _texts("routing_key", keys),
        "timestamp": _fixed("timestamp", rows, times),
        "event": _texts("event", events),
    }


def _pages(data: bytes) -> Iterator[bytes]:
    """Yield the content of the page of each column."""
    at = MAGIC_BYTES
    for _ in FILE_SCHEMA:
        begin, size = page_at(data, at)
        at = begin + size
        yield data[begin:at]


def page_at(data: bytes, at: int) -> tuple[int, int]:
    """Return where the content begins of the page whose header is at a place, and its size."""
    size, shift, byte = 0, 0, at + 3
    while data[byte] & 0x80:
        size |= (data[byte] & 0x7F) << shift
        shift, byte = shift + 7, byte + 1
    size = (size | data[byte] << shift) >> 1  # zigzag: a length is not negative
    return data.index(_PAGE_END, byte) + len(_PAGE_END), size


def _values(page: bytes, count: int) -> Iterator[bytes]:
    """Yield the byte arrays of a page, which follow the definition levels."""
    at = _LENGTH.size + _LENGTH.unpack_from(page)[0]
    for _ in range(count):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(page, at)[0]
        yield page[begin:at]


def _keys(page: bytes, rows: int) -> list[bytes | None]:
    """Return the keys of a page; its levels are one run, or a bit for each row."""
    levels = page[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(page)[0]]
    if not levels[0] & 1:
        return [*_values(page, rows)]
    bits = int.from_bytes(levels[1:], "little")
    present = [bool(bits >> row & 1) for row in range(rows)]
    values = _values(page, sum(present))
    return [next(values) if is_present else None for is_present in present]


def _fixed(name: str, rows: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(_TYPES[name], rows, [None, pa.py_buffer(data)])


def _texts(name: str, values: list[bytes | None] | list[bytes]) -> pa.Array:
    rows, bits = len(values), None
    if None in values:
        present = sum(1 << row for row, value in enumerate(values) if value is not None)
        bits = pa.py_buffer(present.to_bytes(-(-rows // 8), "little"))
    ends = accumulate([0 if value is None else len(value) for value in values], initial=0)
    offsets = pa.py_buffer(Struct(f"<{rows + 1}i").pack(*ends))
    content = pa.py_buffer(b"".join(filter(None, values)))
    return pa.Array.from_buffers(_TYPES[name], rows, [bits, offsets, content])
