"""Events on the command line: written, read and followed as lines."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.store import open_store
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import Segment, StreamCut
from tests.unit.cli.conftest import Shell


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A root that other processes see, too."""
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    return made


@pytest.fixture(autouse=True)
def stream(shell: Shell) -> None:
    shell.ok("stream", "create", "s/a")


def key_of(segment: Segment) -> str:
    """Return a routing key of a segment."""
    keys = (f"k{number}" for number in itertools.count())
    bounds = segment.key_range
    return next(key for key in keys if bounds.low <= position(key) < bounds.high)


def events(shell: Shell) -> list[tuple[str | None, bytes]]:
    return [(event.routing_key, event.data) for event in shell.manager.read("s/a")]


CLI = (sys.executable, "-m", "pravega_spark.cli")
ROWS = [{"carrier": "UA", "delay": 2}, {"carrier": "AA", "delay": None}]
LINES = b'{"carrier": "UA", "delay": 2}\n\n{"carrier": "AA", "delay": null}\n'


def test_lines_of_standard_input_are_events_with_or_without_a_key(shell: Shell) -> None:
    shell.ok("stream", "append", "s/a", stdin=b"one\ntwo\r\n\nlast")
    shell.ok("stream", "append", "s/a", "--key-separator", ":", stdin=b"k:a:b\n")
    lines = [b"one", b"two", b"", b"last"]
    assert events(shell) == [*((None, line) for line in lines), ("k", b"a:b")]
    assert "record 2 of the input has no key separator" in shell.failed(
        "stream", "append", "s/a", "--key-separator", ":", stdin=b"k:v\nv\n"
    )


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "arrow"])
def test_rows_of_every_format_are_json_objects_with_a_key(
    shell: Shell, tmp_path: Path, form: str
) -> None:
    path, table = tmp_path / f"rows.{form}", pa.Table.from_pylist(ROWS)
    if form == "json":
        path.write_bytes(LINES)
    elif form == "csv":
        path.write_text("carrier,delay\nUA,2\nAA,\n")
    elif form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    shell.ok("stream", "append", "s/a", str(path), "--key", "carrier")
    shell.ok(
        "stream", "append", "s/a", "--format", form, "--event", "carrier", stdin=path.read_bytes()
    )
    found = events(shell)
    assert [key for key, _ in found[:2]] == ["UA", "AA"]
    assert [json.loads(data)["carrier"] for _, data in found[:2]] == ["UA", "AA"]
    assert [data for _, data in found[2:]] == [b"UA", b"AA"]


def test_a_writer_id_goes_on_where_a_run_stopped(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    append = ("stream", "append", "s/a", str(path), "--writer-id", "w")
    for content, text in (
        (b"1\n2\n", "Wrote 2 events to stream s/a.\n"),
        (b"1\n2\n3\n", "Wrote 1 event to stream s/a. 2 had been written before.\n"),
        (b"1\n2\n3\n", "Wrote 0 events to stream s/a. 3 had been written before.\n"),
    ):
        path.write_bytes(content)
        assert shell.ok(*append) == text
    assert [data for _, data in events(shell)] == [b"1", b"2", b"3"]


def test_a_writer_id_refuses_another_input_whatever_its_name(shell: Shell) -> None:
    append = ("stream", "append", "s/a", "--writer-id", "w")
    shell.ok(*append, stdin=b"1\n2\n3\n")
    assert "its first 3 records are others" in shell.failed(*append, stdin=b"4\n5\n6\n7\n")
    assert "it has 1 record" in shell.failed(*append, stdin=b"1\n")
    with shell.manager.create_writer("s/a", writer_id="other") as writer:
        writer.write_event(b"0")
    error = shell.failed("stream", "append", "s/a", "--writer-id", "other", stdin=b"0\n")
    assert "the id is not one of `stream append`" in error
    assert [data for _, data in events(shell)] == [b"1", b"2", b"3", b"0"]


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_key(shell: Shell) -> None:
    mark = "\ufeff".encode()
    shell.ok("stream", "append", "s/a", "--key-separator", ",", stdin=mark + b"k,1\nk,2\n")
    assert events(shell) == [("k", b"1"), ("k", b"2")]
    shell.ok("stream", "append", "s/a", stdin=mark + b"3\n")
    assert events(shell)[2] == (None, mark + b"3")  # without a key the line is the event


def test_a_second_mark_of_the_byte_order_is_refused_where_it_would_be_lost_or_part_of_a_name(
    shell: Shell,
) -> None:
    mark = "\ufeff".encode()
    append = ("stream", "append", "s/a", "--format")
    shell.ok(*append, "json", stdin=mark + b'{"a": 1}\n')
    shell.ok(*append, "csv", stdin=mark + b"a\n" + mark + b"2\n")
    stored = [(None, b'{"a": 1}'), (None, b'{"a": "' + mark + b'2"}')]
    assert events(shell) == stored
    error = shell.failed(*append, "json", stdin=b"\n" + mark + b'{"a": 3}\n')
    assert (
        "record 1 of the input (line 2) is not valid JSON: only the start of an input may" in error
    )
    assert "only the start" in shell.failed(*append, "json", stdin=mark * 2 + b'{"a": 3}\n')
    error = shell.failed(*append, "csv", stdin=mark * 2 + b"a\n1\n")
    assert "the input begins with more than one byte order mark" in error
    assert events(shell) == stored


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b'{"y": 1, "y": 2, "k": "3"}', None),
        (b'{"k": "x", "y": {"k": 1, "k": 2}}', None),
        (b'{"k": "x", "y": [{"z": 1, "z": 2}]}', None),
        (b'{"k": 1, "y": 2, "k": 3}', "it has the field 'k' twice"),
        (b'{"k": {"a": [0, {"y": 1, "y": 2}]}}', "the object in k.a[1] has the field 'y' twice"),
    ],
)
@pytest.mark.parametrize("option", ["--key", "--event"])
def test_a_named_field_has_one_value_and_no_other_field_matters(
    shell: Shell, option: str, line: bytes, part: str | None
) -> None:
    append = ("stream", "append", "s/a", "--format", "json", option, "k")
    if part is not None:
        assert part in shell.failed(*append, stdin=line)
        return
    shell.ok(*append, stdin=line)
    value = json.loads(line)["k"]
    assert events(shell) == [(value, line) if option == "--key" else (None, value.encode())]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_numbers_that_json_lacks_are_texts_in_rows_keys_and_events(
    shell: Shell, tmp_path: Path, form: str
) -> None:
    numbers = [float("nan"), float("-inf"), 1.5]
    table = pa.table({"n": numbers, "l": [[number] for number in numbers]})
    path = tmp_path / f"rows.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    shell.ok("stream", "append", "s/a", str(path), "--key", "n")
    shell.ok("stream", "append", "s/a", str(path), "--event", "n")
    assert events(shell) == [
        ("NaN", b'{"n": "NaN", "l": ["NaN"]}'),
        ("-Infinity", b'{"n": "-Infinity", "l": ["-Infinity"]}'),
        ("1.5", b'{"n": 1.5, "l": [1.5]}'),
        *((None, text) for text in (b"NaN", b"-Infinity", b"1.5")),
    ]


def test_what_a_writer_refuses_is_named_by_its_record(shell: Shell, tmp_path: Path) -> None:
    lines = b"k,1\n" + b"k" * 65_537 + b",2\n"
    error = shell.failed("stream", "append", "s/a", "--key-separator", ",", stdin=lines)
    assert "record 2 of the input: " in error
    assert error.endswith(" 1 event of this run is durable.\n")
    for form in ("csv", "parquet", "arrow"):
        error = shell.failed("stream", "append", "s/a", "--format", form, stdin=b'a,b\n"x\n')
        assert "InvalidInput: the input " in error, error


def test_a_bad_record_says_what_was_written_and_a_writer_id_goes_on(shell: Shell) -> None:
    append = ("stream", "append", "s/a", "--format", "json", "--writer-id", "w")
    error = shell.failed(*append, stdin=b'{"a": 1}\nbad\n')
    assert "record 2 of the input is not valid JSON" in error
    assert "1 event of this run is durable. Mend the record, and repeat the command." in error
    shell.ok(*append, stdin=b'{"a": 1}\n{"a": 2}\n')
    assert [json.loads(data)["a"] for _, data in events(shell)] == [1, 2]


@pytest.mark.medium
def test_a_killed_append_with_a_writer_id_is_finished_by_the_next_run(
    shell: Shell, tmp_path: Path
) -> None:
    path = tmp_path / "numbers"
    path.write_text("".join(f"{i}\n" for i in range(30_000)))
    append = ("stream", "append", "s/a", "--writer-id", "w")
    feeder = subprocess.Popen([*CLI, *append], stdin=subprocess.PIPE)
    assert feeder.stdin is not None
    feeder.stdin.write(path.read_bytes()[:60_000])
    feeder.stdin.flush()
    for event in shell.manager.follow("s/a", timeout=60):
        if int(event.data) >= 1_000:
            break
    feeder.kill()
    feeder.wait()
    feeder.stdin.close()
    shell.ok(*append, str(path))
    assert [int(data) for _, data in events(shell)] == list(range(30_000))


@pytest.mark.parametrize(
    ("content", "options", "part"),
    [
        (b"{", ("--format", "json"), "record 1 of the input is not valid JSON"),
        (b"[1]", ("--format", "json"), "not a JSON object"),
        (b'{"a": 1}', ("--format", "json", "--key", "b"), "has no field 'b'; it has a"),
        (
            b"a,b\n1\n",
            ("--format", "csv"),
            "record 1 of the input (line 2) does not have the fields",
        ),
        (b"nothing", ("--format", "parquet"), "cannot be read as Parquet"),
        (b"nothing", ("--format", "parquet"), "damaged, or has another --format"),
        (b"nothing", ("--format", "arrow"), "cannot be read as Arrow"),
        (b"x", ("--key", "b"), "read as lines"),
        (b"x", ("--format", "csv", "--key-separator", ","), "is for lines"),
        (b'{"a": NaN}', ("--format", "json"), "NaN is not a JSON number"),
        (b"[" * 100_000, ("--format", "json"), "record 1 of the input is not valid JSON"),
        (
            b'{"a": {"b": 1}}',
            ("--format", "json", "--key", "a"),
            "name a field of texts or numbers",
        ),
        (b'{"a": "\\ud800"}', ("--format", "json", "--key", "a"), "lone surrogate"),
        (b"a,a\n1,2\n", ("--format", "csv"), "names the field 'a' twice"),
        (
            b'\n{"a": 1, "a": 2}',
            ("--format", "json", "--key", "a"),
            "record 1 of the input (line 2)",
        ),
    ],
)
def test_wrong_input_is_named_with_its_line(
    shell: Shell, content: bytes, options: tuple[str, ...], part: str
) -> None:
    assert part in shell.failed("stream", "append", "s/a", *options, stdin=content)
    assert events(shell) == []


def test_a_file_that_does_not_exist_is_an_error_before_anything_is_written(shell: Shell) -> None:
    assert "does not exist" in shell.failed("stream", "append", "s/a", "/dev/null", "/no/such")
    assert "is a folder" in shell.failed("stream", "append", "s/a", "/tmp")


def test_a_large_event_needs_its_option(shell: Shell) -> None:
    content = b"x" * (9 << 20) + b"\n"
    assert "--large-events" in shell.failed("stream", "append", "s/a", stdin=content)
    shell.ok("stream", "append", "s/a", "--large-events", stdin=content + b"small\n")
    assert [len(data) for _, data in events(shell)] == [9 << 20, 5]


def compressed(codec: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as file:
        file.write(data)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("suffix", "codec"), [("gz", "gzip"), ("zst", "zstd"), ("bz2", "bz2"), ("lz4", "lz4")]
)
def test_compressed_files_are_read_as_what_they_hold(
    shell: Shell, tmp_path: Path, suffix: str, codec: str
) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"a": ["5"]}), table)
    written = {
        f"1.log.{suffix}": compressed(codec, b"1\n"),
        f"2.csv.{suffix}": compressed(codec, b"a\n2\n") + compressed(codec, b"3\n"),
        f"3.jsonl.{suffix.upper()}": compressed(codec, b'{"a": 4}\n'),
        f"4.parquet.{suffix}": compressed(codec, table.getvalue()),
    }
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    shell.ok("stream", "append", "s/a", *map(str, sorted(tmp_path.glob("[1-4].*"))))
    found = [b"1", b'{"a": "2"}', b'{"a": "3"}', b'{"a": 4}', b'{"a": "5"}']
    assert [data for _, data in events(shell)] == found


@pytest.mark.parametrize("cut", [0, -3])
def test_a_damaged_compressed_file_is_named(shell: Shell, tmp_path: Path, cut: int) -> None:
    data = compressed("gzip", b"1\n2\n")[:cut] or b"no gzip\n"
    (tmp_path / "x.gz").write_bytes(data)
    refused = shell.failed("stream", "append", "s/a", str(tmp_path / "x.gz"))
    assert "x.gz cannot be read as gzip" in refused
    assert "copy it again, or rename it" in refused


def test_a_file_that_no_codec_reads_is_refused_once_it_exists(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "x.csv.zip"
    assert "does not exist" in shell.failed("stream", "append", "s/a", str(file))
    file.write_bytes(b"x")
    assert "is compressed" in shell.failed("stream", "append", "s/a", str(file))


def test_files_may_be_urls(shell: Shell, tmp_path: Path) -> None:
    store = open_store(f"memory://{tmp_path.name}/files")
    store.put("x.csv", b"a,b\n1,2\n")
    store.put("y.gz", compressed("gzip", b"3\n"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"a": pa.int64()})) as file:
        file.write_batch(pa.record_batch({"a": [4]}))
    store.put("z.arrow", sink.getvalue())
    urls = [f"memory://{tmp_path.name}/files/{name}" for name in ("x.csv", "y.gz", "z.arrow")]
    shell.ok("stream", "append", "s/a", *urls)
    assert [data for _, data in events(shell)] == [b'{"a": "1", "b": "2"}', b"3", b'{"a": 4}']
    missing = f"memory://{tmp_path.name}/files/none.csv"
    assert "does not exist" in shell.failed("stream", "append", "s/a", urls[0], missing)
    assert len(events(shell)) == 3


@pytest.mark.parametrize(
    ("url", "wrong"), [("foo://x/y", "scheme 'foo' is unknown"), ("s3://y", "is not a valid URL")]
)
def test_url_of_a_file_that_cannot_be_opened_is_named_as_it_was_given(
    shell: Shell, url: str, wrong: str
) -> None:
    refused = shell.failed("stream", "append", "s/a", url)
    assert f"the file {url} cannot be opened: " in refused
    assert wrong in refused


@pytest.mark.medium
def test_closed_standard_streams_are_empty(shell: Shell) -> None:
    append = f"{sys.executable} -m pravega_spark.cli stream append s/a <&-"
    read = f"{sys.executable} -m pravega_spark.cli stream read s/a >&-"
    for line in (append, read):
        done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_long_field_of_csv_is_an_event(shell: Shell) -> None:
    content = b"a\n" + b"x" * 200_000 + b"\n"
    shell.ok("stream", "append", "s/a", "--format", "csv", "--event", "a", stdin=content)
    assert events(shell) == [(None, b"x" * 200_000)]


def test_parsed_events_are_exact_or_stay_texts(shell: Shell) -> None:
    lines = ['{"x": 1.10}', '{"x": 1, "x": 2}', '{"a": [{"x": 1, "x": 1}]}', "NaN"]
    given = "".join(f"{line}\n" for line in lines).encode()
    shell.ok("stream", "append", "s/a", stdin=given)
    shell.ok("stream", "append", "s/a", "--format", "json", stdin=given[:29])
    read = shell.ok("stream", "read", "s/a", "--parse").splitlines()
    assert read[0].endswith('"event": {"x": 1.10}}')
    assert [json.loads(line)["event"] for line in read[1:4]] == lines[1:]
    assert [data.decode() for _, data in events(shell)][4:] == lines[:2]  # whole lines stay


def test_events_are_read_between_positions_as_json_raw_and_formats(shell: Shell) -> None:
    content = b'a:{"x":1}\nb:two\na:\xff\n'
    shell.ok("stream", "append", "s/a", "--key-separator", ":", stdin=content)
    lines = [json.loads(line) for line in shell.ok("stream", "read", "s/a").splitlines()]
    assert [(line["routing_key"], line["offset"]) for line in lines] == [
        ("a", 0),
        ("b", 1),
        ("a", 2),
    ]
    assert lines[0]["event"] == '{"x":1}'
    assert lines[2]["event_base64"] == "/w=="
    first = json.loads(shell.ok("stream", "read", "s/a", "-n", "1", "--parse"))
    assert first["event"] == {"x": 1}
    assert shell.ok(
        "stream", "read", "s/a", "-o", "+1", "--end", "+2", "-f", r"%k=%v %s %o%%\n"
    ) == ("b=two 0#0 1%\n")
    assert shell.ok("stream", "read", "s/a", "--key", "b", "-f", "raw") == "two\n"
    assert shell.ok("stream", "read", "s/a", "-o", "end") == ""
    assert shell.ok("stream", "read", "s/a", "-o", "@-1h", "-n", "1", "-f", "%o") == "0"
    assert shell.ok("stream", "read", "s/a", "-o", "@2100-01-01T00:00:00+01:00") == ""
    cut = shell.manager.tail("s/a")
    assert shell.ok("stream", "read", "s/a", "-o", str(cut)) == ""


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("-f", "%q"), "no field %q"),
        (("-f", "raw", "--parse"), "--parse needs"),
        (("-o", "@yesterday"), "is not a valid time"),
        (("-o", "@-2 parsecs"), "or @-2h for two hours ago"),
        (("-o", "nonsense"), "nonsense"),
        (("-o", "s/other@1:0#0=0"), "s/other"),
    ],
)
def test_wrong_positions_and_formats_are_named(
    shell: Shell, options: tuple[str, ...], part: str
) -> None:
    assert part in shell.failed("stream", "read", "s/a", *options)


def test_the_tail_shows_the_last_events_also_just_after_a_scale(shell: Shell) -> None:
    shell.ok("stream", "append", "s/a", stdin=b"1\n2\n3\n4\n")
    shell.ok("stream", "scale", "s/a", "--split", "0")
    assert shell.ok("stream", "tail", "s/a", "-n", "2", "--format", r"%v\n") == "3\n4\n"
    assert shell.ok("stream", "tail", "s/a", "-n", "99", "--format", "%v") == "1234"
    shell.ok("stream", "seal", "s/a", "-y")
    assert shell.ok("stream", "tail", "s/a", "-n", "1", "--format", "%v") == "4"


def test_the_tail_has_the_newest_events_of_segments_that_a_scale_sealed(shell: Shell) -> None:
    low, high = shell.manager.scale_stream("s/a", [0], [(0.0, 0.5), (0.5, 1.0)]).segments
    key = {segment: key_of(segment) for segment in (low, high)}
    with shell.manager.create_writer("s/a") as writer:
        for number in range(8):
            writer.write_event(b"%d" % number, key[low if number < 5 else high]).result()
    shell.manager.scale_stream("s/a", [high], [(0.5, 0.75), (0.75, 1.0)])
    for count in (1, 2, 3, 5, 8, 9):
        text = shell.ok("stream", "tail", "s/a", "-n", str(count), "--format", "%v")
        assert text == "01234567"[-count:]


def test_positions_count_from_a_head_in_the_middle_of_a_merge(shell: Shell) -> None:
    manager = shell.manager
    first, second = manager.scale_stream("s/a", [0], [(0.0, 0.5), (0.5, 1.0)]).segments
    with manager.create_writer("s/a") as writer:
        for number in range(20):
            writer.write_event(b"o%d" % number, routing_key=f"k{number}")
    ends = [manager.segment("s/a", segment).next_offset for segment in (first, second)]
    manager.scale_stream("s/a", [first, second], [(0.0, 1.0)])
    with manager.create_writer("s/a") as writer:
        writer.write_events([b"n"] * 5, routing_key="k")
    life = manager.head("s/a").life
    manager.truncate_stream(
        "s/a", StreamCut("s/a", life, {first.segment_id: ends[0], second.segment_id: 3})
    )
    left = ends[1] - 3

    def events_from(position: str) -> int:
        return shell.ok("stream", "read", "s/a", "-o", position).count("\n")

    assert [events_from(f"+{n}") for n in (0, 1, left, 99)] == [left + 5, left + 4, 5, 5]
    assert [events_from(f"-{n}") for n in (1, 5, 6, 99)] == [1, 5, left + 5, left + 5]


@pytest.mark.medium
def test_a_followed_tail_prints_events_as_they_come(shell: Shell) -> None:
    process = subprocess.Popen(
        [*CLI, "stream", "tail", "-f", "s/a", "-n", "0", "--format", r"%v\n"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    done = threading.Event()

    def write() -> None:
        with shell.manager.create_writer("s/a") as writer:
            while not done.wait(0.1):  # until the follower has begun
                writer.write_event(b"now")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert process.stdout.readline() == b"now\n"
        assert process.poll() is None
    finally:
        done.set()
        writing.join()
        process.kill()
        process.wait()
        process.stdout.close()


def test_json_lines_are_stored_as_their_bytes_and_numbers_stay_exact(shell: Shell) -> None:
    line = b'{"d": 19.90, "n": 123456789012345678.91,  "big": 1e400, "d": 2}'
    shell.ok("stream", "append", "s/a", "--format", "json", stdin=line + b"\r\n")
    shell.ok("stream", "append", "s/a", "--format", "json", "--key", "n", stdin=line + b"\n")
    one = b'{"v": {"x": 123456789012345678.91}}\n'
    shell.ok("stream", "append", "s/a", "--format", "json", "--event", "v", stdin=one)
    assert events(shell) == [
        (None, line),
        ("123456789012345678.91", line),
        (None, b'{"x": 123456789012345678.91}'),
    ]
    last = shell.ok("stream", "read", "s/a", "-o", "-1", "--parse")
    assert '"event": {"x": 123456789012345678.91}' in last


def test_a_changed_record_is_refused_also_after_a_bad_one_and_before_the_next_note(
    shell: Shell,
) -> None:
    append = ("stream", "append", "s/a", "--format", "json", "--writer-id", "w")
    rows = [b'{"a": %d}\n' % number for number in range(9)]
    shell.failed(*append, stdin=b"".join([*rows, b"bad\n"]))
    changed = [*rows[:4], b'{"a": 44}\n', *rows[5:], b'{"a": 9}\n']
    assert "its first 9 records are others" in shell.failed(*append, stdin=b"".join(changed))
    shell.ok(*append, stdin=b"".join([*rows, b'{"a": 9}\n']))
    assert [json.loads(data)["a"] for _, data in events(shell)] == list(range(10))
