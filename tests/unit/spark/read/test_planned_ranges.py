"""What a plan costs, and what it sends to the tasks, as chunks, segments and streams grow."""

from __future__ import annotations

import pickle
import threading
import zlib
from collections import defaultdict
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.spark.read import partitions
from pravega_spark.spark.read.partitions import EventPartition
from pravega_spark.values.limits import PACKED_ROWS
from tests.harness.small_streams import created, scale, write
from tests.harness.spark_reading import batch_reader, events, fill, first_batch, rows, stream_reader

LARGE = 100 * 1024 * 1024


def name_chunks(stream: StreamLog, count: int, size: int = LARGE) -> None:
    """Append chunks that only the log has, of 1,000 events each."""
    view = stream.view()
    (segment,) = view.active.segments
    folder, made = version_folder(view.version), []
    for _ in range(count):
        token = stream.runtime.token()
        path, footer = f"data/{folder}/{token}-0-0.parquet", f"353-{token[:16]}"
        made.append(StagedChunk(path, segment.segment_id, 1_000, size, 9_000, 5, 6, 0, footer))
    append(stream, view.life, view.version, made)


def ranges(partition: InputPartition) -> tuple[partitions.PlannedRange, ...]:
    assert isinstance(partition, EventPartition)
    return partition.ranges


def micro_batch(root: str, **options: str) -> list[InputPartition]:
    reader = stream_reader(root, **options)
    return reader.partitions(reader.initialOffset(), first_batch(reader))


@pytest.mark.parametrize("parts", ["1", "2000"])
def test_a_plan_looks_at_each_chunk_few_times_however_many_there_are(
    root: str, monkeypatch: pytest.MonkeyPatch, parts: str
) -> None:
    looks = 0

    def end(ref: ChunkRef) -> int:
        nonlocal looks
        looks += 1
        return ref.base_offset + ref.rows

    monkeypatch.setattr(ChunkRef, "end", property(end))
    found = []
    for count in (200, 2_000):
        stream = created(root, f"s/{count}")
        name_chunks(stream, count)
        looks = 0
        planned = batch_reader(root, path=f"s/{count}", minpartitions=parts).partitions()
        assert len(planned) == (2_000 if parts != "1" else count)
        found.append(looks / count)
        last = ranges(planned[-1])[0]
        assert last.rng.end == 1_000 * count
        assert [ref.base_offset for ref in last.refs] == [1_000 * (count - 1)]
    assert found[1] < 20


def test_parts_of_the_keys_carry_few_bytes_a_chunk_and_no_more_for_many(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_CHUNKS", 1_000)
    compress, packs = zlib.compress, []

    def pack(data: bytes, level: int) -> bytes:
        packs.append(len(data))
        return compress(data, level)

    monkeypatch.setattr(zlib, "compress", pack)
    stream, sent = created(root), []
    for _ in range(2):
        name_chunks(stream, 1_000)
        planned = micro_batch(root, minpartitions="64")
        sent.append(sum(len(pickle.dumps(partition)) for partition in planned))
    assert sent[0] < 64 * 1_000 * 80
    assert sent[1] < 1.1 * sent[0]
    assert len(packs) == 2, "once for all parts"


@pytest.mark.parametrize("keys", ["", "k0,k3,k4"])
def test_parts_of_the_keys_find_the_chunks_that_they_do_not_carry(
    root: str, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setattr(partitions, "PARTITION_CHUNKS", 3)
    stream = created(root)
    for i in range(10):
        fill(stream, 10 * i, 10 * i + 10)
    options = {"routingkeys": keys} if keys else {}
    reader = stream_reader(root, minpartitions="4", **options)
    planned = reader.partitions(reader.initialOffset(), first_batch(reader))
    assert [len(one.refs) for each in planned for one in ranges(each)] == [3] * 4
    wanted = [n for n in range(100) if not keys or f"k{n % 5}" in keys]
    found = by_key(rows(reader, planned))
    assert found == {
        f"ak{k}": held for k in range(5) if (held := [n for n in wanted if n % 5 == k])
    }


def by_key(found: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Return the events of each stream and key, in the order of the rows."""
    made: dict[str, list[int]] = defaultdict(list)
    for row in found:
        made[row["stream"] + row["routing_key"]].append(int(row["event"]))
    return made


@pytest.mark.medium
def test_small_segments_and_streams_share_tasks_but_never_below_min_partitions(root: str) -> None:
    wide = created(root, segments=100)
    write(wide, [(f"k{i % 300}", b"%d" % i) for i in range(600)])
    for number in range(30):
        fill(created(root, f"s/n{number}"), 600 + number, 601 + number)
    many = {"path": "", "subscribepattern": "s/n.*"}
    for options, least, events_read in (({}, 2, range(600)), (many, 1, range(600, 630))):
        for wanted, tasks in (("1", least), ("10", 10), ("30", 30)):
            given = {**options, "minpartitions": wanted}
            for planned, reader in (
                (batch_reader(root, **given).partitions(), batch_reader(root, **given)),
                (micro_batch(root, **given), stream_reader(root, **given)),
            ):
                assert len(planned) == tasks
                found = rows(reader, planned)
                assert sorted(events(found)) == [*events_read]
                assert all(held == sorted(held) for held in by_key(found).values())
                counts = [len(rows(reader, [one])) for one in planned]
                assert max(counts) <= 2 * sum(counts) / tasks + 10
    assert len(micro_batch(root, minpartitions="1000")) > 500, "parts of keys are not joined"


def test_a_key_is_in_one_task_and_its_successor_segment_behind_it(root: str) -> None:
    stream = created(root, segments=4)
    write(stream, [(f"k{i % 20}", b"%d" % i) for i in range(100)])
    scale(stream, [1], [(0.25, 0.375), (0.375, 0.5)])
    write(stream, [(f"k{i % 20}", b"%d" % i) for i in range(100, 200)])
    (partition,) = batch_reader(root).partitions()
    found = by_key(rows(batch_reader(root), [partition]))
    assert found == {f"ak{k}": [*range(k, 200, 20)] for k in range(20)}


def test_tasks_are_shared_by_rows_bytes_and_chunks(root: str) -> None:
    rows_each = PACKED_ROWS // 2 - 100
    for number in range(4):
        write(created(root, f"s/rows{number}"), [(None, b"")] * rows_each)
        name_chunks(created(root, f"s/bytes{number}"), 1, size=4_000_000)
        name_chunks(created(root, f"s/chunks{number}"), 30, size=500)
        name_chunks(created(root, f"s/large{number}"), 1)
    for kind, tasks in (("rows", 2), ("bytes", 2), ("chunks", 4), ("large", 4)):
        pattern = {"path": "", "subscribepattern": f"s/{kind}.*"}
        assert len(batch_reader(root, **pattern).partitions()) == tasks, kind
        assert len(micro_batch(root, **pattern)) == tasks, kind
    everything = batch_reader(root, path="", subscribepattern="s/.*").partitions()
    assert sum(len(ranges(one)) for one in everything) == 16
    alone = [r.rng.stream for one in everything if len(ranges(one)) == 1 for r in ranges(one)]
    assert {f"s/large{number}" for number in range(4)} <= {*alone}


def test_a_task_reads_its_ranges_at_the_same_time_from_an_object_store(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        fill(created(root, f"s/n{number:02}"), number, number + 1)
    reader = batch_reader(root, path="", subscribepattern="s/n.*")
    planned = reader.partitions()
    assert len(planned) == 1
    together, read = threading.Barrier(16, timeout=30), LocalStore.get_many
    first = iter(range(16))

    def get_many(store: LocalStore, keys: Any) -> Any:
        if any(key.endswith(".parquet") for key in keys) and next(first, None) is not None:
            together.wait()
        return read(store, keys)

    monkeypatch.setattr(LocalStore, "is_local", False)
    monkeypatch.setattr(LocalStore, "get_many", get_many)
    assert events(rows(reader, planned)) == [*range(20)]
