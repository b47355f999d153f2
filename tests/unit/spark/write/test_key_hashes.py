"""Rows of one key in a write to a key-value table, found without holding all keys."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.stream_sweep import sweep_stream
from pravega_spark.errors import InvalidInput, StagedTooLate, StoreError
from pravega_spark.integrity.root_integrity import check_root
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.spark.key_value import key_hashes, sink
from pravega_spark.spark.key_value.key_hashes import KeyHashes, hashes_that_come_twice
from pravega_spark.spark.key_value.sink import UpsertMessage
from pravega_spark.spark.key_value.source import KeyValueDataSource
from tests.harness.releases import run_release
from tests.harness.spark_writing import schema

TABLE = "s/stock"
LOG = "s/_kv_tables/stock"


@pytest.fixture(autouse=True)
def _few_hashes() -> Iterator[None]:
    """Let a task store 40 hashes, in runs of 100, so that small writes show what large ones do."""
    limits: dict[str, Any] = {
        "MESSAGE_KEYS": 40,
        "KEY_RUN_ROWS": 100,
        "KEY_BLOCK_ROWS": 8,
        "KEY_MERGE_ROWS": 64,
    }
    with patch.multiple(key_hashes, **limits):
        yield


def table(root: Path, key_type: str = "string") -> Any:
    manager = StreamManager(root)
    manager.create_scope("s")
    configuration = KeyValueTableConfiguration(partitions=2, key_type=key_type)
    assert manager.create_key_value_table(TABLE, configuration)
    return manager.key_value_table(TABLE)


def writer_of(root: Path, key_type: str = "string", **options: str) -> Any:
    """Return a batch writer as a task has it, by pickle."""
    source = KeyValueDataSource({"root": str(root), "path": TABLE, **options})
    kind = {"string": "string", "long": "long"}[key_type]
    return pickle.loads(pickle.dumps(source.writer(schema(key=kind, value="binary"), False)))


def batches(keys: Any, rows: int = 50) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(keys), rows):
        part = keys[at : at + rows]
        yield pa.record_batch([pa.array(part), pa.array([b"v"] * len(part))], ["key", "value"])


def stored(root: Path) -> list[str]:
    return [entry.key for entry in open_store(str(root)).list("s") if "hashes" in entry.key]


@pytest.mark.parametrize("key_type", ["string", "long"])
def test_many_hashes_are_stored_and_few_are_sent(tmp_path: Path, key_type: str) -> None:
    stock, writer = table(tmp_path, key_type), writer_of(tmp_path, key_type)
    tasks = [range(0, 250), range(250, 280), range(280, 600)]
    named = [[f"k{n}" for n in task] if key_type == "string" else list(task) for task in tasks]
    messages: list[UpsertMessage] = [writer.write(batches(keys)) for keys in named]
    assert [len(message.hashes) // 8 for message in messages] == [0, 30, 20]
    assert [[run.rows for run in message.runs] for message in messages] == [
        [100, 100, 50],
        [],
        [100] * 3,
    ]
    keys = [run.key for message in messages for run in message.runs]
    assert sorted(keys) == stored(tmp_path)
    assert all("/data/v0" in key and key.endswith(".hashes") for key in keys)
    writer.commit(pickle.loads(pickle.dumps(messages)))
    assert stored(tmp_path) == []
    assert len(list(stock.keys())) == 600


@pytest.mark.parametrize("key_type", ["string", "long"])
@pytest.mark.parametrize("again", [3, 130, 299])
def test_a_key_of_two_tasks_is_named(tmp_path: Path, key_type: str, again: int) -> None:
    stock, writer = table(tmp_path, key_type), writer_of(tmp_path, key_type)
    name = (lambda n: f"k{n}") if key_type == "string" else int
    first, second = [name(n) for n in range(300)], [name(n) for n in range(300, 500)]
    messages = [writer.write(batches(first)), writer.write(batches([*second, name(again)]))]
    with pytest.raises(InvalidInput, match=f"two rows of one key, such as {name(again)!r}"):
        writer.commit(messages)
    assert list(stock.keys()) == []
    assert stored(tmp_path) == [], "the driver deletes them, whatever they show"


def test_a_small_write_stores_nothing_more(tmp_path: Path) -> None:
    table(tmp_path)
    puts: list[str] = []
    put = LocalStore.put

    def counted(store: LocalStore, key: str, data: Any, **options: Any) -> None:
        puts.append(key)
        put(store, key, data, **options)

    writer = writer_of(tmp_path)
    with patch.object(LocalStore, "put", counted), patch.object(LocalStore, "delete", None):
        writer.commit([writer.write(batches([f"k{n}" for n in range(40)]))])
    assert len([key for key in puts if "/data/" in key]) == 2, "a chunk of each segment"


def test_the_last_wins_without_any_hash(tmp_path: Path) -> None:
    stock, writer = table(tmp_path), writer_of(tmp_path, duplicatekeys="last")
    message = writer.write(batches(["k"] * 300))
    assert (message.hashes, message.runs) == (b"", [])
    writer.commit([message])
    assert list(stock.keys()) == ["k"]


def test_all_rows_of_one_key_are_found_in_bounded_memory(tmp_path: Path) -> None:
    table(tmp_path)
    writer = writer_of(tmp_path)
    message = writer.write(batches(["k"] * 1_000))
    with pytest.raises(InvalidInput, match="such as 'k'"):
        writer.commit([message])


def test_different_keys_of_one_hash_are_no_repetition(tmp_path: Path) -> None:
    stock, writer = table(tmp_path), writer_of(tmp_path)
    with (
        patch("pravega_spark.spark.key_value.columns._digest", lambda *key: len(key[0]) % 2),
        patch.object(sink, "_SUSPECTS", 1),
    ):
        writer.commit([writer.write(batches([f"k{n}" for n in range(200)]))])
        assert len(list(stock.keys())) == 200
        twice = writer_of(tmp_path)
        with pytest.raises(InvalidInput, match="such as 'k7'"):
            twice.commit([twice.write(batches([*(f"k{n}" for n in range(200)), "k7"]))])


def test_the_order_of_the_hashes_is_used_and_they_are_not_hashed_again(tmp_path: Path) -> None:
    """``np.unique`` took nine tenths of the search where many tasks have a run each."""
    store = LocalStore(str(tmp_path))
    tasks = [KeyHashes(store, "hashes") for _ in range(9)]
    for number, task in enumerate(tasks):
        task.add(np.arange(number, number + 300 * 9, 9, dtype=np.uint64))
        task.add(np.full(2, 2**64 - 1, np.uint64))
    messages = [task.finish() for task in tasks]
    runs = [run for task in tasks for run in task.runs]
    with patch.object(np, "unique", side_effect=AssertionError):
        found = list(hashes_that_come_twice(store, messages, runs))
    assert set(np.concatenate(found).tolist()) == {2**64 - 1}


def test_a_run_that_is_gone_or_damaged_ends_the_write(tmp_path: Path) -> None:
    stock, writer = table(tmp_path), writer_of(tmp_path)
    message = writer.write(batches([f"k{n}" for n in range(300)]))
    path = tmp_path / message.runs[1].key
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(StoreError, match=r"hashes of keys .* is damaged"):
        writer.commit([message])
    path.write_bytes(whole[:-8])
    with pytest.raises(StoreError, match="is damaged"):
        writer.commit([message])
    path.unlink()
    with pytest.raises(StagedTooLate, match="deleted by a sweep"):
        writer.commit([message])
    assert list(stock.keys()) == []


SWEEP = """
import sys
import pravega_spark
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.stream_sweep import sweep_stream

table = pravega_spark.StreamManager(sys.argv[1]).key_value_table("s/stock")
table.put("other", b"v").result()
print(len(list(table.keys())))
stream = open_stream(sys.argv[1], "s/_kv_tables/stock")
sweep_stream(stream, grace_ms=0, retain_ms=0, completed_ms=0)
"""


def test_what_killed_tasks_leave_is_swept_by_the_previous_release(tmp_path: Path) -> None:
    table(tmp_path)
    writer = writer_of(tmp_path)
    writer.write(batches([f"lost{n}" for n in range(300)]))
    with patch.object(LocalStore, "delete", side_effect=StoreError("no")):  # nor by the driver
        writer.commit([writer.write(batches([f"k{n}" for n in range(300)]))])
    assert len(stored(tmp_path)) == 6
    found = check_root(open_store(str(tmp_path)), deep=True)
    assert [one.damage for one in found if one.damage] == []
    assert run_release("0.1.0", SWEEP, tmp_path) == "301\n"
    assert stored(tmp_path) == []
    assert len(list(StreamManager(tmp_path).key_value_table(TABLE).keys())) == 301


def test_what_killed_tasks_leave_is_swept(tmp_path: Path) -> None:
    stock, writer = table(tmp_path), writer_of(tmp_path)
    writer.write(batches([f"lost{n}" for n in range(300)]))
    stock.put("k", b"v").result()
    stream = open_stream(str(tmp_path), LOG)
    sweep_stream(stream, grace_ms=0, retain_ms=0, completed_ms=0)
    assert stored(tmp_path) == []
    assert list(stock.keys()) == ["k"]


@given(
    st.lists(st.lists(st.integers(0, 60), max_size=300), max_size=5),
    st.lists(st.integers(0, 60), max_size=30),
)
def test_all_that_comes_twice_is_found(tasks: list[list[int]], few: list[int]) -> None:
    store = MemoryStore()
    collected = [KeyHashes(store, f"a{n}") for n in range(len(tasks))]
    for hashes, task in zip(collected, tasks, strict=True):
        for at in range(0, len(task), 30):
            hashes.add(np.array(task[at : at + 30], np.uint64) << np.uint64(58))
    sent = [hashes.finish() for hashes in collected]
    sent.append((np.array(few, np.uint64) << np.uint64(58)).tobytes())
    runs = [run for hashes in collected for run in hashes.runs]
    found = {int(n) for part in hashes_that_come_twice(store, sent, runs) for n in part}
    every = [(n << 58) % (1 << 64) for task in [*tasks, few] for n in task]
    assert found == {n for n in every if every.count(n) > 1}


def test_a_part_and_a_block_of_each_run_are_in_memory() -> None:
    store, most = MemoryStore(), 0
    hashes = KeyHashes(store, "a")
    for _ in range(100):
        hashes.add(np.random.default_rng().integers(0, 1 << 63, 100).astype(np.uint64))
    sort = np.sort

    def watched(values: Any) -> Any:
        nonlocal most
        most = max(most, len(values))
        return sort(values)

    with patch.object(np, "sort", watched):
        list(hashes_that_come_twice(store, [hashes.finish()], hashes.runs))
    assert len(hashes.runs) == 100
    assert most <= 64 + 100 * 8, "of 10,000"
