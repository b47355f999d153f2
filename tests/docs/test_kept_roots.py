"""Roots that earlier releases wrote are read, and continued, by this one (docs/FORMAT.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pravega_spark import StreamManager, StreamSchema
from tests.harness import format_reader, kept_roots
from tests.harness.kept_roots import BYTES, GROUP, STATE, STREAM, TABLE, TYPED
from tests.harness.releases import run_release

TREE = Path(__file__).parents[2]


@pytest.fixture(params=kept_roots.names())
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return kept_roots.unpack(request.param, tmp_path)


def test_root_of_each_format_is_kept() -> None:
    assert {name.partition("-")[0] for name in kept_roots.names()} == {"1"}
    assert {"1-early", "1-0.1.0", "1-0.1.0-columns"} <= set(kept_roots.names())


def test_kept_root_reads_as_the_release_that_wrote_it_read_it(kept: Path) -> None:
    listed = json.loads((kept_roots.FOLDER / f"{kept.name}.json").read_text(encoding="utf-8"))
    assert kept_roots.describe(kept) == listed
    assert len(listed["events"]) >= 12
    by_the_page = format_reader.Stream(kept, STREAM)
    assert (by_the_page.head(), by_the_page.tail()) == (listed["head"], listed["tail"])
    read = {f"{STREAM}@1:{key}" for key in _cells(by_the_page.read())}
    assert read == {pointer for pointer, *_ in listed["events"]}


def test_state_file_of_a_kept_root_suffices_where_commits_were_cleaned_away(kept: Path) -> None:
    events = kept / STREAM / "events"
    listed = json.loads((kept_roots.FOLDER / f"{kept.name}.json").read_text(encoding="utf-8"))
    (checkpoint,) = (events / "_pravega/checkpoint").iterdir()
    for version in range(1, int(checkpoint.stem)):
        (events / f"_delta_log/{version:020d}.json").unlink()
    checkpoint.unlink()
    manager = StreamManager(kept)
    assert (str(manager.head(STREAM)), str(manager.tail(STREAM))) == (
        listed["head"],
        listed["tail"],
    )
    assert len(list(manager.read(STREAM))) == len(listed["events"])


def _cells(events: dict[int, list[format_reader.Event]]) -> list[str]:
    return [
        f"{segment & 0xFFFFFFFF}#{segment >> 32}={event.offset}"
        for segment, found in events.items()
        for event in found
    ]


@pytest.mark.medium
def test_kept_root_is_continued_by_every_verb(kept: Path) -> None:
    manager = StreamManager(kept)
    before = [event.data for event in manager.read(STREAM)]
    old_tail = manager.tail(STREAM)
    with manager.create_writer(STREAM, writer_id="ingest-1") as writer:
        assert (writer.last_event_number, writer.last_note) == (50, "orders.csv:40")
        writer.write_event(b"third", "customer 1").result()
    with (
        manager.create_transactional_writer(STREAM) as transactional,
        transactional.begin_transaction() as transaction,
    ):
        transaction.write_event(b"paid again", "customer 1")
    manager.scale_stream(STREAM, seal=["2#1", "3#1"], key_ranges=[(0.0, 0.5)])
    with manager.reader_group(GROUP).create_reader("reader-2") as reader:
        unread = []
        while (event := reader.read_next_event(timeout=0.2).event) is not None:
            unread.append(event.data)
    assert [data for data in unread if data not in before] == [b"third", b"paid again"]
    assert manager.truncate_stream(STREAM, old_tail).events == len(before)
    manager.compact_stream(STREAM)
    manager.sweep_stream(STREAM)
    assert not manager.maintain().failures
    again = StreamManager(kept)
    assert [event.data for event in again.read(STREAM)] == [b"third", b"paid again"]
    assert DeltaTable(str(kept / STREAM / "events")).version() == again.stream_info(STREAM).version


def test_objects_of_a_kept_root_beside_its_stream_are_continued(tmp_path: Path) -> None:
    kept = kept_roots.unpack("1-0.1.0", tmp_path)
    manager = StreamManager(kept)
    with manager.key_value_table(TABLE) as table:
        entry = table.get("tea")
        assert entry is not None
        table.replace("tea", b"2.60", entry.version)
        assert table.get("tea").value == b"2.60"  # type: ignore[union-attr]
    with manager.create_byte_writer(BYTES, "upload-1") as file:
        assert file.acknowledged_bytes == 1000
        file.write(b"the rest")
    assert manager.create_byte_reader(BYTES).fetch_tail_offset() == 1008
    with manager.state_synchronizer(STATE, lambda state, step: state + step) as counter:
        counter.update_state_unconditionally([1])
        counter.fetch_updates()
        assert counter.get_state() == 43


def test_rows_of_a_kept_root_are_read_by_the_page_and_continued(tmp_path: Path) -> None:
    kept = kept_roots.unpack("1-0.1.0-columns", tmp_path)
    listed = json.loads((kept_roots.FOLDER / f"{kept.name}.json").read_text(encoding="utf-8"))
    by_the_page = format_reader.Stream(kept, TYPED).read()
    read = [
        json.loads(json.dumps(event.data, default=str))
        for part in by_the_page.values()
        for event in part
    ]
    by_item = {row["item"]: row for _, _, _, row in listed["rows"]}
    assert {row["item"]: row for row in read} == by_item
    assert len(read) == len(by_item) == 23

    manager = StreamManager(kept)
    grown = StreamSchema.from_ddl(f"{listed['schemas'][-1]}, till int")
    assert manager.update_stream(TYPED, schema=grown)
    assert [str(version.schema) for version in manager.schemas(TYPED)][:2] == listed["schemas"]
    with manager.create_writer(TYPED, "till-1") as writer:
        assert writer.last_event_number == 22
        writer.write_event({"item": "new", "till": 3}, "key 1").result()
    with (
        manager.create_transactional_writer(TYPED) as transactional,
        transactional.begin_transaction() as transaction,
    ):
        transaction.write_table(pa.table({"item": ["newest"], "routing_key": ["key 1"]}))
        manager.scale_stream(TYPED, ["2#3", "3#3"], [(0.0, 0.5), (0.5, 1.0)])
    manager.seal_stream(TYPED)
    manager.compact_stream(TYPED)
    assert not manager.maintain().failures
    rows = [event.data for event in StreamManager(kept).read(TYPED)]
    items = [row["item"] for row in rows if row["item"] in ("first 1", "rolled", "new", "newest")]
    assert items == ["first 1", "rolled", "new", "newest"]
    assert [row["till"] for row in rows if row["till"] is not None] == [3]
    assert len(rows) == 25


DESCRIBE = """
import json, sys
from pathlib import Path
from tests.harness.kept_roots import describe
print(json.dumps(describe(Path(sys.argv[1]))))
"""


@pytest.mark.medium
def test_root_of_this_release_reads_the_same_in_the_release_before(tmp_path: Path) -> None:
    kept_roots.write_root(tmp_path)
    mine = json.loads(json.dumps(kept_roots.describe(tmp_path)))
    assert len(mine["events"]) >= 12
    assert {"bytes", "counter", "schemas", "rows", "table"} <= mine.keys()
    assert json.loads(run_release("0.1.0", DESCRIBE, tmp_path, more=(TREE,))) == mine
