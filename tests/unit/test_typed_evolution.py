"""Whatever happens around a change of schema, every row stays, in the order of its key."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_spark import (
    EncryptionPolicy,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
    StreamSchema,
    set_kms,
)
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.format import TypedEvent, format_of
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.key_management import KMS_VARIABLE
from pravega_spark.engine.writing.append import reroute
from pravega_spark.errors import CorruptChunk, KeyUnavailable, TruncatedData
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.manager import root_of
from tests.harness import file_kms
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.file_kms import MasterKeys
from tests.harness.offering import commit_offers, offer_table
from tests.harness.tiers import sized

S = "s/t"
VERSIONS = [
    pa.schema([("name", pa.string()), ("n", pa.int64())]),
    pa.schema([("name", pa.string()), ("n", pa.int64()), ("at", pa.struct([("x", pa.int32())]))]),
    pa.schema(
        [
            ("name", pa.string()),
            ("n", pa.int64()),
            ("at", pa.struct([("x", pa.int32()), ("y", pa.string())])),
            ("tags", pa.list_(pa.string())),
        ]
    ),
]
LAST = VERSIONS[-1]
Row = dict[str, Any]


def new_root(runtime: FakeRuntime | None = None, segments: int = 2, **fields: Any) -> StreamManager:
    manager = manager_of(runtime or FakeRuntime())
    manager.create_scope("s")
    policy = ScalingPolicy.fixed(segments)
    manager.create_stream(S, StreamConfiguration(policy, schema=VERSIONS[0], **fields))
    return manager


def row_of(version: int, key: str, n: int) -> Row:
    """Return a row as a writer of this version of the schema writes it."""
    row: Row = {"name": key, "n": n}
    if version:
        row["at"] = {"x": n % 7} if version == 1 else {"x": None, "y": f"y{n}"}
    if version == 2:
        row["tags"] = [f"t{n}", None]
    return row


def as_read(row: Row) -> Row:
    """Return a row as a reader of the last version of the schema reads it."""
    at = row.get("at")
    return {**dict.fromkeys(LAST.names), **row, "at": at and {"y": None, **at}}


class Story:
    """One stream with writers of every version of its schema, and what they wrote of each key."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.manager = new_root(self.runtime)
        self.version = self.count = 0
        self.writers = [self.manager.create_writer(S)]
        self.wanted: dict[str, list[Row]] = defaultdict(list)
        self.transactional = self.manager.create_transactional_writer(S)
        self.transaction: Any = None
        self.in_transaction: list[Row] = []
        self.group = self.manager.create_reader_group("s/g", [S])
        self.seen: dict[str, list[Row]] = defaultdict(list)

    def _row(self, version: int) -> Row:
        self.count += 1
        return row_of(version, f"k{self.count % 5}", self.count)

    def write(self, version: int) -> None:
        version = min(version, self.version)
        row = self._row(version)
        self.writers[version].write_event(row, row["name"]).result()
        self.wanted[row["name"]].append(row)

    def table(self, version: int) -> None:
        version = min(version, self.version)
        rows = [self._row(version) for _ in range(7)]
        table = pa.Table.from_pylist(rows, VERSIONS[version])
        self.writers[version].write_table(table, routing_key="name").result()
        for row in rows:
            self.wanted[row["name"]].append(row)

    def grow(self, _: int) -> None:
        if self.version < 2:
            self.version += 1
            assert self.manager.update_stream(S, schema=VERSIONS[self.version])
            self.writers.append(self.manager.create_writer(S))

    def scale(self, at: int) -> None:
        middle = (at + 1) / 8
        segments = self.manager.stream(S).segments()
        self.manager.scale_stream(S, segments, [(0.0, middle), (middle, 1.0)])

    def begin(self, version: int) -> None:
        self.transaction = self.transaction or self.transactional.begin_transaction()
        row = self._row(min(version, self.version))
        self.transaction.write_event(row, row["name"])
        if version == 1:
            self.transaction.flush()
        self.in_transaction.append(row)

    def commit(self, _: int) -> None:
        if self.transaction is not None:
            self.transaction.commit()
            for row in self.in_transaction:
                self.wanted[row["name"]].append(row)
            self.transaction, self.in_transaction = None, []

    def compact(self, _: int) -> None:
        self.runtime.sleep(120)
        assert self.manager.stream(S).compact().skipped == ()

    def read_group(self, version: int) -> None:
        with self.group.create_reader(f"r{self.count}-{version}") as reader:
            while (event := reader.read_next_event(0).event) is not None:
                self.seen[event.data["name"]].append(event.data)

    def end(self) -> None:
        self.commit(0)
        for writer in self.writers:
            writer.close()
        self.transactional.close()
        self.read_group(9)


def rows_of(manager: StreamManager) -> tuple[dict[str, list[Row]], int]:
    """Return the rows of each key in their order, and the bytes of all."""
    found: dict[str, list[Row]] = defaultdict(list)
    sizes = 0
    for event in manager.read(S):
        found[event.data["name"]].append(event.data)
        sizes += event.size_bytes
    return found, sizes


OPERATIONS = ("write", "table", "grow", "scale", "begin", "commit", "compact", "read_group")
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2)), min_size=4, max_size=18)


@pytest.mark.medium
@given(STEPS)
@settings(max_examples=sized(15, 300))
def test_every_row_stays_in_the_order_of_its_key(steps: list[tuple[str, int]]) -> None:
    story = Story()
    for name, choice in steps:
        getattr(story, name)(choice)
    story.end()
    for _ in range(2 - story.version):
        story.grow(0)
    wanted = {key: [as_read(row) for row in rows] for key, rows in story.wanted.items()}
    found, sizes = rows_of(story.manager)
    assert found == wanted
    assert sizes == story.manager.stream_info(S).size_bytes
    numbers = {key: [row["n"] for row in rows] for key, rows in wanted.items()}
    assert {k: [row["n"] for row in rows] for k, rows in story.seen.items()} == numbers
    story.manager.seal_stream(S)
    story.compact(0)
    assert rows_of(story.manager) == (wanted, sizes)
    again = story.manager.read_table(S, where=pc.field("n") > story.count // 2)
    late = sorted(n for each in numbers.values() for n in each if n > story.count // 2)
    assert sorted(again.column("n").to_pylist()) == late


@pytest.mark.parametrize("version", [0, 1])
def test_a_chunk_of_an_older_schema_is_cut_again_for_new_segments(version: int) -> None:
    manager = new_root(segments=1)
    if version:
        manager.update_stream(S, schema=VERSIONS[1])
    stream = root_of(manager).stream(S)
    view = stream.view()
    rows = [row_of(version, f"k{n}", n) for n in range(20)]
    columns = format_of(StreamSchema.of(VERSIONS[version]))
    assert columns.schema is not None
    payload = columns.schema.conform_rows(rows)
    events = columns.encode(
        [row["name"] for row in rows], [1_000_000] * 20, _checked(columns.schema, rows)
    )
    assert events.select(payload.schema.names).to_pylist() == payload.to_pylist()
    ((segment_id, part),) = split(events, Router(view.active.segments))
    folder = version_folder(view.version)
    chunks = stage(stream.store, stream.path, folder, segment_id, part, name="old")
    manager.update_stream(S, schema=LAST)
    manager.update_stream(S, scaling=ScalingPolicy.fixed(2))
    found = reroute(stream, stream.view(), view.version, chunks, {})
    assert len(found) == 2
    assert sum(chunk.event_bytes for chunk in found) == sum(chunk.event_bytes for chunk in chunks)


def _checked(schema: StreamSchema, rows: list[Row]) -> Any:
    return [TypedEvent(*schema.check_row(row)) for row in rows]


def test_an_offer_with_an_older_schema_is_committed_by_another_writer() -> None:
    manager = new_root(segments=1)
    stream = root_of(manager).stream(S)
    columns = format_of(StreamSchema.of(VERSIONS[0]))
    assert columns.schema is not None
    rows = [row_of(0, f"k{n}", n) for n in range(20)]
    keys = [row["name"] for row in rows]
    events = columns.encode(keys, [1_000_000] * 20, _checked(columns.schema, rows))
    manager.update_stream(S, schema=LAST)
    offer_table(stream, events)
    commit_offers(stream)
    found = [event.data for event in manager.read(S)]
    assert found == [as_read(row) for row in rows]


def test_a_writer_continues_by_its_number_and_its_rows_are_never_written_twice() -> None:
    manager = new_root()
    writer = manager.create_writer(S, "loader")
    writer.write_event(row_of(0, "k", 1), "k").result()
    writer.flush("at 1")
    manager.update_stream(S, schema=LAST)
    with manager.create_writer(S, "loader") as again:
        assert (again.last_event_number, again.last_note) == (1, "at 1")
        again.write_event(row_of(2, "k", 2), "k").result()
        assert again.last_event_number == 2
    assert [event.data["n"] for event in manager.read(S)] == [1, 2]


def test_truncation_and_retention_by_size_go_to_the_row() -> None:
    manager = new_root(segments=1)
    with manager.create_writer(S) as writer:
        table = pa.table({"name": ["k"] * 100, "n": range(100)})
        writer.write_table(table, routing_key="name").result()
    size = 1 + 8
    assert manager.stream_info(S).size_bytes == 100 * size
    cut = manager.create_reader(S).next_cut("earliest", 30)
    manager.truncate_stream(S, cut)
    assert manager.stream_info(S).size_bytes == manager.stream_info(S).events * size
    first = next(manager.read(S)).data["n"]
    assert first == 100 - manager.stream_info(S).events
    assert manager.distance(S, "earliest", "latest")[1] == (100 - first) * size
    with pytest.raises(TruncatedData):
        list(manager.read(S, "s/t@1:0#0=0"))


def test_retention_by_size_keeps_the_newest_bytes() -> None:
    policy = RetentionPolicy.by_size(90, 95)
    manager = new_root(segments=1, retention=policy)
    with manager.create_writer(S) as writer:
        writer.write_table(pa.table({"name": ["k"] * 100, "n": range(100)})).result()
    manager.retention(S).run()
    assert manager.stream_info(S).size_bytes == 90
    assert [event.data["n"] for event in manager.read(S)] == [*range(90, 100)]


def test_a_backup_and_its_restored_copy_have_the_schema(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(schema=VERSIONS[0]))
    with manager.create_writer(S) as writer:
        writer.write_event(row_of(0, "k", 1), "k").result()
    manager.update_stream(S, schema=LAST)
    with manager.create_writer(S) as writer:
        writer.write_event(row_of(2, "k", 2), "k").result()
    manager.backup(str(tmp_path / "copy"))
    copy = StreamManager(tmp_path / "copy")
    assert copy.stream_info(S).configuration.schema == StreamSchema.of(LAST)
    rows = [as_read(row_of(0, "k", 1)), as_read(row_of(2, "k", 2))]
    assert [event.data for event in copy.read(S)] == rows
    with copy.create_writer(S) as writer:
        writer.write_event(row_of(2, "k", 3), "k").result()
    assert copy.stream_info(S).events == 3


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MasterKeys]:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv(KMS_VARIABLE, file_kms.FACTORY)
    set_kms(None)
    yield MasterKeys(tmp_path / "keys.json")
    set_kms(None)


def test_all_columns_of_an_encrypted_stream_are_encrypted(tmp_path: Path, keys: MasterKeys) -> None:
    manager = StreamManager(tmp_path / "root", runtime=FakeRuntime())
    manager.create_scope("s")
    policy = EncryptionPolicy("first")
    manager.create_stream(S, StreamConfiguration(encryption=policy, schema=LAST))
    row = {"name": "MARK", "n": 7, "at": {"x": 1, "y": "MARK-y"}, "tags": ["MARK-tag"]}
    with manager.create_writer(S) as writer:
        writer.write_event(row, "MARK").result()
        writer.write_table(pa.Table.from_pylist([row] * 50, LAST), routing_key="name").result()
    manager.seal_stream(S)
    root_of(manager).runtime.sleep(120)
    assert manager.compact_stream(S).ranges == 1
    data = [path for path in (tmp_path / "root").rglob("*.parquet") if "data" in path.parts]
    assert data
    assert not [path for path in data if b"MARK" in path.read_bytes()]
    assert [event.data for event in manager.read(S)] == [row] * 51
    assert manager.read_table(S, where=pc.field("n") == 7).num_rows == 51
    keys.set(second="another")
    set_kms(None)
    with pytest.raises(KeyUnavailable, match="first"):
        list(manager.read(S))
    assert manager.read_table(S, columns=["offset", "timestamp"]).num_rows == 51


def test_a_damaged_row_is_never_read(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root", runtime=FakeRuntime())
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(schema=VERSIONS[0]))
    with manager.create_writer(S) as writer:
        writer.write_event({"name": "VALUE-" * 9, "n": 1}, "k").result()
    (file,) = (tmp_path / "root" / S / "events" / "data").rglob("*.parquet")
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    file.write_bytes(content[:footer].replace(b"VALUE-", b"WRONG-") + content[footer:])
    with pytest.raises(CorruptChunk):
        list(manager.read(S))
    found = [
        damage.path
        for one in check_root(root_of(manager).store, deep=True)
        for damage in one.damage
    ]
    assert [path for path in found if path.endswith(file.name)]


_READ = """
import sys
from pravega_spark import StreamManager

assert [event.data["n"] for event in StreamManager(sys.argv[1]).read("s/t")] == [*range(50), 7]
print("pandas" in sys.modules)
"""


@pytest.mark.medium
def test_rows_are_read_without_pandas(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(schema=LAST))
    with manager.create_writer(S) as writer:
        writer.write_table(pa.Table.from_pylist([row_of(2, "k", n) for n in range(50)], LAST))
        writer.flush()
        writer.write_event({"n": 7}).result()
    command = [sys.executable, "-c", _READ, str(tmp_path / "root")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "False\n"
