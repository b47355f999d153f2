"""Imports of files and tables, and exports to them: every row once, in order, over kills."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark import StreamConfiguration, StreamManager
from tests.harness import failpoints, warm_workers
from tests.harness.copy_jobs import Copies
from tests.harness.jvm import clean_environment
from tests.harness.releases import run_release
from tests.harness.tiers import only_long, sized

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def lines(folder: Path, name: str, first: int, last: int, at: int) -> None:
    """Write a file of JSON lines with a time of its own; its rows have three users in turn."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    text = "".join(
        json.dumps({"user": f"u{n % 3}", "n": n, "none": None}) + "\n" for n in range(first, last)
    )
    hidden = folder / f".{name}"  # Spark reads no file whose name begins so
    hidden.write_text(text)
    os.utime(hidden, (at, at))
    hidden.rename(file)


@pytest.mark.versions(since="3.5")
def test_lines_are_events_as_they_are_with_each_key_in_the_order_of_the_files(
    copies: Copies,
) -> None:
    source = copies.folder / "lines"
    lines(source, "z.json", 0, 30, at=1_700_000_000)  # the oldest, with the last name
    lines(source, "a.json", 30, 31, at=1_700_000_100)
    lines(source, "m.json", 31, 60, at=1_700_000_200)
    given = ["--from", "json", "--path", source, "--key", "user", "--segments", 2]
    shown = copies.import_(*given, "--dry-run")
    assert (shown["rows"], shown["dry_run"], shown["status"]) == (0, True, 0)
    assert '{"user": "u0", "n": 0, "none": null}' in str(shown["output"])
    assert not StreamManager(copies.root).stream_exists("s/in")
    first = copies.import_(*given)
    assert (first["rows"], first["failed"], first["status"]) == (60, 0, 0)
    lines(source, "b.json", 60, 70, at=1_700_000_300)
    assert copies.import_(*given)["rows"] == 10
    assert copies.import_(*given)["rows"] == 0
    failed = copies.import_(*given, stream="s/other")  # with the checkpoint of s/in
    assert failed["status"] == 2
    assert "stream s/other does not exist" in str(failed["output"])

    by_user: dict[str | None, list[str]] = defaultdict(list)
    for user, line in copies.events():
        by_user[user].append(line)
    assert sorted(by_user, key=str) == ["u0", "u1", "u2"]
    for i in range(3):
        expected = [json.dumps({"user": f"u{i}", "n": n, "none": None}) for n in range(i, 70, 3)]
        assert by_user[f"u{i}"] == expected


def test_lines_with_two_equal_fields_are_events_where_no_field_is_wanted(copies: Copies) -> None:
    source = copies.folder / "lines"
    source.mkdir()
    texts = ['{"a": 1, "a": 2}', '{"user": "u", "User": "v"}', "", '{"b": 3}']
    (source / "a.json").write_text("".join(f"{text}\n" for text in texts))
    given = ["--from", "json", "--path", source]
    for wanted in (["--key", "user"], ["--typed"]):
        failed = copies.import_(*given, *wanted)
        assert failed["status"] == 2, failed
        assert f"rows of {source} name a field twice" in str(failed["output"])
    assert '{"a": 1, "a": 2}' in str(copies.import_(*given, "--dry-run")["output"])
    assert (copies.import_(*given)["rows"], copies.import_(*given)["rows"]) == (4, 0)
    assert sorted(copies.events()) == sorted((None, text) for text in texts)


def test_a_moved_source_says_what_to_do(copies: Copies) -> None:
    source = copies.folder / "lines"
    lines(source, "a.json", 0, 3, at=1_700_000_000)
    assert copies.import_("--from", "json", "--path", source)["rows"] == 3
    moved = source.rename(copies.folder / "moved")
    lines(moved, "b.json", 3, 5, at=1_700_000_100)
    failed = copies.import_("--from", "json", "--path", moved)
    assert failed["status"] == 1
    assert "the checkpoint is of an import from another folder: move the" in str(failed["output"])
    moved.rename(source)  # the advice works
    assert copies.import_("--from", "json", "--path", source)["rows"] == 2


HOSTILE = ("", " ", '"', "\\", "a\nb,c", "\r\n", "\t", "null", '\\",')


@pytest.mark.versions
@pytest.mark.parametrize("kind", ["csv", "delta", "json", "parquet"][: sized(1, 4)])
@pytest.mark.long
def test_export_and_import_again_make_the_same_events(copies: Copies, kind: str) -> None:
    manager = StreamManager(copies.root)
    manager.create_stream("s/in")
    with manager.create_writer("s/in") as writer:
        for n in range(40):
            text = f"{HOSTILE[n % len(HOSTILE)]} {n}, ü{HOSTILE[n % len(HOSTILE)]}"
            writer.write_event(text.encode(), routing_key=f"k{n % 4}" if n % 5 else None)
    target = copies.folder / "out"
    options = ["--option", "header=true"] if kind == "csv" else []
    given = ["--to", kind, "--path", target, *options]
    assert copies.export(*given)["rows"] == 40
    with manager.create_writer("s/in") as writer:
        writer.write_event(b"later", routing_key="k1")
    assert copies.export(*given)["rows"] == 1
    if kind == "delta":  # a table that is no export, such as the stream's own
        table = copies.root / "s/in/events"
        failed = copies.import_("--from", kind, "--path", table, "--key", "routing_key")
        assert failed["status"] == 2
        assert "--order-by updated_at" in str(failed["output"])
    back = copies.import_("--from", kind, "--path", target, *options, stream="s/back")
    assert back["rows"] == 41, back["output"]
    times = {e.data: e.timestamp for e in manager.read("s/in")}
    assert {e.data: e.timestamp for e in manager.read("s/back")} == times
    for key in ("k0", "k1", "k2", "k3"):
        of_key = [text for k, text in copies.events("s/back") if k == key]
        assert of_key == [text for k, text in copies.events() if k == key]
    assert Counter(copies.events("s/back")) == Counter(copies.events())


@pytest.mark.versions(since="3.5")
def test_old_files_are_imported_and_changed_ones_end_the_run(copies: Copies) -> None:
    source = copies.folder / "lines"
    given = ["--from", "json", "--path", source]
    lines(source, "new.json", 0, 2, at=1_700_000_000)
    assert copies.import_(*given)["rows"] == 2
    lines(source, "ten days older, ü%20.json", 2, 4, at=1_700_000_000 - 10 * 86_400)
    assert copies.import_(*given)["rows"] == 2
    with (source / "new.json").open("a") as file:
        file.write('{"user": "late"}\n')
    lines(source, "next.json", 4, 5, at=1_700_000_500)
    failed = copies.import_(*given)
    assert (failed["status"], "new.json: changed after it was read" in str(failed["output"])) == (
        2,
        True,
    )
    assert "--changed-files skip" in str(failed["output"])
    skipped = copies.import_(*given, "--changed-files", "skip")
    assert (skipped["status"], skipped["rows"]) == (0, 1)
    assert "new.json: changed after it was read" in str(skipped["output"])
    assert sorted(json.loads(event)["n"] for _, event in copies.events()) == [0, 1, 2, 3, 4]


def test_export_into_files_of_another_checkpoint_is_refused(copies: Copies) -> None:
    manager = StreamManager(copies.root)
    manager.create_stream("s/in")

    def write(*numbers: int) -> None:
        with manager.create_writer("s/in") as writer:
            for n in numbers:
                writer.write_event(str(n).encode())

    given = ["--to", "json", "--path", copies.folder / "out"]
    write(0, 1, 2)
    assert copies.export(*given)["rows"] == 3
    write(3)
    assert copies.export(*given)["rows"] == 1
    assert copies.export(*given)["rows"] == 0
    for name in ("lost", "other"):
        failed = copies.export(*given, "--checkpoint", copies.folder / name)
        assert (failed["status"], "another checkpoint wrote them" in str(failed["output"])) == (
            2,
            True,
        )
        moved = [*given[:2], "--path", copies.folder / f"of {name}"]
        moved += ["--checkpoint", copies.folder / name, "--max-rows", 3]
        assert copies.export(*moved)["rows"] == 4  # two batches, as many as are in the other folder
    write(4)
    assert copies.export(*given)["rows"] == 1
    texts = [json.loads(line)["event"] for line in read_lines(copies.folder / "out")]
    assert sorted(texts) == ["0", "1", "2", "3", "4"]
    shutil.rmtree(copies.folder / "out")
    write(5)
    gone_on = copies.export(*given)
    assert (gone_on["status"], gone_on["rows"]) == (0, 1)
    assert "out has nothing of the batches up to 2 that the checkpoint" in str(gone_on["output"])
    assert "has nothing of" not in str(copies.export(*given)["output"])


def test_folder_of_an_export_may_be_moved_at_any_batch(copies: Copies) -> None:
    """Spark joins the lists of files of its batches at the numbers 9 and 19."""
    manager, folder = StreamManager(copies.root), copies.folder / "out"
    manager.create_stream("s/in")
    given = ["--to", "json", "--path", folder, "--max-rows", 1]
    for first, last in ((0, 2), (2, 13), (13, 31)):
        with manager.create_writer("s/in") as writer:
            for number in range(first, last):
                writer.write_event(str(number).encode())
        done = copies.export(*given)
        assert (done["status"], done["rows"]) == (0, last - first)
        found = copies.spark.read.json(str(folder)).collect()
        assert sorted(int(row["event"]) for row in found) == list(range(first, last))
        folder.rename(copies.folder / f"moved at {last}")


def test_export_into_a_table_that_another_checkpoint_wrote_is_refused(copies: Copies) -> None:
    manager = StreamManager(copies.root)
    table = copies.folder / "it's a `table`"
    given = ["--to", "delta", "--path", table]

    def write(*numbers: int, stream: str = "s/in") -> None:
        with manager.create_writer(stream) as writer:
            for n in numbers:
                writer.write_event(str(n).encode())

    def rows() -> list[str]:
        found = copies.spark.read.format("delta").load(str(table)).collect()
        return sorted(row["event"].decode() for row in found)

    manager.create_stream("s/in")
    manager.create_stream("s/more")
    write(0, 1)
    place = ("now() AS timestamp", "0L AS segment_id", "0L AS offset")
    own = copies.spark.range(1).selectExpr("'k' AS routing_key", "BINARY('own') AS event", *place)
    own.write.format("delta").save(str(table))  # a user's own, which no export has written
    assert copies.export(*given)["rows"] == 2
    write(2)
    assert copies.export(*given)["rows"] == 1
    (query,) = {json.loads((copies.folder / "export/metadata").read_text())["id"]}
    for name, stream in (("lost", "s/in"), ("other", "s/more")):
        failed = copies.export(*given, "--checkpoint", copies.folder / name, stream=stream)
        assert failed["status"] == 2
        for word in ("up to its batch 1", query, "--written-table append"):
            assert word in str(failed["output"])
    shutil.copytree(copies.folder / "export", copies.folder / "kept")
    write(3)
    assert copies.export(*given)["rows"] == 1
    failed = copies.export(*given, "--checkpoint", copies.folder / "kept")
    assert (failed["status"], "is at batch 1: it is an older copy" in str(failed["output"])) == (
        2,
        True,
    )
    write(10, stream="s/more")
    added = ["--checkpoint", copies.folder / "other", "--written-table", "append"]
    assert copies.export(*given, *added, stream="s/more")["rows"] == 1
    write(4)
    write(11, stream="s/more")
    assert copies.export(*given)["rows"] == 1  # each goes on with its own checkpoint
    assert copies.export(*given, *added[:2], stream="s/more")["rows"] == 1
    assert rows() == ["0", "1", "10", "11", "2", "3", "4", "own"]


def test_text_of_an_export_has_all_of_a_row(copies: Copies) -> None:
    days = pa.map_(pa.date32(), pa.decimal128(20, 2))
    at = datetime(2020, 1, 2, 3, 4, 5, 123456, tzinfo=timezone.utc)
    row = {"t": at, "x": math.nan, "n": None}
    row["m"] = [(date(2020, 1, 2), Decimal("123456789012345678.90"))]
    schema = pa.schema(
        [("t", pa.timestamp("us", "UTC")), ("x", pa.float64()), ("m", days), ("n", pa.string())]
    )
    manager = StreamManager(copies.root)
    manager.create_stream("s/in", StreamConfiguration(schema=schema))
    with manager.create_writer("s/in") as writer:
        writer.write_table(pa.Table.from_pylist([row], schema=schema), event_time="t")
    time = '"2020-01-02T03:04:05.123456Z"'
    whole = (
        f'{{"routing_key":null,"t":{time},"x":"NaN","m":{{"2020-01-02":123456789012345678.90}},'
        f'"n":null,"timestamp":{time},"segment_id":0,"offset":0}}\n'
    )
    given = ["--to", "json", "--path", copies.folder / "out", "--option", "compression=gzip"]
    assert copies.export(*given)["rows"] == 1
    (file,) = (copies.folder / "out").glob("*.json.gz")
    assert gzip.decompress(file.read_bytes()).decode() == whole
    other = ["--path", copies.folder / "less", "--checkpoint", copies.folder / "second"]
    copies.export(*given[:2], *other, "--option", "ignoreNullFields=true")
    (line,) = read_lines(copies.folder / "less")
    assert "null" not in line


def read_lines(folder: Path) -> list[str]:
    """Return the lines of the files that Spark has written into a folder."""
    return [line for file in folder.glob("*.json") for line in file.read_text().splitlines()]


def test_values_of_csv_are_texts_unless_types_are_asked_for(copies: Copies) -> None:
    source = copies.folder / "rows"
    source.mkdir()
    (source / "a.csv").write_text("zip,n\n007,1\n,2\n")
    given = ["--from", "csv", "--path", source, "--option", "header=true"]
    copies.import_(*given)
    assert sorted(copies.events()) == [
        (None, '{"zip":"007","n":"1"}'),
        (None, '{"zip":null,"n":"2"}'),
    ]
    typed = ["--checkpoint", copies.folder / "types", "--option", "inferSchema=true"]
    copies.import_(*given, *typed, stream="s/types")
    assert sorted(copies.events("s/types")) == [
        (None, '{"zip":7,"n":1}'),
        (None, '{"zip":null,"n":2}'),
    ]


def test_rows_become_objects_or_what_the_expressions_say(copies: Copies) -> None:
    frame = copies.spark.range(6).selectExpr("id AS n", "concat('c', id % 2) AS carrier")
    source = copies.folder / "table"
    frame.coalesce(1).write.parquet(str(source))
    copies.import_("--from", "parquet", "--path", source, "--key", "carrier")
    assert sorted(copies.events()) == sorted(
        (f"c{n % 2}", json.dumps({"n": n, "carrier": f"c{n % 2}"}).replace(" ", ""))
        for n in range(6)
    )
    given = ["--from", "parquet", "--path", source, "--key", "carrier", "--event"]
    checkpoint = ["--checkpoint", copies.folder / "second", "--order-by=-n"]
    copies.import_(*given, "CAST(n AS STRING)", *checkpoint, stream="s/n")
    for carrier, numbers in (("c0", ["4", "2", "0"]), ("c1", ["5", "3", "1"])):
        assert [n for key, n in copies.events("s/n") if key == carrier] == numbers


def test_columns_of_files_are_those_of_a_typed_stream(copies: Copies) -> None:
    source = copies.folder / "lines"
    lines(source, "a.json", 0, 10, at=1_700_000_000)
    done = copies.import_("--from", "json", "--path", source, "--key", "user", "--typed")
    assert done["rows"] == 10, done["output"]
    found = [(e.routing_key, e.data) for e in StreamManager(copies.root).read("s/in")]
    assert sorted(data["n"] for _, data in found) == list(range(10))
    assert all(key == data["user"] for key, data in found)
    assert copies.export("--to", "parquet", "--path", copies.folder / "out")["rows"] == 10
    columns = ["routing_key", "user", "n", "none", "timestamp", "segment_id", "offset"]
    exported = copies.spark.read.parquet(str(copies.folder / "out"))
    assert sorted(exported.columns) == sorted(columns)
    back = ["--checkpoint", copies.folder / "back", "--from", "parquet", "--path"]
    copies.import_(*back, copies.folder / "out", "--typed", stream="s/back")
    copied = [(e.routing_key, e.data) for e in StreamManager(copies.root).read("s/back")]
    assert copied == found


def test_rows_and_headers_that_do_not_fit_end_an_import_that_loses_no_value(
    copies: Copies,
) -> None:
    source = copies.folder / "rows"
    source.mkdir()
    given = ["--from", "csv", "--path", source, "--option", "header=true", "--schema"]
    given += ["id STRING, name STRING"]
    (source / "a.csv").write_text("id,name\n1,a\n2,b,more\n")
    failed = copies.import_(*given)
    assert (failed["status"], failed["rows"]) == (1, 0)
    assert "--option mode=PERMISSIVE" in str(failed["output"])
    (source / "a.csv").write_text("name,id\na,1\n")
    failed = copies.import_(*given, "--checkpoint", copies.folder / "header")
    assert (failed["status"], failed["rows"]) == (1, 0)
    assert "Expected: id but found: name" in str(failed["output"])
    assert not StreamManager(copies.root).stream_exists("s/in") or not copies.events()


def test_columns_of_all_files_are_imported_whatever_their_names(copies: Copies) -> None:
    source = copies.folder / "files"
    source.mkdir()
    pq.write_table(pa.table({"n": [1], "__op": ["c"]}), source / "1.parquet")
    pq.write_table(pa.table({"n": [2], "more": ["x"]}), source / "2.parquet")
    given = ["--from", "parquet", "--path", source, "--typed", "--key", "n"]
    assert copies.import_(*given)["status"] == 0
    found = sorted((e.data for e in StreamManager(copies.root).read("s/in")), key=lambda d: d["n"])
    assert found == [{"n": 1, "__op": "c", "more": None}, {"n": 2, "__op": None, "more": "x"}]


def test_column_that_a_typed_stream_cannot_have_is_refused(copies: Copies) -> None:
    source = copies.folder / "files"
    source.mkdir()
    pq.write_table(pa.table({"n": [1], "offset": [5]}), source / "1.parquet")
    failed = copies.import_("--from", "parquet", "--path", source, "--typed")
    assert failed["status"] == 2
    assert "no column offset of the user's" in str(failed["output"])


def test_bytes_that_are_no_text_end_an_export_of_text_with_the_way_on(copies: Copies) -> None:
    manager = StreamManager(copies.root)
    manager.create_stream("s/in")
    with manager.create_writer("s/in") as writer:
        writer.write_event(b"\xff", routing_key="k")
    given = ["--to", "json", "--path", copies.folder / "out"]
    failed = copies.export(*given)
    assert (failed["status"], failed["failed"], failed["rows"]) == (1, 1, 0)
    assert "--event-as base64" in str(failed["output"])
    done = copies.export(*given, "--event-as", "base64", "--checkpoint", copies.folder / "again")
    assert (done["status"], done["rows"]) == (0, 1)
    (row,) = copies.spark.read.json(str(copies.folder / "out")).collect()
    assert row["event"] == "/w=="


@pytest.mark.versions
@pytest.mark.slow
@pytest.mark.long
def test_import_that_is_killed_at_a_commit_loses_and_doubles_nothing(copies: Copies) -> None:
    manager = StreamManager(copies.root)
    manager.create_stream("s/in")
    source, given = copies.folder / "lines", ["--from", "json", "--key", "user"]
    given += ["--path", str(copies.folder / "lines"), "--option", "maxFilesPerTrigger=1"]

    def killed(at: str) -> subprocess.CompletedProcess[str]:
        """Run the job as a user does; its process, which commits, is killed."""
        submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
        job = [*submit, str(REPOSITORY / "jobs/import_stream.py"), "--root", str(copies.root)]
        variables = {**warm_workers.variables(), **failpoints.variables(at)}
        return subprocess.run(
            [*job, "--stream", "s/in", "--checkpoint", str(copies.folder / "import"), *given],
            env=clean_environment(**variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )

    written = 0
    for at in ["commit.applied", "append.staged"][: sized(1, 2)]:
        for _ in range(2):
            lines(source, f"{written}.json", written, written + 10, at=1_700_000_000 + written)
            written += 10
        before = manager.stream_info("s/in").events
        failed = killed(at)
        assert failed.returncode not in (0, 2), failed.stdout + failed.stderr
        has_batch = manager.stream_info("s/in").events > before
        assert has_batch == (at == "commit.applied")
        assert copies.import_(*given)["status"] == 0
        found = [json.loads(event.data)["n"] for event in manager.read("s/in")]
        assert sorted(found) == list(range(written))


def test_import_whose_last_batch_was_forgotten_refuses_other_files_under_its_number(
    copies: Copies,
) -> None:
    source, checkpoint = copies.folder / "lines", copies.folder / "import"
    given = ["--from", "json", "--path", source]
    for name, first in (("1.json", 0), ("2.json", 3)):
        lines(source, name, first, first + 3, at=1_700_000_000 + first)
        assert copies.import_(*given)["status"] == 0
    for kept in ("offsets/1", "commits/1", "sources/0/1"):
        file = checkpoint / kept
        file.unlink()
        (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    lines(source, "3.json", 6, 9, at=1_700_000_006)
    failed = copies.import_(*given)
    assert (failed["status"], len(copies.events())) == (1, 6)
    assert "its sources end elsewhere" in str(failed["output"])


EXPORT_OF_0_1_0 = """
import sys
from pravega_spark.jobs import copy_runner, export_stream
from pyspark.sql import SparkSession
from delta import configure_spark_with_delta_pip
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}.items():
    builder = builder.config(name, value)
spark = configure_spark_with_delta_pip(builder).getOrCreate()
arguments = export_stream.parse(sys.argv[1:])
sys.exit(copy_runner.copy_rows("export", arguments, export_stream.export_of(arguments), spark))
"""


@pytest.mark.long
@only_long(
    "test_export_into_a_table_that_another_checkpoint_wrote_is_refused reads the same history: "
    "Delta's own sink writes it, whatever the release"
)
def test_table_of_an_export_of_0_1_0_is_known(copies: Copies) -> None:
    manager = StreamManager(copies.root)
    manager.create_stream("s/in")
    with manager.create_writer("s/in") as writer:
        writer.write_event(b"first")
    given = ["--to", "delta", "--path", copies.folder / "table"]
    own = ["--checkpoint", copies.folder / "export"]
    run_release("0.1.0", EXPORT_OF_0_1_0, "--root", copies.root, "--stream", "s/in", *given, *own)
    failed = copies.export(*given, "--checkpoint", copies.folder / "lost")
    assert (failed["status"], "up to its batch 0" in str(failed["output"])) == (2, True)
    with manager.create_writer("s/in") as writer:
        writer.write_event(b"second")
    assert copies.export(*given, *own)["rows"] == 1
    assert copies.spark.read.format("delta").load(str(copies.folder / "table")).count() == 2
