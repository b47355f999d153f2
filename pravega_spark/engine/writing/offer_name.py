"""The name of an offered chunk: all that a commit needs to know of the chunk and of its batch.

``o<version seen>-<record>.parquet``, where the record is binary, in base64url. An offer costs no
object of its own: it is a staged chunk, and any process can commit it without reading it.

The record is a list of varints and texts with a CRC-32 at its end, which also covers the version.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.footer import checked_digest
from pravega_spark.engine.staging_folder import staged_version
from pravega_spark.engine.writing.batch_identity import SessionBatch

MAX_NAME_BYTES = 255
"""The longest file name of the usual file systems."""
MAX_PARTS = 64
"""Batches of more chunks are not offered: their owner commits them."""
_FORMAT = 1
_NAME = re.compile(r"o([0-9]{20})-([A-Za-z0-9_-]+)\.parquet")
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_ANONYMOUS = re.compile(r"_(0|[1-9][0-9]*)\.([0-9a-f]{24})")
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class OfferedPart:
    """A chunk of an offered batch: part ``part`` of ``parts`` of the offer ``token``."""

    token: str
    part: int
    parts: int
    life: int
    identity: SessionBatch
    chunk: StagedChunk

    @property
    def staging_version(self) -> int:
        """The version of the folder that holds the chunk."""
        found = staged_version(self.chunk.path)
        assert found is not None, self.chunk.path
        return found


def offer_prefix(version_seen: int) -> str:
    """Return the beginning of the names of all offers that were made at a version of the log."""
    return f"o{version_seen:020d}"


def offered_at(path: str) -> int:
    """Return the version of the log at which a chunk with the name of an offer was offered."""
    return int(path[path.rindex("/") + 2 :][:20])


def offer_name(version_seen: int, offer: OfferedPart) -> str | None:
    """Return the file name of an offered chunk; None if it does not fit into a name."""
    identity, chunk = offer.identity, offer.chunk
    if identity.note is not None or offer.parts > MAX_PARTS:
        return None
    length, _, digest = chunk.footer.partition("-")
    numbers = [
        _FORMAT,
        offer.part,
        offer.parts,
        offer.life,
        chunk.segment_id,
        chunk.rows,
        chunk.size,
        chunk.event_bytes,
        _folded(chunk.min_timestamp_us),
        _folded(chunk.max_timestamp_us - chunk.min_timestamp_us),
        chunk.null_keys,
        int(length or 0),
        identity.session,
        identity.previous,
        identity.last - identity.previous,
    ]
    record = b"".join(map(_varint, numbers))
    record += b"".join(map(_text, (digest, offer.token, *_writer_texts(identity.writer_id))))
    prefix = offer_prefix(version_seen)
    record += _crc(prefix, record)
    name = f"{prefix}-{base64.urlsafe_b64encode(record).rstrip(b'=').decode()}.parquet"
    return name if len(name) <= MAX_NAME_BYTES else None


def parse_offer(path: str) -> OfferedPart | None:
    """Return the offer that a staged file is, by its path in the table; None for other files."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if found is None or staged_version(path) is None or folder.count("/") != 1:
        return None
    try:
        return _parse(path, found[1], found[2])
    except (ValueError, StopIteration, IndexError):
        return None


def _parse(path: str, version: str, text: str) -> OfferedPart | None:
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    record, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if crc != _crc(f"o{version}", record):
        return None
    reader = _Reader(record)
    format_, part, parts, life, segment_id, rows, size, event_bytes = reader.numbers(8)
    low, span, null_keys, length, session, previous, count = reader.numbers(7)
    digest, token, kind, writer = (reader.text() for _ in range(4))
    if format_ != _FORMAT or not reader.is_at_end or not part < parts <= MAX_PARTS:
        return None
    if not (rows and size and count and token and writer):
        return None
    first = _unfolded(low)
    chunk = StagedChunk(
        path,
        segment_id,
        rows,
        size,
        event_bytes,
        first,
        first + _unfolded(span),
        null_keys,
        checked_digest(f"{length}-{digest}" if length else ""),
    )
    writer_id = f"_{kind}.{writer}" if kind else writer
    identity = SessionBatch(writer_id, session, previous, previous + count)
    return OfferedPart(token, part, parts, life, identity, chunk)


def _writer_texts(writer_id: str) -> tuple[str, str]:
    """Return the version of an anonymous id and its token, or an empty text and the id."""
    found = _ANONYMOUS.fullmatch(writer_id)
    return ("", writer_id) if found is None else (found[1], found[2])


def _crc(prefix: str, record: bytes) -> bytes:
    return zlib.crc32(prefix.encode() + record).to_bytes(_CRC_BYTES, "big")


def _folded(number: int) -> int:
    """Return a signed number as an unsigned one: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    return number * 2 if number >= 0 else -number * 2 - 1


def _unfolded(number: int) -> int:
    return -(number + 1) // 2 if number % 2 else number // 2


def _varint(number: int) -> bytes:
    """Return a number in groups of 7 bits, the lowest first."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _text(text: str) -> bytes:
    """Return a text with its length; hexadecimal digits as bytes, which the lowest bit tells."""
    if _HEX.fullmatch(text):
        data = bytes.fromhex(text)
        return _varint(len(data) * 2 + 1) + data
    data = text.encode()
    return _varint(len(data) * 2) + data


class _Reader:
    """Reads the numbers and texts of a record; raises StopIteration or ValueError at its end."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the record holds no more."""
        return self._at == len(self._record)

    def numbers(self, count: int) -> Iterator[int]:
        """Yield the next numbers."""
        for _ in range(count):
            yield self._number()

    def _number(self) -> int:
        number = shift = 0
        while True:
            byte = self._record[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                return number
            shift += 7

    def text(self) -> str:
        """Return the next text."""
        size, is_hex = divmod(self._number(), 2)
        data = self._record[self._at : self._at + size]
        if len(data) != size:
            raise ValueError("a text ends after the record")
        self._at += size
        return data.hex() if is_hex else data.decode()
