"""Records of files and of standard input: events, or rows of a typed stream."""

from __future__ import annotations

import base64
import codecs
import contextlib
import csv
import io
import itertools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, Final, cast

import click
import pyarrow as pa
from pyarrow import types

from pravega_spark.cli.exact_json import JsonNumber, json_text, parse_json, rounded
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import InvalidInput, StoreError, StoreRefused
from pravega_spark.schemas.row_json import finite_or_text
from pravega_spark.values.checks import is_whole, shown
from pravega_spark.values.times import iso_time

if TYPE_CHECKING:
    from pravega_spark.engine.store import Store

InputRecord = tuple[str | None, bytes]
_PlacedRow = tuple[str, Mapping[str, Any]]
"""What errors call a record, and the record."""
LINES = "lines"
FORMATS = (LINES, "json", "csv", "parquet", "arrow")
_SUFFIXES = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_OTHER_CODECS = frozenset({".xz", ".zip", ".7z", ".rar", ".br", ".z"})
_READ_BYTES: Final = 8 << 20
"""What one request reads of a file in an object store."""
_MOST_CSV_CHARACTERS = 1 << 30
"""The longest field of a CSV row: events may have 1 GiB."""


@dataclass
class OldRecords:
    """Whether the next records of JSON are taken as version 0.1.0 stored them."""

    stored: bool = False


def check_format(file: str, form: str | None, key_separator: str | None) -> str:
    """Return the format of a file, ``-`` for standard input; raise UsageError before any write."""
    path = PurePath(file)
    if not _exists(file):
        raise click.UsageError(f"file {file} does not exist; check the path.")
    if path.suffix.lower() in _OTHER_CODECS:
        raise click.UsageError(
            f"{file} is compressed: decompress it into a pipe, or as {', '.join(_CODECS)}."
        )
    inner = path.with_suffix("") if path.suffix.lower() in _CODECS else path
    found = form or _SUFFIXES.get(inner.suffix.lower(), LINES)
    if key_separator is not None and found != LINES:
        raise click.UsageError(f"--key-separator is for lines, and {file} is read as {found}.")
    if file != "-" and os.path.isdir(file):
        raise click.UsageError(f"{file} is a folder: name its files.")
    return found


def read_records(
    file: str,
    form: str | None,
    key_field: str | None,
    key_separator: str | None,
    event_field: str | None,
    csv_null: str | None = None,
    old: OldRecords | None = None,
) -> Iterator[InputRecord]:
    """Yield the records of one file; a line of JSON is an event as it is, if no field is named.

    Raises InvalidInput for a record that is malformed or lacks a field; it names file and number.
    """
    found = check_format(file, form, key_separator)
    if found == LINES and (key_field or event_field):
        raise click.UsageError(f"--key and --event name fields, and {file} is read as lines.")
    if found == LINES:
        with _opened(file) as stream:
            yield from _lines(file, stream, key_separator)
        return
    if found == "json":
        with _opened(file) as stream:
            for where, line in _json_lines(file, stream):
                if old is not None and old.stored:
                    row = rounded(_json_row(where, line, used=()))
                    yield _record(where, row, key_field, event_field)
                    continue
                row = _json_row(where, line, used=(key_field, event_field))
                if event_field is None:
                    yield _key(where, row, key_field), line.encode()
                else:
                    yield _record(where, row, key_field, event_field)
        return
    for where, row in read_rows(file, found, csv_null=csv_null):
        yield _record(where, row, key_field, event_field)


def read_rows(
    file: str, form: str | None, *, default: str = LINES, csv_null: str | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of one file, each with what errors call it.

    A field of CSV that is ``csv_null`` is null. Raises InvalidInput for a row that is malformed.
    """
    found = check_format(file, form, None)
    found = default if found == LINES else found
    with _opened(file) as stream:
        for where, row in _READERS[found](file, stream):
            fields = row
            if found == "csv" and csv_null is not None:
                fields = {name: None if row[name] == csv_null else row[name] for name in row}
            yield where, fields


def place_of(file: str, number: int, line: int | None = None) -> str:
    """Return what errors call a record of a file, with its line where that has another number."""
    at = "" if line in (None, number) else f" (line {line:,})"
    return f"record {number:,} of {_title(file)}{at}"


def _title(file: str) -> str:
    return "the input" if file == "-" else file


def without_bom(line: bytes, number: int) -> bytes:
    """Return a line of an input without the mark of the byte order that the first one may have."""
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


@contextlib.contextmanager
def _opened(file: str) -> Iterator[IO[bytes]]:
    """Open a path, a URL or standard input; what is compressed is read as what it holds."""
    codec = _CODECS.get(PurePath(file).suffix.lower())
    with _source(file) as source:
        if codec is None:
            yield source
            return
        try:
            yield io.BufferedReader(pa.CompressedInputStream(source, codec))
        except StoreError:
            raise
        except OSError as error:
            raise InvalidInput(
                f"{file} cannot be read as {codec}: {error}. It is cut short, damaged, or has the "
                "wrong suffix: copy it again, or rename it."
            ) from error


def _source(file: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if file == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    if "://" not in file:
        return open(file, "rb")
    store, key = _in_store(file)
    return io.BufferedReader(cast(Any, store.open(key)), _READ_BYTES)


def _exists(file: str) -> bool:
    if "://" not in file:
        return file == "-" or os.path.exists(file)
    store, key = _in_store(file)
    return store.exists(key)


def _in_store(url: str) -> tuple[Store, str]:
    """Return the storage of a file, with the credentials of the environment, and its key there."""
    from pravega_spark.engine.store import open_store

    folder, _, name = url.rpartition("/")
    try:
        return open_store(folder), name
    except InvalidInput as error:
        raise InvalidInput(f"the file {url} cannot be opened: {error}") from error
    except StoreRefused as error:
        raise StoreRefused(f"the file {url} cannot be opened: {error}", url=url) from error


def _lines(file: str, stream: IO[bytes], separator: str | None) -> Iterator[InputRecord]:
    for number, line in enumerate(stream, 1):
        event = line.removesuffix(b"\n").removesuffix(b"\r")
        if separator is None:
            yield None, event
            continue
        key, found, rest = without_bom(event, number).partition(separator.encode())
        if not found:
            raise InvalidInput(
                f"{place_of(file, number)} has no key separator {separator!r}; put it "
                "between key and event."
            )
        yield key_of(place_of(file, number), key), rest


def _json_rows(file: str, stream: IO[bytes]) -> Iterator[_PlacedRow]:
    for where, line in _json_lines(file, stream):
        yield where, _json_row(where, line)


def _json_lines(file: str, stream: IO[bytes]) -> Iterator[tuple[str, str]]:
    """Yield the lines that are not blank, each with what errors call it.

    A line ends with a line feed, or a carriage return and a line feed.
    """
    record = 1
    for number, data in enumerate(stream, 1):
        where = place_of(file, record, number)
        try:
            line = without_bom(data, number).decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{where} is not valid JSON: {error}.") from error
        if line.strip():
            record += 1
            yield where, line


def _json_row(where: str, line: str, *, used: Container[object] | None = None) -> dict[str, Any]:
    try:
        row = parse_json(line, used=used)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(row, dict):
        raise InvalidInput(f"{where} is not a JSON object.")
    return row


def _csv_rows(file: str, stream: IO[bytes]) -> Iterator[_PlacedRow]:
    with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        try:
            csv.field_size_limit(_MOST_CSV_CHARACTERS)
            rows = csv.DictReader(text, strict=True)
            names = list(rows.fieldnames or ())
            if names and names[0].startswith("\ufeff"):
                raise InvalidInput(
                    f"{_title(file)} begins with more than one byte order mark (U+FEFF): "
                    "remove all but one."
                )
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise InvalidInput(
                    f"the header of {_title(file)} names the field {twice[0]!r} twice."
                )
            for number, row in enumerate(rows, 1):
                where = place_of(file, number, rows.line_num)
                if None in row or None in row.values():
                    raise InvalidInput(f"{where} does not have the fields of the header.")
                yield where, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidInput(f"{_title(file)} is not valid CSV in UTF-8: {error}.") from error


def _parquet_rows(file: str, stream: IO[bytes]) -> Iterator[_PlacedRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = stream if _is_plain(file) else io.BytesIO(stream.read())
    try:
        yield from _placed(file, pq.ParquetFile(source).iter_batches())
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(file, "Parquet", error) from error


def _arrow_rows(file: str, stream: IO[bytes]) -> Iterator[_PlacedRow]:
    import pyarrow as pa

    source = pa.memory_map(file) if _is_plain(file) else pa.py_buffer(stream.read())
    try:
        try:
            batches = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            opened = pa.ipc.open_file(source)
            batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
        yield from _placed(file, batches)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(file, "Arrow IPC", error) from error


def _unreadable(file: str, form: str, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"{_title(file)} cannot be read as {form}: {error}. It is cut short, damaged, or has "
        "another --format."
    )


def _is_plain(file: str) -> bool:
    """Return whether a file can be read from any place: a path that is not compressed."""
    return file != "-" and "://" not in file and PurePath(file).suffix.lower() not in _CODECS


def _placed(file: str, batches: Iterable[pa.RecordBatch]) -> Iterator[_PlacedRow]:
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
    for number, row in enumerate(rows, 1):
        yield place_of(file, number), row


_READERS: dict[str, Callable[[str, IO[bytes]], Iterator[_PlacedRow]]] = {
    "json": _json_rows,
    "csv": _csv_rows,
    "parquet": _parquet_rows,
    "arrow": _arrow_rows,
}


def _record(
    where: str, row: Mapping[str, Any], key_field: str | None, event_field: str | None
) -> InputRecord:
    key = _key(where, row, key_field)
    if event_field is None:
        return key, _utf8(where, json_text(row, _plain))
    value = finite_or_text(field_of(where, row, event_field))
    if isinstance(value, bytes):
        return key, value
    return key, _utf8(where, value if isinstance(value, str) else json_text(value, _plain))


def _key(where: str, row: Mapping[str, Any], field: str | None) -> str | None:
    return None if field is None else key_of(where, field_of(where, row, field))


def field_of(where: str, row: Mapping[str, Any], field: str) -> Any:
    """Return a field that the command names; raise InvalidInput without one."""
    if field not in row:
        raise InvalidInput(f"{where} has no field {field!r}; it has {', '.join(row)}.")
    return row[field]


def _utf8(where: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{where} has a lone surrogate, which is not valid text.") from error


def key_of(where: str, value: object) -> str | None:
    """Return a routing key; raise InvalidInput for a value without a text form."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"the routing key of {where} is not valid UTF-8.") from error
    if isinstance(value, (bool, dict, list)):
        raise InvalidInput(
            f"the routing key of {where} is {shown(value)}: name a field of texts or numbers with "
            "--key."
        )
    if value is None:
        return None
    text = str(finite_or_text(value))
    _utf8(where, text)
    return text


def _plain(value: object) -> object:
    """Return a value that JSON lacks as one that it has."""
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise InvalidInput(f"a value of type {type(value).__name__} has no form in JSON.")


TypedRecord = tuple[str | None, dict[str, Any]]
_MOST_DIGITS: Final = 40
_FLOATS_OF_JSON: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_PAST_MICROSECONDS: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_FLAGS: Final = {"true": True, "false": False}


def read_typed(
    file: str,
    form: str | None,
    key_field: str | None,
    event_field: str | None,
    schema: StreamSchema,
    csv_null: str | None = None,
) -> Iterator[TypedRecord]:
    """Yield the rows of one file, JSON lines unless it is said otherwise, with their routing keys.

    Raises InvalidInput for a row that is malformed or has a value that its column cannot hold; it
    names file, number, column and value. The writer checks the rest.
    """
    if form == LINES:
        raise click.UsageError(
            f"a typed stream takes json, csv, parquet or arrow, not lines: {file}."
        )
    if event_field is not None:
        raise click.UsageError("--event is for raw streams: a typed stream takes whole rows.")
    kinds = {field.name: field.type for field in schema.fields}
    is_csv = check_format(file, form, None) == "csv"
    for where, row in read_rows(file, form, default="json", csv_null=csv_null):
        key = None if key_field is None else key_of(where, field_of(where, row, key_field))
        empty = {n for n in row if is_csv and row[n] == "" and not _is_text(kinds.get(n))}
        yield (
            key,
            {
                n: None if n in empty else _value(where, n, kinds.get(n), row[n], is_csv)
                for n in row
            },
        )


def row_bytes(row: Mapping[str, Any]) -> bytes:
    """Return a row as bytes that equal rows share, for a digest."""
    return json.dumps(row, default=repr, ensure_ascii=True).encode()


def _value(where: str, name: str, kind: pa.DataType | None, value: Any, is_csv: bool) -> Any:
    """Return a value as its column takes it; an unknown column is left to the writer's check."""
    if kind is None or value is None:
        return value
    try:
        return _converted(kind, value, is_csv)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        raise InvalidInput(
            f"{where}: column {name} is {kind}, which cannot hold {shown(value)}; correct it."
        ) from None


def _is_text(kind: pa.DataType | None) -> bool:
    return kind is None or types.is_string(kind)


def _converted(kind: pa.DataType, value: Any, is_csv: bool, is_key: bool = False) -> Any:
    """Return a value as a type holds it; CSV and keys of JSON's objects have texts alone."""
    if types.is_list(kind):
        inner = kind.value_type
        return [None if v is None else _converted(inner, v, is_csv) for v in _nested(value, list)]
    if types.is_map(kind):
        entries = _nested(value, dict)
        pairs = entries.items() if isinstance(entries, dict) else entries
        return {
            _converted(kind.key_type, key, is_csv, True): (
                None if v is None else _converted(kind.item_type, v, is_csv)
            )
            for key, v in pairs
        }
    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return {
            key: v if v is None or key not in fields else _converted(fields[key], v, is_csv)
            for key, v in _nested(value, dict).items()
        }
    if isinstance(value, JsonNumber):
        return _of_number(kind, value.decimal())
    if isinstance(value, str) and not types.is_string(kind):
        found = _OF_TEXT[kind.id](value)
        is_number = isinstance(found, (int, float)) and not (is_key and math.isfinite(found))
        if is_number and not is_csv and value not in _FLOATS_OF_JSON:
            raise ValueError(value)  # JSON has numbers and booleans, all but NaN and infinities
        return found
    if types.is_floating(kind) and is_whole(value):
        return _float(Decimal(value))
    return value


def _of_number(kind: pa.DataType, number: Decimal) -> Any:
    """Return the exact value of an integer or a decimal, and the nearest one of a float."""
    if types.is_decimal(kind):
        return number
    if types.is_floating(kind):
        return _float(number)
    if not types.is_integer(kind) or number.adjusted() > _MOST_DIGITS or number % 1:
        raise ValueError(str(number))
    return int(number)


def _float(number: Decimal) -> float:
    """Return the nearest float; the writer checks the range of one of four bytes."""
    found = float(number)
    if math.isinf(found):
        raise OverflowError(str(number))
    return found


def _nested(value: Any, wanted: type) -> Any:
    """Return a nested value, which CSV has as JSON."""
    found = parse_json(value) if type(value) is str else value
    if not isinstance(found, (wanted, list)):
        raise TypeError(type(found).__name__)
    return found


def _time(text: str) -> datetime:
    if _PAST_MICROSECONDS.search(text):
        raise ValueError(text)
    return iso_time(text)


def _digits(text: str) -> str:
    """Return the text of a number; Python also takes 1_000 and digits of any script."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _float_of_text(text: str) -> float:
    found = float(_digits(text))
    is_named = not math.isfinite(found) and "n" in text.lower()
    return found if is_named else _float(Decimal(text.strip()))


_OF_TEXT: Final[dict[int, Callable[[str], Any]]] = {
    pa.bool_().id: lambda text: _FLAGS[text.strip().lower()],
    **{
        kind.id: lambda text: int(_digits(text))
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{kind.id: _float_of_text for kind in (pa.float32(), pa.float64())},
    pa.decimal128(1).id: lambda text: Decimal(_digits(text)),
    pa.date32().id: date.fromisoformat,
    pa.timestamp("us").id: _time,
    pa.binary().id: lambda text: base64.b64decode(text, validate=True),
}
