"""Typed streams on the command line: created by a file, filled from files, printed as JSON."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark import StreamConfiguration, StreamManager, StreamSchema
from tests.unit.cli.conftest import Shell

S = "s/flights"
SCHEMA = StreamSchema.of(
    pa.schema(
        [
            pa.field("carrier", pa.string(), False, {"comment": "two letters"}),
            ("delay", pa.int32()),
            ("speed", pa.float64()),
            ("price", pa.decimal128(8, 2)),
            ("day", pa.date32()),
            ("left", pa.timestamp("us", "UTC")),
            ("photo", pa.binary()),
            ("ok", pa.bool_()),
            ("stops", pa.list_(pa.string())),
            ("seats", pa.map_(pa.string(), pa.int32())),
            ("crew", pa.struct([("pilot", pa.string()), ("since", pa.date32())])),
        ]
    )
)
ROW: dict[str, Any] = {
    "carrier": "UA",
    "delay": -3,
    "speed": 0.5,
    "price": "19.90",
    "day": "2026-01-01",
    "left": "2026-01-01T12:00:00+00:00",
    "photo": "AP8=",
    "ok": True,
    "stops": ["ORD", None],
    "seats": {"first": 8},
    "crew": {"pilot": "A", "since": "2020-02-02"},
}
"""A row as JSON has it, both given and printed."""


INT = pa.int32()


def created(shell: Shell) -> None:
    shell.manager.create_stream(S, StreamConfiguration(schema=SCHEMA))


def rows(shell: Shell) -> list[dict[str, Any]]:
    lines = shell.ok("stream", "read", S).splitlines()
    return [json.loads(line)["event"] for line in lines]


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("delta.json", json.loads(SCHEMA.to_json())),
        (
            "flight.json",
            {
                "type": "object",
                "required": ["carrier"],
                "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer"}},
            },
        ),
        (
            "flight.avsc",
            {
                "type": "record",
                "name": "Flight",
                "fields": [
                    {"name": "carrier", "type": "string"},
                    {"name": "delay", "type": ["null", "long"]},
                ],
            },
        ),
    ],
)
def test_a_stream_is_created_by_a_schema_file(
    shell: Shell, tmp_path: Path, name: str, document: dict[str, Any]
) -> None:
    file = tmp_path / name
    file.write_text(json.dumps(document))
    shell.ok("stream", "create", S, "--schema", str(file))
    schema = shell.manager.stream_info(S).configuration.schema
    assert schema is not None
    assert schema.names[:2] == ("carrier", "delay")
    assert [field.nullable for field in schema.fields[:2]] == [False, True]


def test_a_file_that_is_no_schema_creates_nothing(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    assert "bad.json cannot be read" in shell.failed("stream", "create", S, "--schema", str(file))
    for text in ("{", "[1]", '{"type": "struct", "fields": [{"name": "event", "type": "long"}]}'):
        file.write_text(text)
        shell.failed("stream", "create", S, "--schema", str(file))
    assert shell.manager.list_streams("s") == []


def test_the_description_shows_the_columns(shell: Shell) -> None:
    created(shell)
    text = shell.ok("stream", "describe", S)
    assert "two letters" in text
    assert "map<string,int>" in text
    record = json.loads(shell.ok("stream", "describe", S, "--output", "json"))[0]
    assert record["columns"][0] == {
        "column": "carrier", "type": "string", "required": True, "comment": "two letters"
    }  # fmt: skip


def test_a_schema_grows_by_a_file(shell: Shell, tmp_path: Path) -> None:
    created(shell)
    file = tmp_path / "more.json"
    grown = StreamSchema.of(SCHEMA.arrow.append(pa.field("tail", pa.string())))
    file.write_text(grown.to_json())
    shell.ok("stream", "update", S, "--schema", str(file))
    assert shell.manager.stream_info(S).configuration.schema == grown
    file.write_text(SCHEMA.to_json())
    assert "tail" in shell.failed("stream", "update", S, "--schema", str(file))


def test_json_lines_are_appended_and_printed(shell: Shell) -> None:
    created(shell)
    line = json.dumps(ROW).encode() + b"\n"
    shell.ok("stream", "append", S, "--key", "carrier", stdin=line * 2)
    assert rows(shell) == [ROW, ROW]
    raw = shell.ok("stream", "read", S, "--format", "raw").splitlines()
    assert [json.loads(text) for text in raw] == [ROW, ROW]
    assert shell.ok("stream", "read", S, "--format", r"%k %S\n", "-n", "1") == "UA 62\n"
    printed = shell.ok("stream", "read", S, "--parse", "-n", "1")
    assert json.loads(printed)["event"] == ROW


def test_csv_parquet_and_arrow_are_appended(shell: Shell, tmp_path: Path) -> None:
    created(shell)
    csv = tmp_path / "a.csv"
    csv.write_text(
        "carrier,delay,speed,price,day,left,ok,stops\n"
        'UA,-3,0.5,19.90,2026-01-01,2026-01-01T12:00:00Z,true,"[""ORD"", null]"\n'
        "AA,,,,,,,\n"
    )
    shell.ok("stream", "append", S, str(csv))
    names = ("carrier", "delay", "speed", "price", "day", "left", "ok", "stops")
    null = dict.fromkeys(ROW)
    first = {**null, **{name: ROW[name] for name in names}}
    assert rows(shell) == [first, {**null, "carrier": "AA"}]
    table = shell.manager.read_table(S, columns=["carrier", "delay", "left", "crew"])
    pq.write_table(table, tmp_path / "b.parquet")
    with pa.ipc.new_file(str(tmp_path / "c.arrow"), table.schema) as file:
        file.write_table(table)
    for name in ("b.parquet", "c.arrow"):
        shell.ok("stream", "append", S, str(tmp_path / name), "--writer-id", name)
        shell.ok("stream", "append", S, str(tmp_path / name), "--writer-id", name)
    delays = [(row["carrier"], row["delay"], row["left"]) for row in rows(shell)]
    assert delays == [("UA", -3, ROW["left"]), ("AA", None, None)] * 3


def test_numbers_that_json_lacks_are_the_texts_that_rows_as_json_have(shell: Shell) -> None:
    created(shell)
    texts = ["NaN", "Infinity", "-Infinity"]
    for text in texts:
        row = json.dumps({"carrier": "UA", "speed": text}).encode()
        shell.ok("stream", "append", S, stdin=row)
    assert [row["speed"] for row in rows(shell)] == texts
    read = shell.ok("stream", "read", S, "--parse").splitlines()
    assert [json.loads(line)["event"]["speed"] for line in read] == texts


def test_the_place_of_a_record_is_that_in_its_own_file(shell: Shell, tmp_path: Path) -> None:
    created(shell)
    (tmp_path / "a.json").write_text('{"carrier": "UA"}\n{"carrier": "UA"}\n')
    (tmp_path / "b.csv").write_text("carrier,delay\nUA,1\nUA,x\n")
    (tmp_path / "c.json").write_text('\n{"carrier": null}\n')
    given = [str(tmp_path / name) for name in ("a.json", "b.csv", "c.json")]
    error = shell.failed("stream", "append", S, *given)
    assert "record 2 of " in error
    assert "b.csv (line 3): column delay is int32" in error
    error = shell.failed("stream", "append", S, given[0], given[2])
    assert f"record 1 of {given[2]}: an event for stream" in error


def test_a_row_that_does_not_fit_is_named(shell: Shell) -> None:
    created(shell)
    good = b'{"carrier": "UA"}\n'
    error = shell.failed("stream", "append", S, stdin=good + b'{"carrier": "UA", "delay": "x"}\n')
    assert "record 2 of the input: column delay is int32" in error
    assert "'x'" in error
    assert "1 event of this run is durable" in error
    error = shell.failed("stream", "append", S, stdin=b'{"carrier": "UA", "fare": 1}\n')
    assert "no column 'fare'" in error
    error = shell.failed("stream", "append", S, stdin=good * 2 + b'{"delay": 1, "carrier": null}\n')
    assert "record 3 of the input: an event for stream" in error
    assert "row 0" not in error
    assert "Correct the row" in error
    assert "2 events of this run are durable" in error
    assert "Nothing was written" not in error
    assert "--event is for raw" in shell.failed("stream", "append", S, "--event", "a", stdin=good)
    error = shell.failed("stream", "append", S, "--format", "lines", stdin=good)
    assert "json, csv, parquet or arrow" in error


def test_the_tail_prints_rows(shell: Shell, manager: StreamManager) -> None:
    created(shell)
    shell.ok("stream", "append", S, stdin=json.dumps(ROW).encode())
    printed = shell.ok("stream", "tail", S, "-n", "1")
    assert json.loads(printed)["event"] == ROW


def test_numbers_of_json_are_exact_or_refused_in_typed_rows(shell: Shell) -> None:
    created(shell)
    row = b'{"carrier": "UA", "delay": 1e1, "price": 123456.78, "photo": ""}\n'
    shell.ok("stream", "append", S, stdin=row)
    (found,) = rows(shell)
    assert (found["delay"], found["price"], found["photo"]) == (10, "123456.78", "")
    for bad in (b'"delay": 1.5', b'"speed": 1e400', b'"delay": 1, "delay": 2', b'"delay": ""'):
        shell.failed("stream", "append", S, stdin=b'{"carrier": "UA", %b}\n' % bad)
    time = b'"left": "2026-01-01T12:00:00.123456789Z"'
    shell.failed("stream", "append", S, stdin=b'{"carrier": "UA", %b}\n' % time)
    csv = b"carrier,delay\nNULL,1\nUA,\n"
    shell.failed("stream", "append", S, "--format", "csv", "--csv-null", "NULL", stdin=csv)
    shell.ok("stream", "append", S, "--format", "csv", stdin=b"carrier,delay\nUA,\n")
    assert rows(shell)[-1]["delay"] is None


def test_a_text_of_json_is_no_number_and_one_of_csv_is(shell: Shell) -> None:
    kinds = {"i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "m": pa.map_(pa.int32(), INT)}
    schema = StreamSchema.of(pa.schema([*kinds.items(), ("l", pa.list_(INT))]))
    shell.manager.create_stream("s/n", StreamConfiguration(schema=schema))
    append = ("stream", "append", "s/n", "--format")
    bad = ('{"i": "1"}', '{"f": "1.5"}', '{"b": "true"}', '{"l": ["1"]}', '{"m": {"1": "2"}}')
    others = ("nan", "inf", " NaN", "NaN ", "+Infinity", "iNf", "-inf", "Infinity\\n")
    for row in (*bad, *(f'{{"f": "{text}"}}' for text in others)):
        assert "which cannot hold" in shell.failed(*append, "json", stdin=row.encode())
    shell.ok(*append, "json", stdin=b'{"i": 1, "f": "NaN", "b": true, "m": {"1": 2}, "l": [1]}\n')
    shell.ok(*append, "csv", stdin=b"i,f,b\n 1,1.5,true\n2,inf,false\n")
    for number in ("1_0", "٣"):
        error = shell.failed(*append, "csv", stdin=f"i,f\n{number},1\n".encode())
        assert "which cannot hold" in error
    assert len(list(shell.manager.read("s/n"))) == 3


def test_a_float_as_the_key_of_a_map_is_a_number_or_one_of_the_three_texts(shell: Shell) -> None:
    schema = StreamSchema.of(pa.schema([("m", pa.map_(pa.float64(), INT))]))
    shell.manager.create_stream("s/n", StreamConfiguration(schema=schema))
    shell.ok("stream", "append", "s/n", stdin=b'{"m": {"1.5": 1, "-Infinity": 2}}')
    assert "which cannot hold" in shell.failed(
        "stream", "append", "s/n", stdin=b'{"m": {"inf": 1}}'
    )
    (found,) = shell.manager.read("s/n")
    assert dict(found.data["m"]) == {1.5: 1, float("-inf"): 2}


def test_a_text_of_csv_is_null_in_raw_and_typed_streams(shell: Shell) -> None:
    shell.manager.create_stream(
        "s/n",
        StreamConfiguration(
            schema=StreamSchema.of(pa.schema([("a", pa.string()), ("b", pa.int32())]))
        ),
    )
    shell.manager.create_stream("s/raw")
    csv = b"a,b\nNULL,1\n,NULL\nx,\n"
    options = ("--format", "csv", "--csv-null", "NULL")
    shell.ok("stream", "append", "s/n", *options, stdin=csv)
    shell.ok("stream", "append", "s/raw", *options, stdin=csv)
    typed = [dict(event.data) for event in shell.manager.read("s/n")]
    assert typed == [{"a": None, "b": 1}, {"a": "", "b": None}, {"a": "x", "b": None}]
    raw = [event.data for event in shell.manager.read("s/raw")]
    assert raw == [b'{"a": null, "b": "1"}', b'{"a": "", "b": null}', b'{"a": "x", "b": ""}']


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.decimal128(20, 2), b"123456789012345678.91", Decimal("123456789012345678.91")),
        (pa.decimal128(20, 2), b"123456789012345678.915", None),
        (pa.decimal128(20, 2), b"1e400", None),
        (pa.int64(), b"9007199254740993", 9007199254740993),
        (pa.int64(), b"9007199254740993.0", 9007199254740993),
        (pa.int64(), b"1.5", None),
        (pa.int64(), b"1e400", None),
        (pa.float64(), b"0.1", 0.1),
        (pa.float64(), b"1e400", None),
        (pa.float32(), b"1e39", None),
        (pa.float32(), b"3.4028235e38", 3.4028234663852886e38),
        (pa.float32(), b"3.4028236e38", None),
        (pa.float64(), b'1, "c": 2', None),
        (pa.timestamp("us", "UTC"), b'"2026-01-01T12:00:00.123456789Z"', None),
        (
            pa.timestamp("us", "UTC"),
            b'"2026-01-01T12:00:00.123456000Z"',
            datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc),
        ),
        (pa.binary(), b'""', b""),
    ],
)
def test_a_value_of_json_is_exact_or_refused(
    shell: Shell, kind: pa.DataType, text: bytes, expected: object
) -> None:
    schema = StreamSchema.of(pa.schema([("c", kind)]))
    shell.manager.create_stream("s/n", StreamConfiguration(schema=schema))
    line = b'{"c": %b}\n' % text
    if expected is None:
        shell.failed("stream", "append", "s/n", stdin=line)
    else:
        shell.ok("stream", "append", "s/n", stdin=line)
    found = [event.data["c"] for event in shell.manager.read("s/n")]
    assert found == ([] if expected is None else [expected])


def test_a_schema_file_that_names_a_column_twice_is_refused(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object", "properties": {"a": {}, "a": {"type": "string"}}}')
    assert "'a' twice" in shell.failed("stream", "create", "s/n", "--schema", str(path))
    path.write_text('{"type": "object", "properties": {"a": {"enum": [1.5]}}}')
    shell.ok("stream", "create", "s/n", "--schema", str(path))
