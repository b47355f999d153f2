"""Delta checkpoints: round trips, damage, and what other engines read from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.delta_checkpoint import (
    ADD,
    CheckpointLayer,
    add_rows,
    checkpoint_key,
    decode_checkpoint,
    digest_key,
    encode_checkpoint,
    encode_digest,
    rows_without,
)
from pravega_spark.engine.log.files import cell_of, position_of
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.small_streams import make_stream, write
from tests.harness.small_tables import event_add, put, table_log

CHUNKS = st.lists(st.tuples(st.sampled_from([0, 1, 5 << 32 | 3]), st.integers(1, 5)), max_size=30)


def filled(chunks: list[tuple[int, int]]) -> list[Add]:
    ends: dict[int, int] = {}
    adds = []
    for n, (segment, rows) in enumerate(chunks):
        base = ends.get(segment, 0)
        adds.append(event_add(f"f{n}", segment, base, rows))
        ends[segment] = base + rows
    return adds


def layer_of(*parts: pa.StructArray) -> CheckpointLayer:
    """Return the layer of a checkpoint with a row group for each part."""
    sink = pa.BufferOutputStream()
    state = pa.table([pa.nulls(1, ADD)], names=["add"])
    with pq.ParquetWriter(sink, state.schema) as writer:
        writer.write_table(state)
        for rows in parts:
            if len(rows):
                writer.write_table(pa.table([rows], names=["add"]))
    return CheckpointLayer(pq.ParquetFile(pa.BufferReader(sink.getvalue())))


@given(CHUNKS, st.integers(0, 40), st.integers(1, 20), st.sets(st.integers(0, 29)))
def test_layer_of_a_checkpoint_finds_the_same_files_as_a_plain_search(
    chunks: list[tuple[int, int]], start: int, length: int, removed: set[int]
) -> None:
    adds = filled(chunks)
    parts = [add_rows(part) for part in (adds[::-2], adds[-2::-2])]  # two row groups, in disorder
    layer = layer_of(*parts)
    end = start + length

    for segment in (0, 1, 5 << 32 | 3, 99):
        wanted = [
            add.path
            for add in adds
            if int(add.partition["segment_id"]) == segment
            and int(add.partition["base_offset"]) < end
            and int(add.partition["base_offset"]) + int((add.tags or {})["rows"]) > start
        ]
        assert [add.path for add in layer.find(segment, start, end)] == wanted
        assert layer.cells(segment, start, end) == [
            cell_of(add) for add in adds if add.path in wanted
        ]
    in_order = sorted(adds, key=position_of)
    assert [add.path for add in layer.all()] == [add.path for add in in_order]
    paths = {f"f{n}" for n in removed}
    kept = rows_without(add_rows(adds), paths).field("path").to_pylist()
    assert sorted(kept) == sorted({add.path for add in adds} - paths)
    assert len(layer) == len(adds)


def test_checkpoint_reads_back_as_the_same_state_and_files() -> None:
    log = table_log(MemoryStore())
    put(log, "x", filled([(0, 2), (1, 3)]))
    snapshot = log.refresh()
    assert snapshot is not None
    data, actions = encode_checkpoint(snapshot, map(add_rows, ([], filled([(0, 2), (1, 3)]))))
    checkpoint = decode_checkpoint(1, data.to_pybytes(), encode_digest(snapshot, data, actions))

    assert checkpoint is not None
    read = checkpoint.snapshot()
    assert (read.version, read.token, read.timestamp_ms) == (1, snapshot.token, 1_700_000_000_001)
    assert read.domains == snapshot.domains
    assert read.protocol == snapshot.protocol
    for name, value in snapshot.metadata.items():
        assert read.metadata[name] == value
    assert [add.path for add in checkpoint.layer().all()] == ["f0", "f1"]


@given(st.data())
def test_checkpoint_or_digest_with_any_changed_byte_is_not_used(data: st.DataObject) -> None:
    log = table_log(MemoryStore())
    snapshot = log.snapshot
    assert snapshot is not None
    buffer, actions = encode_checkpoint(snapshot, [])
    good, record = buffer.to_pybytes(), encode_digest(snapshot, buffer, actions)
    which = data.draw(st.sampled_from(["data", "digest"]))
    bad = good if which == "data" else record
    at = data.draw(st.integers(0, len(bad) - (1 if which == "data" else 2)))
    bad = bad[:at] + bytes([bad[at] ^ 1 << data.draw(st.integers(0, 7))]) + bad[at + 1 :]

    assert decode_checkpoint(0, *((bad, record) if which == "data" else (good, bad))) is None
    assert decode_checkpoint(1, good, record) is None


def files_without_state_files(log: Log, version: int) -> list[str]:
    """Delete the state files, open the log, and return the paths of its live files."""
    for entry in log.store.list(f"{log.path}/_pravega/state"):
        log.store.delete([entry.key])
    opened = Log(log.store, log.path, FakeRuntime())
    snapshot = opened.refresh()
    assert snapshot is not None
    assert snapshot.version == version
    with opened.files() as files:
        return sorted(add.path for add in files.all())


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("part", ["checkpoint", "digest", "digest missing", "other commit"])
def test_torn_or_foreign_checkpoint_costs_time_and_no_data(part: str) -> None:
    store = MemoryStore()
    log = table_log(store)
    for n in range(6):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
        if n in (1, 4):
            maintain(log.reader, n, checkpoint=True)
    key, digest = checkpoint_key(log.path, 4), digest_key(log.path, 4)
    if part == "checkpoint":
        store.put(key, half(store.get(key)))
    elif part == "digest":
        store.put(digest, half(store.get(digest)))
    elif part == "digest missing":
        store.delete([digest])
    else:  # the log was restored from a copy, and has another version 4
        newer = Log(store, log.path, FakeRuntime())
        newer.refresh()
        for version in (4, 5, 6):
            store.delete([log.reader.key(version)])
        again = table_log(store)
        for n in (3, 4, 5):
            put(again, str(n), [event_add(f"f{n}", 0, n, 1)])

    assert log.reader.checkpoint(4) is None
    assert log.reader.checkpoint(1) is not None
    assert files_without_state_files(log, 6) == [f"f{n}" for n in range(6)]


def delta_rows(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(str(path), version=version)
    rows = table.to_pyarrow_table().to_pylist()
    return sorted(
        ({"segment": r["segment_id"], "offset": r["base_offset"] + r["offset_delta"],
          "event": r["event"]} for r in rows), key=lambda r: (r["segment"], r["offset"])
    )  # fmt: skip


@pytest.mark.medium
def test_delta_rs_reads_the_same_events_with_and_without_checkpoints(
    tmp_path: Path,
) -> None:
    stream = make_stream(LocalStore(str(tmp_path)), segments=2)
    for n in range(9):
        write(stream, [(f"k{i}", b"%d-%d" % (n, i)) for i in range(4)])
    path = tmp_path / stream.path
    before = [delta_rows(path, version) for version in range(10)]
    for version in (3, 6, 9):
        maintain(stream.log.reader, version, checkpoint=True)

    assert [len(rows) for rows in before] == [4 * n for n in range(10)]
    assert [delta_rows(path, version) for version in range(10)] == before
    for version in (1, 2):  # the rest must suffice for other Delta readers
        stream.store.delete([stream.log.reader.key(version)])
    assert [delta_rows(path, version) for version in range(3, 10)] == before[3:]
    assert delta_rows(path) == before[9]


def test_checkpoint_of_delta_rs_is_ignored_and_the_state_is_kept(
    tmp_path: Path,
) -> None:
    stream = make_stream(LocalStore(str(tmp_path)))
    for n in range(5):
        write(stream, [("k", b"%d" % n)])
    path = tmp_path / stream.path
    table = deltalake.DeltaTable(str(path))
    table.create_checkpoint()
    table.cleanup_metadata()
    assert (path / "_delta_log" / "00000000000000000005.checkpoint.parquet").exists()
    assert json.loads((path / "_delta_log" / "_last_checkpoint").read_text())["version"] == 5

    write(stream, [("k", b"5")])
    maintain(stream.log.reader, 6, checkpoint=False)
    opened = make_stream(LocalStore(str(tmp_path)))
    assert opened.view().version == 6
    assert opened.view().tail == stream.view().tail
    assert stream.log.reader.checkpoint(5) is None
    assert len(delta_rows(path)) == 6

    # Our own checkpoint replaces it under the same name.
    maintain(stream.log.reader, 5, checkpoint=True)
    assert stream.log.reader.checkpoint(5) is not None
    assert len(delta_rows(path, 5)) == 5


def test_delta_rs_reads_metadata_and_protocol_from_a_checkpoint(tmp_path: Path) -> None:
    stream = make_stream(LocalStore(str(tmp_path)))
    maintain(stream.log.reader, 0, checkpoint=True)
    table = deltalake.DeltaTable(str(tmp_path / stream.path))

    assert table.metadata().partition_columns == ["segment_id", "base_offset"]
    assert table.protocol().min_writer_version == 7
    assert "pravega-stream" in (table.protocol().writer_features or [])
    assert pa.schema(table.schema().to_arrow()).names == [
        "segment_id", "base_offset", "offset_delta", "routing_key", "timestamp", "event"
    ]  # fmt: skip


def test_checkpoint_of_any_size_holds_one_row_group_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.delta_checkpoint._ROW_GROUP_ROWS", 1_000)
    snapshot = table_log(MemoryStore()).snapshot
    assert snapshot is not None
    part = filled([(0, 1)] * 100)
    held: list[int] = []

    def rows() -> Iterator[pa.StructArray]:
        for _ in range(300):
            held.append(pa.total_allocated_bytes())
            yield add_rows(part)

    data, actions = encode_checkpoint(snapshot, rows())
    assert actions - len(snapshot.domains) - 2 == 30_000
    checkpoint = decode_checkpoint(0, data.to_pybytes(), encode_digest(snapshot, data, actions))
    assert checkpoint is not None
    assert [len(group) for group in checkpoint.row_groups()] == [1_000] * 30
    group_bytes = 10 * add_rows(part).nbytes
    file_bytes = 2 * len(data)  # the file itself grows in memory, whose pieces double
    assert max(held[100:]) - min(held[:10]) < 2 * group_bytes + file_bytes
