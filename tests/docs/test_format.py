"""docs/FORMAT.md names all files, shows real examples, and suffices to write a reader.

``PRAVEGA_SPARK_WRITE_DOCS=1 pytest tests/docs`` rewrites the examples.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import xxhash
from deltalake import DeltaTable

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.chunks.routing import position as position_of_the_package
from pravega_spark.engine.log import checkpoint as log_checkpoint
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import root_of
from tests.harness import format_columns, format_reader, format_writer
from tests.harness.format_examples import examples, shape
from tests.harness.format_story import Story, write_story

PAGE = Path(__file__).parents[2] / "docs/FORMAT.md"
EXAMPLE = re.compile(r"(<!-- example: ([^\n]*) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
STREAM = "nyc/flights"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return write_story(tmp_path_factory.mktemp("format"))


# ------------------------------------------------------------ the page and what is written


def cells(kind: str) -> list[str]:
    """The first cells of the rows of a checked table, without their backticks."""
    table = re.search(rf"<!-- {kind}: [^\n]*-->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert table is not None
    rows = [line.split("|")[1].strip() for line in table[1].splitlines()]
    return [row.strip("`") for row in rows[2:]]


TABLES = (
    "<scope>/_scope",
    "<scope>/<stream>/events",
    "<scope>/<stream>/metadata",
    "<scope>/_reader_groups/<group>",
    "<scope>/_kv_tables/<name>/table",
    "_settings",
    "_maintenance",
    "_transactions",
)
PLACEHOLDERS = {
    "table": f"(?:{'|'.join(TABLES)})",
    "version": r"\d{20}",
    "since": r"\d{20}",
    "number": r"\d+",
    "n": r"\d+",
    "first": r"\d+",
    "last": r"\d+",
    "id": r"[^/]+",
    "life": r"\d+",
    "digest": "[0-9a-f]{32}",
    "token": "[0-9a-f]+",
    "transaction": "[0-9a-f]{32}",
    "record": "[a-z]+",
    "name": "[^/]+",
    "lease": r"(?!_silent\.json)[^/]+",
    "scope": "[^/_][^/]*",
    "stream": "(?:_kv_tables/)?[^/_][^/]*",
    "group": "[^/]+",
}


def pattern(text: str) -> re.Pattern[str]:
    """What a cell such as ``<table>/_pravega/state/<version>.json`` stands for."""
    found = re.escape(text)
    for name, meaning in PLACEHOLDERS.items():
        found = found.replace(re.escape(f"<{name}>"), meaning)
        if name == "table":
            found = re.sub(r"<(scope|stream|group|name)>", lambda m: PLACEHOLDERS[m[1]], found)
    return re.compile(found)


NOT_TOLD = {"_probe/clock-<token>"}
"""What no story on a local disk writes."""
NOT_SET = {"pravega.compacted"}
"""What no verb of the manager sets."""


@pytest.mark.medium
def test_every_object_that_is_written_has_one_row_of_the_page(story: Story) -> None:
    rows = {cell: pattern(cell) for cell in cells("objects")}
    matched = set[str]()
    for _, key in [*story.written]:  # what was decided may still be carried out
        found = [cell for cell, meaning in rows.items() if meaning.fullmatch(key)]
        assert len(found) == 1, (key, found)
        matched.update(found)
    assert matched == set(rows) - NOT_TOLD


def test_every_domain_that_is_set_has_one_row_of_the_page(story: Story) -> None:
    names = {"<name>": "[^/]+(/[^/]+)?", "<id>": ".+", "<n>": r"\d+", "<version>": r"\d+"}
    rows = {}
    for cell in cells("domains"):
        meaning = re.escape(cell)
        for placeholder, text in names.items():
            meaning = meaning.replace(re.escape(placeholder), text)
        rows[cell] = re.compile(meaning)
    matched = set[str]()
    for domain in story.domains():
        found = [cell for cell, meaning in rows.items() if meaning.fullmatch(domain)]
        assert len(found) == 1, (domain, found)
        matched.update(found)
    assert matched == set(rows) - NOT_SET


def test_every_operation_that_is_committed_has_a_row_with_its_parameters(story: Story) -> None:
    page = PAGE.read_text()
    assert set(story.operations()) <= set(cells("operations"))
    for operation, infos in story.operations().items():
        (row,) = re.findall(rf"^\| `{operation}` \|.*$", page, re.MULTILINE)
        if row.endswith("| the same, without a committed one |"):
            continue
        for info in infos:
            assert [p for p in info["operationParameters"] if f"`{p}`" not in row] == []


def test_every_field_of_a_record_is_named_on_the_page(story: Story) -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"[A-Za-z_]+", " ".join(re.findall(r"`([^`]*)`", prose))))
    seen = set[str]()
    for contents in [*story.written.values()]:
        for content in contents:
            seen |= set(_fields(content))
    for values in story.domains().values():
        for value in values:
            seen |= set(_fields(value.encode()))
    assert {name for name in seen if name not in named} == set()


def _fields(content: bytes) -> Iterator[str]:
    """The names of the fields of JSON objects; not of maps from names of users or ids."""
    for line in content.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            return
        if isinstance(value, dict):
            yield from (name for name in value if re.fullmatch("[A-Za-z_]+", name))


def test_examples_are_what_is_written(story: Story) -> None:
    made = examples(story)
    text = PAGE.read_text()
    if os.environ.get("PRAVEGA_SPARK_WRITE_DOCS"):
        text = EXAMPLE.sub(lambda m: f"{m[1]}```text\n{made[m[2]]}\n```\n{m[4]}", text)
        PAGE.write_text(text)
    shown = {name: body for _, name, body, _ in EXAMPLE.findall(text)}
    assert set(shown) == set(made)
    for name, body in shown.items():
        text = body.removeprefix("```text\n").removesuffix("```\n")
        assert shape(text) == shape(made[name]), name


# ------------------------------------------------------------------ a reader made by the page


@dataclass
class Written:
    """A stream on disk, and how its log was left."""

    root: Path
    manager: StreamManager

    def read(self) -> format_reader.Stream:
        return format_reader.Stream(
            self.root,
            STREAM,
            digest_64=xxhash.xxh3_64_hexdigest,
            digest_128=xxhash.xxh3_128_hexdigest,
        )

    def copy(self, root: Path) -> Written:
        """The same on another place, to be changed."""
        shutil.copytree(self.root, root)
        return Written(root, StreamManager(root))

    def parts(self) -> tuple[int, ...]:
        """The versions of the parts of the state."""
        return StreamLog(root_of(self.manager).store, STREAM).log.reader.hint().parts

    def tend(self, *, checkpoint: bool) -> None:
        """Write a state file of the newest version, and a checkpoint if asked."""
        stream = StreamLog(root_of(self.manager).store, STREAM)
        maintain(stream.log.reader, stream.view().version, checkpoint=checkpoint)


BASES = ("commits", "state", "checkpoint", "both", "parts", "lost pointer", "lost state files")


@pytest.fixture(scope="module", params=BASES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A stream with a scale, a truncation, transactions and a note; its log in various states."""
    root, base = tmp_path_factory.mktemp("written") / "root", request.param
    manager = StreamManager(root)
    found = Written(root, manager)
    manager.create_scope("nyc")
    policy = RetentionPolicy.by_time("7 days")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2), policy, {"demo"}))
    keys = ["UA", "AA", "B6", None, "", "Zürich ⇄ 東京", "x" * 100]
    with manager.create_writer(STREAM, writer_id="ingest-1") as writer:
        for number in range(50):
            writer.write_event(b"first %d" % number, keys[number % len(keys)])
        writer.flush(note="flights.csv:50")
        if base != "commits":
            found.tend(checkpoint=base in ("checkpoint", "both", "lost state files"))
        middle = manager.tail(STREAM)
        for number in range(30):
            writer.write_event(b"second %d" % number, keys[number % len(keys)]).result()
    with manager.create_transactional_writer(STREAM) as transactional:
        early = transactional.begin_transaction()
        early.write_event(b"early", "UA")
        early.write_event(b"early", "AA")
        early.flush()
        manager.scale_stream(STREAM, seal=[0, 1], key_ranges=[(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)])
        with transactional.begin_transaction() as late:
            late.write_events([b"late", b"later"], "UA")
        early.commit()  # rolls: it repeats the epoch before the scale
        transactional.begin_transaction().abort()
    if base in ("both", "parts"):
        found.tend(checkpoint=False)
    manager.truncate_stream(STREAM, middle)
    if base == "parts":
        with patch.object(log_checkpoint, "_DOMAINS_A_COMMIT", 1):
            found.tend(checkpoint=False)
    with manager.create_writer(STREAM) as guest:
        guest.write_events([b"last", b"of all"], "B6").result()
    assert bool(found.parts()) == (base == "parts")
    if base == "lost pointer":
        (root / STREAM / "events/_pravega/latest.json").unlink()
    if base == "lost state files":
        for path in (root / STREAM / "events/_pravega/state").iterdir():
            path.unlink()
    return found


def test_reader_of_the_page_reads_what_the_package_reads(written: Written) -> None:
    manager, found = written.manager, written.read()
    info = manager.stream_info(STREAM)
    assert (found.version, found.life) == (info.version, info.life)
    assert (found.head(), found.tail()) == (str(info.head), str(info.tail))
    assert found.configuration == info.configuration.to_json()
    expected: dict[int, list[format_reader.Event]] = {}
    for event in manager.read(STREAM):
        expected.setdefault(event.segment_id, []).append(
            format_reader.Event(event.offset, event.routing_key, event.timestamp_us, event.data)
        )
    assert found.read() == expected
    assert sum(map(len, expected.values())) == 36


def test_reader_of_the_page_reads_large_events(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("nyc")
    manager.create_stream(STREAM)
    large = bytes(range(256)) * 40_000
    with manager.create_writer(STREAM, large_events=True) as writer:
        for event in (b"before", large, b"after"):
            writer.write_event(event, "UA")
    found = Written(tmp_path, manager)
    ((_, events),) = found.read().read().items()
    assert [event.data for event in events] == [b"before", large, b"after"]
    (path,) = tmp_path.rglob("*.event")
    path.write_bytes(large[:-1] + b"x")
    with pytest.raises(format_reader.Refused, match="damaged"):
        found.read().read()


def test_reader_of_the_page_finds_the_layouts(written: Written) -> None:
    manager, found = written.manager, written.read()
    epochs = found.epochs()
    assert len(epochs) == 4, "the first one, the scale, and two of the transaction that rolled"
    for number, segments in epochs.items():
        expected = manager.segments(STREAM, epoch=number)
        ranges = [(s.segment_id, s.key_range.low, s.key_range.high) for s in expected]
        assert segments == ranges
    for segments in epochs.values():
        for segment, _, _ in segments:
            following = {s.segment_id for s, _ in manager.successors(STREAM, segment)}
            assert set(found.successors(segment)) == following


def test_reader_of_the_page_finds_writers_and_transactions(
    written: Written, tmp_path: Path
) -> None:
    written = written.copy(tmp_path / "root")
    manager, found = written.manager, written.read()
    session, last, _, note, number = found.writer("ingest-1")
    ended = {
        done.transaction_id: (done.status.value == "COMMITTED", done.events)
        for done in manager.list_completed_transactions(STREAM)
    }
    assert found.transactions() == ended
    with manager.create_writer(STREAM, writer_id="ingest-1") as writer:
        assert (
            (last, note) == (writer.last_event_number, writer.last_note) == (80, "flights.csv:50")
        )
        assert number == writer.last_note_event_number == 50
    assert written.read().writer("ingest-1")[0] == session + 1 == 2


def test_key_is_where_the_page_says(written: Written, tmp_path: Path) -> None:
    written = written.copy(tmp_path / "root")
    for key in ["", "UA", "Zürich ⇄ 東京", *("k" * n for n in range(1, 200, 7))]:
        assert format_reader.position(key) == position_of_the_package(key)
    found = written.read()
    with written.manager.create_writer(STREAM) as writer:
        for number in range(20):
            pointer = writer.write_event(b"x", f"key {number}").result()
            assert pointer.segment_id == found.route(f"key {number}")


def test_reader_of_the_page_reads_to_the_end_of_a_sealed_stream_and_its_next_life(
    written: Written, tmp_path: Path
) -> None:
    written = written.copy(tmp_path / "root")
    manager = written.manager
    manager.seal_stream(STREAM)
    sealed = written.read()
    assert sealed.tail() == str(manager.tail(STREAM))
    assert sum(map(len, sealed.read().values())) == 36
    manager.delete_stream(STREAM)
    with pytest.raises(format_reader.Refused, match="there is no stream"):
        written.read()
    manager.create_stream(STREAM)
    with manager.create_writer(STREAM) as writer:
        pointer = writer.write_event(b"again", "UA").result()
    ((segment, (event,)),) = written.read().read().items()
    assert (segment, event.offset, event.data) == (pointer.segment_id, pointer.offset, b"again")
    assert written.read().life == pointer.life


def test_reader_of_the_page_refuses_what_it_must(written: Written, tmp_path: Path) -> None:
    written = written.copy(tmp_path / "root")
    log = written.root / STREAM / "events/_delta_log"
    newest = max(log.glob("0*.json"))
    sound = newest.read_bytes()
    newest.write_bytes(sound.replace(b'"rows":"2"', b'"rows":"3"'))
    with pytest.raises(format_reader.Refused, match="damaged"):
        written.read()
    newest.write_bytes(sound.replace(b"pravega_spark/", b"delta-rs/"))
    with pytest.raises(format_reader.Refused, match="delta-rs"):
        written.read()
    newest.write_bytes(sound)
    marker = written.root / "_pravega_spark.json"
    marker.write_bytes(marker.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(format_reader.Refused, match="format 2"):
        written.read()


def test_reader_of_the_page_reads_a_root_that_was_swept_and_copied(story: Story) -> None:
    """The stream of the story was swept to its checkpoints, and the copies were restored."""
    for root in ("backup", "restored"):
        found = format_reader.Stream(story.folder / root, STREAM)
        events = StreamManager(story.folder / root).read(STREAM)
        read = [(s, e.offset, e.data) for s, part in found.read().items() for e in part]
        assert sorted(read) == sorted((e.segment_id, e.offset, e.data) for e in events)
        assert read
    with pytest.raises(format_reader.Refused, match="there is no stream"):
        format_reader.Stream(story.folder / "streams", STREAM)


# ------------------------------------------------------------------ a writer made by the page


def test_package_reads_and_continues_what_a_writer_of_the_page_wrote(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("nyc")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    writer = format_writer.Writer(tmp_path, STREAM, "page-1", xxhash.xxh3_64_hexdigest)
    keys = [None, "", "UA", "Zürich ⇄ 東京", "B6", "AA"]
    first: list[format_writer.Pair] = [(keys[n % 6], b"page %d" % n) for n in range(24)]
    version = writer.append(first, "24")
    assert manager.stream_info(STREAM).version == version
    with manager.create_writer(STREAM, writer_id="other") as other:
        other.write_event(b"between", "UA").result()
    manager.scale_stream(STREAM, seal=["1#0"], key_ranges=[(0.5, 0.7), (0.7, 1.0)])
    second: list[format_writer.Pair] = [("UA", b"after the scale"), ("AA", b"and again")]
    writer.append(second)
    read = [(event.routing_key, event.data) for event in StreamManager(tmp_path).read(STREAM)]
    assert sorted(read, key=str) == sorted([*first, ("UA", b"between"), *second], key=str)
    of_one_key = [data for key, data in read if key == "UA"]
    assert of_one_key == [b"page 2", b"page 8", b"page 14", b"page 20", b"between", second[0][1]]
    assert manager.distance(STREAM, "earliest", "latest") == (27, sum(len(d) for _, d in read))
    with manager.create_writer(STREAM, writer_id="page-1") as ours:
        assert (ours.last_event_number, ours.last_note) == (26, "24")
        assert ours.last_note_event_number == 24
        ours.write_event(b"of the package", "UA").result()
    with pytest.raises(format_writer.Refused, match="session 2 follows 1"):
        writer.append([("UA", b"fenced")])
    manager.sweep_stream(STREAM, grace="1 minute")
    assert len(list(manager.read(STREAM))) == 28


TYPED = pa.schema(
    [
        pa.field("carrier", pa.string(), False),
        ("delay", pa.int32()),
        ("left", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(8, 2)),
        ("photo", pa.binary()),
        ("stops", pa.list_(pa.struct([("airport", pa.string())]))),
        ("seats", pa.map_(pa.string(), pa.int16())),
    ]
)
GROWN = pa.schema(
    [
        *list(TYPED)[:5],
        ("stops", pa.list_(pa.struct([("airport", pa.string()), ("gate", pa.int8())]))),
        *list(TYPED)[6:],
        ("day", pa.date32()),
    ]
)


def _flight(number: int, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"carrier": "UA", "delay": number, "price": Decimal("19.90")}
    row |= {"left": datetime(2026, 1, 1, 12, tzinfo=timezone.utc), "photo": b"\x00\xff"}
    row |= {"stops": [{"airport": "ORD"}, None], "seats": {"first": 8, "none": None}}
    return row | values


def _whole(row: dict[str, Any]) -> dict[str, Any]:
    """A row as it is read once the schema has grown."""
    stops = row.get("stops")
    if stops is not None:
        stops = [one and {"airport": one["airport"], "gate": one.get("gate")} for one in stops]
    return {name: row.get(name) for name in GROWN.names} | {"stops": stops}


@pytest.mark.parametrize("base", ["commits", "state", "checkpoint"])
def test_reader_and_writer_of_the_page_know_typed_chunks(
    tmp_path: Path, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of two schemas, cut again and merged, beside those of the writer of the page."""
    manager = StreamManager(tmp_path)
    found = Written(tmp_path, manager)
    manager.create_scope("nyc")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2), schema=TYPED))
    rows = [_flight(0), _flight(1, stops=None, seats={}), {"carrier": "B6"}]
    with manager.create_writer(STREAM) as ours:
        for row in rows:
            ours.write_event(row, "UA").result()
    page = format_writer.Writer(tmp_path, STREAM, "page-1", xxhash.xxh3_64_hexdigest)
    rows += [_flight(3), _flight(4, delay=None, photo=None, left=None)]
    page.append([("UA", row) for row in rows[3:]], "5")
    with manager.create_transactional_writer(STREAM) as transactional:
        late = transactional.begin_transaction()
        late.write_event(_flight(5), "UA")
        late.flush()
        manager.update_stream(STREAM, schema=GROWN)
        manager.scale_stream(STREAM, seal=[0, 1], key_ranges=[(0.0, 0.3), (0.3, 1.0)])
        late.write_table(
            pa.Table.from_pylist([_flight(6, day=date(2026, 1, 2))], GROWN)
            .set_column(0, "carrier", pa.array(["UA"]))
            .append_column("routing_key", pa.array(["UA"]))
        )
        late.commit()
    rows += [_flight(5), _flight(6, day=date(2026, 1, 2))]
    if base != "commits":
        found.tend(checkpoint=base == "checkpoint")
    rows.append(_flight(7, stops=[{"airport": "SFO", "gate": 3}], day=date(2026, 1, 3)))
    page.append([("UA", rows[7])])

    with manager.create_writer(STREAM, writer_id="page-1") as continued:
        assert (continued.last_event_number, continued.last_note) == (3, "5")

    expected = [_whole(row) for row in rows]
    for is_merged in (False, True):
        if is_merged:
            monkeypatch.setattr("pravega_spark.compaction.plan.COMPACT_SETTLE_MS", 0)
            manager.seal_stream(STREAM)
            assert manager.compact_stream(STREAM).ranges > 0
        assert [event.data for event in manager.read(STREAM)] == expected
        read = found.read()
        assert [event.data for part in read.read().values() for event in part] == expected
        assert (read.head(), read.tail()) == (str(manager.head(STREAM)), str(manager.tail(STREAM)))
        assert read.columns is not None
        size = sum(format_columns.row_size(row, read.columns) for row in expected)
        assert manager.distance(STREAM, "earliest", "latest") == (len(rows), size)
    read.columns = [{"name": "carrier", "type": "long"}]
    with pytest.raises(format_reader.Refused, match="is no chunk"):
        read.read()


def test_writers_of_the_page_and_of_the_package_lose_no_race(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("nyc")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))

    def ours() -> None:
        with manager.create_writer(STREAM) as writer:
            for number in range(20):
                writer.write_event(b"ours %d" % number, "UA").result()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(ours)
        theirs = format_writer.Writer(tmp_path, STREAM, "page-1", xxhash.xxh3_64_hexdigest)
        for number in range(10):
            theirs.append([("UA", b"theirs %d" % number)])
        done.result()
    events = [event.data for event in manager.read(STREAM)]
    for name, count in ((b"ours", 20), (b"theirs", 10)):
        assert [e for e in events if e.startswith(name)] == [
            b"%b %d" % (name, n) for n in range(count)
        ]
    table = DeltaTable(str(tmp_path / STREAM / "events"))
    assert table.to_pyarrow_table().num_rows == 30
