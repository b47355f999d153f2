"""Key-value tables on a real S3 server: their whole life, in several processes, and their calls."""

from __future__ import annotations

import itertools

import pytest

from pravega_spark import (
    KeyValueTable,
    KeyValueTableConfiguration,
    StreamManager,
    TableInsert,
    TablePut,
    TableRemove,
)
from pravega_spark.errors import BadKeyVersion, NoSuchKey, NoSuchTable, TableSealed
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.retention.run import RetentionOptions, run_retention
from tests.harness.s3_server import S3Server
from tests.harness.warm_children import FORKED

pytestmark = pytest.mark.s3
T = "s/stock"
_roots = itertools.count(1)


@pytest.fixture
def manager(s3: S3Server) -> StreamManager:
    url = f"s3://{s3.bucket}/tables-{next(_roots)}"
    manager = StreamManager(url, storage_options=s3.options)
    manager.create_scope("s")
    return manager


def increment(manager: StreamManager, times: int) -> None:
    """Increment two counters by compare-and-set; runs in a process of its own."""
    table = manager.key_value_table(T)
    for _ in range(times):
        while True:
            both = table.get_all(["n", "m"], fresh=True)
            assert all(both)
            try:
                table.update(
                    [TablePut(e.key, b"%d" % (int(e.value) + 1), e.version) for e in both if e]
                )
                break
            except (BadKeyVersion, NoSuchKey):
                continue


def fold_and_truncate(manager: StreamManager) -> None:
    """Fold the table, and truncate its change log, as maintenance does."""
    table = manager.key_value_table(T)
    log = table._stream
    ttl_ms = table.configuration.ttl_ms
    assert fold(log, folded_table(log, table.configuration), ttl_ms=ttl_ms).is_published
    run_retention(log, RetentionOptions(root={}))
    assert log.view().head == log.view().tail


def contents(table: KeyValueTable) -> dict[str, bytes]:
    return {str(entry.key): entry.value for entry in table.entries()}


def test_the_whole_life_of_a_table_in_several_processes(manager: StreamManager) -> None:
    assert manager.create_key_value_table(T, KeyValueTableConfiguration("string", partitions=2))
    with manager.key_value_table(T) as table:
        for n in range(50):
            table.put(f"k{n:02}", b"%d" % n)
        table.remove("k07")
        table.flush()
        table.update([TableInsert("n", b"0"), TableInsert("m", b"0")])
        with pytest.raises(BadKeyVersion):
            table.insert("n", b"again")
        version = table.put("cas", b"1").result()
        table.replace("cas", b"2", version)
        with pytest.raises(BadKeyVersion):
            table.remove("cas", version=version)
        expected = {f"k{n:02}": b"%d" % n for n in range(50) if n != 7} | {"cas": b"2"}
        assert list(table.keys(prefix="k1")) == [f"k1{n}" for n in range(10)]
        page = table.keys(low="k00", high="k49")
        first = [next(page) for _ in range(5)]
        rest = list(table.keys(low="k00", high="k49", after=page.continuation))
        assert first + rest == sorted(key for key in expected if key != "cas")
        before = table.at()
        fold_and_truncate(manager)
        table.put("k00", b"new").result()
        expected["k00"] = b"new"
        assert before.get("k00").value == b"0"  # type: ignore[union-attr]

    processes = [FORKED.Process(target=increment, args=(manager, 5)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    expected |= {"n": b"10", "m": b"10"}
    table = manager.key_value_table(T)
    assert table.get("n", fresh=True).value == b"10"  # type: ignore[union-attr]
    assert contents(table) == expected
    fold_and_truncate(manager)
    assert contents(table) == expected

    assert manager.seal_key_value_table(T)
    with pytest.raises(TableSealed):
        table.update([TableRemove("n", table.get("n", fresh=True).version)])  # type: ignore[union-attr]
    assert manager.delete_key_value_table(T)
    with pytest.raises(NoSuchTable):
        table.get("n", fresh=True)
    assert manager.create_key_value_table(T)
    assert list(manager.key_value_table(T).entries()) == []


def test_entries_with_a_ttl_end_by_the_storage_s_time(manager: StreamManager) -> None:
    manager.create_key_value_table(T, KeyValueTableConfiguration("string", ttl="1 day"))
    table = manager.key_value_table(T)
    table.put("a", b"1").result()
    assert table.get("a", fresh=True) is not None
    later = table._index.clock.now_ms() + 2 * 86_400_000
    table._index.clock._measured = (table._stream.runtime.monotonic(), later)
    assert table.get("a", fresh=True) is None
    assert list(table.keys()) == []
    table.insert("a", b"2")  # an expired entry does not exist
    fold_and_truncate(manager)
    state = folded_table(table._stream, table.configuration).read()
    assert state is not None
    assert state.record.rows == 1
