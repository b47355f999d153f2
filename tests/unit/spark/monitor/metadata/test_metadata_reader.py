"""Metadata tables as Spark's processes read them, without Spark: planned, pickled, read."""

from __future__ import annotations

import pickle
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.state.maintenance_table import MaintenanceTable, open_maintenance
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stored_bytes import StorageKind
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.errors import NoSuchStream
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.scaling.auto import explain_scaling, run_scaling
from pravega_spark.spark.monitor.metadata import reader as metadata_reader
from pravega_spark.spark.monitor.metadata import streams
from pravega_spark.spark.monitor.metadata.reader import TABLES, MetadataReader
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.versions import arrow_schema
from pravega_spark.values.segments import StreamCut, make_segment_id
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.folder_state import write_times
from tests.harness.group_world import membership_of
from tests.harness.loads import load, stream_with
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import created, make_stream, scale, write
from tests.harness.spy_store import Spy

Row = dict[str, Any]


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path)
    for scope in ("s", "other"):
        manager.create_scope(scope)
    return manager


def fill(stream: StreamLog, count: int) -> None:
    write(stream, [(f"k{i}", b"12345") for i in range(count)])


def rows(manager: StreamManager, table: str, **options: str) -> list[Row]:
    source = PravegaDataSource({"root": manager.root, "metadata": table, **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, MetadataReader)
    found: list[Row] = []
    for partition in reader.partitions():
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            found += batch.to_pylist()
    return found


def consume(manager: StreamManager, group: str, events: int) -> None:
    """Let a reader of the group read this number of events and leave."""
    with manager.reader_group(group).create_reader("r") as reader:
        for _ in range(events):
            assert reader.read_next_event(timeout=5.0).event is not None


def test_groups_have_one_row_each_with_their_state(manager: StreamManager) -> None:
    created(manager.root, segments=3)
    created(manager.root, "other/b")
    group = manager.create_reader_group("s/g", ["s/a", "other/b"], retention="automatic")
    manager.create_reader_group("other/h", ["other/b"])
    manager.create_reader_group("s/deleted", ["s/a"])
    manager.delete_reader_group("s/deleted")
    with group.create_reader("r1") as reader:
        group.initiate_checkpoint("nightly")
        assert reader.read_next_event(timeout=5.0).checkpoint == "nightly"
        reader.read_next_event(timeout=0.0)
        found = {row["group"]: row for row in rows(manager, "ReaderGroups")}
    assert list(found) == ["other/h", "s/g"]
    row = found["s/g"]
    assert (row["scope"], row["generation"], row["state"]) == ("s", 0, "ACTIVE")
    assert (row["retention"], row["streams"]) == ("automatic", ["other/b", "s/a"])
    assert (row["readers"], row["assigned"], row["unassigned"]) == (["r1"], 4, 0)
    assert (row["last_checkpoint"], row["at_end"]) == ("nightly", False)
    assert datetime.now(timezone.utc) - row["updated"] < timedelta(minutes=5)
    assert found["other/h"]["readers"] == []


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, ["other/h", "s/g"]),
        ({"scope": "s"}, ["s/g"]),
        ({"path": "other"}, ["other/h"]),
        ({"stream": "s/a"}, ["s/g"]),
        ({"subscribe": "other/b"}, ["other/h", "s/g"]),
        ({"subscribePattern": ".*/a"}, ["s/g"]),
        ({"subscribePattern": "none/.*"}, []),
    ],
)
def test_groups_are_selected_by_scope_or_by_the_streams_they_read(
    manager: StreamManager, options: dict[str, str], groups: list[str]
) -> None:
    created(manager.root)
    created(manager.root, "other/b")
    manager.create_reader_group("s/g", ["s/a", "other/b"])
    manager.create_reader_group("other/h", ["other/b"])
    assert [row["group"] for row in rows(manager, "ReaderGroups", **options)] == groups
    lag = {(row["group"], f"{row['scope']}/{row['stream']}") for row in rows(manager, "Lag")}
    assert lag == {("s/g", "s/a"), ("s/g", "other/b"), ("other/h", "other/b")}
    narrow = rows(manager, "Lag", **options)
    assert {row["group"] for row in narrow} == set(groups)
    if "stream" in options:
        assert {row["stream"] for row in narrow} == {"a"}


LOAD = ("events_r2", "bytes_r20", "hot", "cold", "muted_until", "cooldown_until", "load_time")


@pytest.mark.medium
def test_segments_have_the_load_that_the_scaling_job_stored(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    stream = stream_with(ScalingPolicy.by_event_rate(100, 2, 2), store, runtime)
    monkeypatch.setattr(streams, "open_stream", lambda *_: StreamLog(store, "s/t", runtime))

    def found() -> dict[str, Row]:
        rows_of = TABLES["Segments"].rows_of_stream
        assert rows_of is not None
        rows = pa.RecordBatch.from_pylist(
            list(rows_of(manager, "s/t")),
            schema=arrow_schema(TABLES["Segments"].schema),
        )
        return {row["segment"]: row for row in rows.to_pylist()}

    load(stream, seconds=1_300, rate=300)
    for row in found().values():
        assert [row[name] for name in LOAD] == [None] * len(LOAD), "the job never ran"
    explain_scaling(stream)
    assert found()["0#0"]["hot"] is None, "a dry run stores nothing"
    result = run_scaling(stream)
    rates = {row["segment"]: row for row in result.rows()}
    before = found()
    assert before["0#0"]["sealed"]
    assert [before["0#0"][name] for name in LOAD] == [None] * len(LOAD)
    assert before["2#1"]["hot"] is None, "it is younger than the stored rates"
    assert rates["0#0"]["r2"] == pytest.approx(150, rel=0.2)

    load(stream, seconds=60, rate=30)
    run_scaling(stream)
    row = found()["2#1"]
    assert (row["sealed"], row["hot"], row["cold"]) == (False, False, False)
    assert row["events_r2"] == pytest.approx(7.5, rel=0.5)
    assert row["bytes_r20"] == pytest.approx(100 * row["events_r20"])
    assert row["cooldown_until"] > row["load_time"] < row["muted_until"]
    assert row["load_time"] == datetime.fromtimestamp(runtime.wall_ms / 1_000, timezone.utc)

    runtime.sleep(1_300)  # silence
    row = found()["2#1"]
    assert (row["hot"], row["cold"]) == (False, True)
    assert (row["muted_until"], row["cooldown_until"]) == (None, None)
    load(stream, seconds=10, rate=1)
    assert found()["2#1"]["load_time"] < row["load_time"], "commits came since the job's last run"


def test_load_costs_one_call_for_each_stream_that_the_job_scales(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, runtime = Spy(), FakeRuntime()
    names = [f"s/t{n}" for n in range(100)]
    for n, name in enumerate(names):
        policy = ScalingPolicy.fixed(1) if n < 60 else ScalingPolicy.by_event_rate(1)
        stream = make_stream(store, runtime, name=name)
        lifecycle.update(stream, StreamConfiguration(policy))
        if n >= 90:
            lifecycle.seal(stream)
    opened = {name: StreamLog(store, name, runtime) for name in names}
    monkeypatch.setattr(streams, "open_stream", lambda _, name: opened[name])
    rows_of = TABLES["Segments"].rows_of_stream
    assert rows_of is not None
    for name in names:
        opened[name].view()
    store.calls.clear()
    for name in names:
        assert len(list(rows_of(manager, name))) == 1
    rates = store.count("get", "rates.json")
    assert rates == 30, "not for the 60 of a fixed number of segments, nor for the 10 sealed ones"
    assert len(store.calls) == 100 + rates, "and one look for a newer version of each stream"


def test_stream_info_has_the_version_of_the_configuration(manager: StreamManager) -> None:
    created(manager.root)
    manager.update_stream("s/a", add_tags=["eu"])
    (row,) = rows(manager, "StreamInfo")
    assert row["tags"] == ["eu"]
    assert row["configuration_version"] == manager.stream_info("s/a").configuration_version == 1


def test_each_schema_of_a_typed_stream_is_a_row(manager: StreamManager) -> None:
    columns = pa.schema([pa.field("carrier", pa.string(), False)])
    manager.create_scope("typed")
    manager.create_stream("typed/a", StreamConfiguration(schema=columns))
    manager.update_stream("typed/a", schema=columns.append(pa.field("delay", pa.int32())))
    found = [row for row in rows(manager, "Schemas") if row["stream"] == "a"]
    assert [(row["number"], row["version"], row["active"], row["columns"]) for row in found] == [
        (1, 0, False, "carrier string not null"),
        (2, 1, True, "carrier string not null, delay int"),
    ]
    assert found[0]["schema"] == StreamSchema.of(columns).to_json()
    assert not [row for row in rows(manager, "Schemas") if row["scope"] != "typed"]


def test_epochs_have_one_row_each_also_after_a_truncation(manager: StreamManager) -> None:
    stream = created(manager.root)
    scale(stream, [0], [(0.0, 0.25), (0.25, 1.0)])
    scale(stream, stream.view().active.segment_ids, [(0.0, 1.0)])
    manager.truncate_stream("s/a", StreamCut.LATEST)
    found = rows(manager, "Epochs")
    assert [(row["epoch"], row["splits"], row["merges"]) for row in found] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
    ]
    assert [(row["active"], row["truncated"]) for row in found] == [
        (False, True),
        (False, True),
        (True, False),
    ]
    assert [row["ended"] for row in found] == [*(row["created"] for row in found[1:]), None]
    assert [cell["segment"] for cell in found[1]["segments"]] == ["1#1", "2#1"]
    assert found[1]["segments"][1] == {
        "segment": "2#1",
        "segment_id": make_segment_id(2, 1),
        "key_low": 0.25,
        "key_high": 1.0,
    }
    epochs = manager.epochs("s/a")
    assert [row["created"].timestamp() * 1_000 for row in found] == [e.created_ms for e in epochs]


def test_segments_have_the_times_at_which_they_were_created_and_sealed(
    manager: StreamManager,
) -> None:
    created(manager.root)
    manager.scale_stream("s/a", ["0#0"], [(0.0, 0.5), (0.5, 1.0)])
    for last in ("1#1", "3#2"):
        manager.scale_stream("s/a", [last], [(0.0, 0.5)])
    manager.truncate_stream("s/a", StreamCut("s/a", 1, {4 + (3 << 32): 0, 2 + (1 << 32): 0}))
    manager.scale_stream("s/a", ["2#1"], [(0.5, 1.0)])
    manager.truncate_stream("s/a", "latest")  # 2#1 stays in epoch 3, and epoch 1 is in the history
    manager.seal_stream("s/a")
    times = {epoch.number: epoch.created_ms for epoch in manager.epochs("s/a")}
    found = {row["segment"]: row for row in rows(manager, "Segments")}
    assert list(found) == ["2#1", "4#3", "5#4"]
    for segment, sealed_epoch in (("2#1", 4), ("4#3", 4), ("5#4", 4)):
        row, info = found[segment], manager.segment("s/a", segment)
        assert (row["sealed"], row["sealed_epoch"], info.sealed_epoch) == (
            True,
            *[sealed_epoch] * 2,
        )
        assert (row["key_low"], row["key_high"]) == (info.key_range.low, info.key_range.high)
        assert row["created"].timestamp() * 1_000 == info.created_ms == times[row["epoch"]]
        assert row["sealed_time"].timestamp() * 1_000 == info.sealed_ms
    assert found["2#1"]["sealed_time"].timestamp() * 1_000 == times[4]
    assert found["4#3"]["sealed_time"] == found["5#4"]["sealed_time"] > found["2#1"]["sealed_time"]


def test_segments_have_their_head_offsets_after_a_truncation(manager: StreamManager) -> None:
    stream = created(manager.root, segments=2)
    fill(stream, 20)
    view = scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    _, _, last = view.active.segments
    halfway = view.segment(last.segment_id).next_offset // 2
    new = {s.segment_id: 0 for s in view.active.segments if s != last}
    manager.truncate_stream("s/a", StreamCut("s/a", 1, {**new, last.segment_id: halfway}))
    found = {row["segment"]: row["head_offset"] for row in rows(manager, "Segments")}
    end = view.segment(0).next_offset
    assert end > 0 < halfway
    assert found == {"0#0": end, "1#0": halfway, "2#1": 0, "3#1": 0}


def test_named_stream_that_does_not_exist_is_an_error(manager: StreamManager) -> None:
    for table in ("ReaderGroups", "Lag", "StreamCuts", "Transactions"):
        with pytest.raises(NoSuchStream, match="s/typo"):
            rows(manager, table, stream="s/typo")


@pytest.mark.medium
def test_lag_counts_the_last_heartbeat_of_a_reader_as_the_group_does(
    manager: StreamManager,
) -> None:
    stream = created(manager.root)
    fill(stream, 40)
    group = manager.create_reader_group("s/g", ["s/a"], checkpoint_interval=None)
    with group.create_reader("r", lease=5) as reader:
        end = time.monotonic() + 60
        taken = 0
        while group.lag().events == 40:
            assert time.monotonic() < end
            taken += reader.read_next_event(0.1).event is not None
        (row,) = rows(manager, "Lag")
        assert (row["state"], row["reader"]) == ("assigned", "r")
        assert row["lag"] == group.lag().events == 40 - row["current_offset"] < 40
        assert row["current_offset"] <= taken


def test_lag_has_each_segment_before_and_after_it_was_read(manager: StreamManager) -> None:
    stream = created(manager.root, segments=2)
    fill(stream, 40)
    group = manager.create_reader_group("s/g", ["s/a"])
    consume(manager, "s/g", 15)
    scale(stream, [0, 1], [(0.0, 1.0)])
    fill(stream, 5)
    found = rows(manager, "Lag")
    assert [(row["segment"], row["state"]) for row in found] == [
        ("0#0", "unassigned"),
        ("1#0", "unassigned"),
        ("2#1", "future"),
    ]
    assert sum(row["current_offset"] or 0 for row in found) == 15
    for row in found:
        assert row["lag"] == row["next_offset"] - (row["current_offset"] or 0)
        assert row["lag_bytes"] == 5 * row["lag"]
        assert 0 < row["lag_seconds"] < 300
    assert sum(row["lag"] for row in found) == group.lag().events == 30
    consume(manager, "s/g", 30)
    (row,) = rows(manager, "Lag")
    assert (row["segment"], row["lag"], row["lag_bytes"], row["lag_seconds"]) == ("2#1", 0, 0, 0.0)
    assert (row["current_offset"], row["head_offset"], row["next_offset"]) == (5, 0, 5)


def test_lag_of_a_deleted_stream_has_positions_only(manager: StreamManager) -> None:
    fill(created(manager.root), 3)
    manager.create_reader_group("s/g", ["s/a"])
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    (row,) = rows(manager, "Lag")
    assert (row["segment"], row["current_offset"]) == ("0#0", 0)
    assert (row["lag"], row["next_offset"]) == (None, None)
    created(manager.root, segments=2)
    assert rows(manager, "Lag") == [row], "the group is in the earlier life"


def test_every_recorded_cut_can_start_a_read(manager: StreamManager) -> None:
    stream = created(manager.root)
    fill(stream, 10)
    spans = {"s/a": (None, manager.tail("s/a"))}
    group = manager.create_reader_group("s/g", spans, refresh="1 ms")
    subscribe(stream, "s/g", 1, start=StreamCut("s/a", 1, {0: 2}))
    with group.create_reader("r1") as reader:
        for _ in range(4):
            reader.read_next_event(timeout=5.0)
        group.initiate_checkpoint("nightly")
        before = 4
        while reader.read_next_event(timeout=5.0).checkpoint != "nightly":
            before += 1  # the reader refreshes its group's state in the background
            time.sleep(0.002)
            if (refreshes := membership_of(reader).refreshes).is_running:
                refreshes.wait()
        for _ in range(7 - before):
            reader.read_next_event(timeout=5.0)
    publish(stream, "s/g", 1, StreamCut("s/a", 1, {0: 3}))
    manager.subscribe("s/a", "nightly-batch", StreamCut("s/a", 1, {0: 4}))
    manager.truncate_stream("s/a", StreamCut("s/a", 1, {0: 1}))
    weekly = StreamConfiguration(retention=RetentionPolicy.by_time("7 days"))
    manager.update_stream("s/a", weekly)
    manager.retention("s/a").run()
    fill(stream, 2)
    manager.save_cut("s/a", "third", StreamCut("s/a", 1, {0: 3}))
    found = rows(manager, "StreamCuts")
    events = {(row["kind"], row["holder"], row["name"]): row["events"] for row in found}
    assert events == {
        ("head", None, None): 11,
        ("tail", None, None): 0,
        ("subscriber", "nightly-batch", None): 8,
        ("subscriber", "s/g", None): 9,
        ("sample", None, None): 2,
        ("saved", None, "third"): 9,
        ("position", "s/g", None): 5,
        ("end", "s/g", None): 2,
        ("checkpoint", "s/g", "nightly"): 12 - before,
    }
    for row in found:
        left = list(manager.read("s/a", row["cut"]))
        assert len(left) == row["events"]
    timed = {row["kind"] for row in found if row["time"] is not None}
    assert timed == {"head", "tail", "subscriber", "sample", "saved"}


def test_cut_below_the_head_counts_from_the_head_and_an_incomplete_checkpoint_has_no_cut(
    manager: StreamManager,
) -> None:
    fill(created(manager.root), 10)
    group = manager.create_reader_group("s/g", ["s/a"])
    with group.create_reader("r1"):
        group.initiate_checkpoint("unanswered")
        manager.truncate_stream("s/a", StreamCut("s/a", 1, {0: 4}))
        found = {row["kind"]: row["events"] for row in rows(manager, "StreamCuts")}
    assert found == {"head": 6, "tail": 0, "position": 6}


def test_cuts_are_selected_by_stream_in_any_scope_of_the_group(manager: StreamManager) -> None:
    created(manager.root)
    created(manager.root, "other/b")
    manager.create_reader_group("other/g", ["s/a", "other/b"])
    found = rows(manager, "StreamCuts", scope="s")
    assert {(row["scope"], row["kind"]) for row in found} == {
        ("s", "head"),
        ("s", "tail"),
        ("s", "position"),
    }


def test_transactions_have_status_lease_and_outcome(manager: StreamManager) -> None:
    stream = created(manager.root)
    writer = manager.create_transactional_writer("s/a", "w1")
    with writer:
        with writer.begin_transaction(lease="60 s") as done:
            done.write_event(b"12345", routing_key="k")
        dropped = writer.begin_transaction()
        dropped.abort()
        scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
        opened = writer.begin_transaction(lease="30 s")
        opened.write_event(b"123", routing_key="k")
        opened.flush()
        opened.ping()
        found = {row["transaction"]: row for row in rows(manager, "Transactions", stream="s/a")}
        opened.abort()
    assert {name: row["status"] for name, row in found.items()} == {
        done.id: "COMMITTED",
        dropped.id: "ABORTED",
        opened.id: "OPEN",
    }
    assert {row["writer"] for row in found.values()} == {"w1"}
    assert (found[done.id]["events"], found[done.id]["size_bytes"]) == (1, 5)
    assert found[done.id]["ended"] >= found[done.id]["created"]
    assert found[dropped.id]["reason"]
    row = found[opened.id]
    assert (row["epoch"], row["events"], row["lease_seconds"]) == (1, 1, 30.0)
    assert (row["ended"], row["version"]) == (None, None)
    assert 0 <= row["lease_age_seconds"] < 30


def test_joint_transactions_have_their_streams_and_those_that_lack_the_outcome(
    manager: StreamManager,
) -> None:
    for name in ("s/a", "other/b"):
        created(manager.root, name)
    assert rows(manager, "JointTransactions") == []
    with manager.create_joint_writer(["s/a", "other/b"]) as writer:
        decided = writer.begin_transaction(max_execution="100 s")
        decided.write_event("s/a", b"1")
        decided.write_event("other/b", b"1")
        (row,) = rows(manager, "JointTransactions")
        assert (row["transaction"], row["status"]) == (decided.id, "OPEN")
        assert row["streams"] == row["pending"] == ["other/b", "s/a"]
        assert (row["limit_seconds"], row["decision"]) == (100.0, None)
        assert row["created"] <= datetime.now(timezone.utc)
        assert 0 <= row["age_seconds"] < 600
        (part,) = rows(manager, "Transactions", stream="s/a")
        assert (part["transaction"], part["joint"]) == (decided.part_ids["s/a"], decided.id)
        with at_failpoint("joint.decided", kill), pytest.raises(Killed):
            decided.commit()
        (row,) = rows(manager, "JointTransactions")
        assert (row["status"], row["pending"]) == ("COMMITTING", row["streams"])
        assert row["decision"] is not None
        manager.sweep_transactions("s/a")
        (row,) = rows(manager, "JointTransactions")
        assert (row["status"], row["pending"]) == ("COMMITTING", ["other/b"])
        manager.seal_stream("other/b")
        manager.delete_stream("other/b")
        (row,) = rows(manager, "JointTransactions")
        assert (row["status"], row["pending"]) == ("COMMITTED", [])
    manager.sweep_scope("s")
    manager.maintain(kinds=["transactions"])
    assert rows(manager, "JointTransactions") == []


def test_joint_transactions_have_the_groups_whose_positions_they_acknowledge(
    manager: StreamManager,
) -> None:
    for name in ("s/a", "s/b"):
        created(manager.root, name)
    group = manager.create_reader_group("s/makers", ["s/a"], acknowledge="transaction")
    with (
        manager.create_joint_writer(["s/b"]) as writer,
        group.create_reader("r", lease=None) as reader,
    ):
        decided = writer.begin_transaction(readers=[reader])
        (row,) = rows(manager, "JointTransactions")
        assert (row["streams"], row["groups"], row["pending"]) == (["s/b"], ["s/makers"], ["s/b"])
        with at_failpoint("joint.decided", kill), pytest.raises(Killed):
            decided.commit()
        manager.sweep_transactions("s/b")
        (row,) = rows(manager, "JointTransactions")
        assert (row["status"], row["pending"]) == ("COMMITTING", ["s/makers"])
        group.reader_offline("r")
        (row,) = rows(manager, "JointTransactions")
        assert (row["status"], row["pending"]) == ("COMMITTED", [])


def test_storage_counts_large_events_and_their_bytes_and_segments_have_the_tail_of_bytes(
    manager: StreamManager,
) -> None:
    created(manager.root)
    film = bytes(9 << 20)
    with manager.create_writer("s/a", large_events=True) as writer:
        for event in (b"small", film, film):
            writer.write_event(event)
    with manager.create_byte_writer("s/a") as writer:
        writer.write(b"bytes")
    kinds = {row["kind"]: row for row in rows(manager, "Storage", stream="s/a")}
    assert (kinds["live"]["large_events"], kinds["live"]["large_bytes"]) == (2, 2 * len(film))
    assert kinds["live"]["size_bytes"] > kinds["live"]["large_bytes"]
    assert {row["large_events"] for kind, row in kinds.items() if kind != "live"} == {0}
    with manager.create_byte_reader("s/a") as reader:
        (row,) = rows(manager, "Segments", stream="s/a")
        assert row["size_bytes"] == reader.fetch_tail_offset() == 2 * len(film) + 10
        manager.truncate_stream("s/a", StreamCut("s/a", 1, {0: 2}))
        (info,) = rows(manager, "StreamInfo", stream="s/a")
        at_head = reader.fetch_tail_offset() - reader.fetch_head_offset()
        assert info["size_bytes"] == at_head == len(film) + 5
    kinds = {row["kind"]: row for row in rows(manager, "Storage", stream="s/a")}
    assert kinds["retained"]["large_bytes"] == kinds["live"]["large_bytes"] == len(film)


def settled(folder: Path) -> dict[Path, int]:
    """Return when each file was last written, once threads in the background write no more."""
    found = write_times(folder)
    while True:
        time.sleep(0.2)
        before, found = found, write_times(folder)
        if found == before:
            return found


def test_reading_metadata_writes_nothing(manager: StreamManager, tmp_path: Path) -> None:
    fill(created(manager.root), 3)
    manager.create_reader_group("s/g", ["s/a"])
    with manager.create_writer("s/a", "noting") as noting:
        noting.note_time(1_700_000_000_000)
        noting.flush()
        manager.event_time("s/a").update()
    manager.create_key_value_table("s/kv")
    manager.create_stream("s/typed", StreamConfiguration(schema=pa.schema([("n", pa.int64())])))
    joint = manager.create_joint_writer(["s/a"])
    with joint, manager.create_transactional_writer("s/a") as writer:
        writer.begin_transaction()
        joint.begin_transaction()
        before = settled(tmp_path)
        for table in TABLES:
            assert rows(manager, table)
        assert write_times(tmp_path) == before


def test_names_are_spread_over_tasks(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_reader, "NAMES_PER_TASK", 2)
    names = [f"s/a{i}" for i in range(5)]
    for name in names:
        created(manager.root, name)
    manager.create_reader_group("s/g", names)
    source = PravegaDataSource({"root": manager.root, "metadata": "StreamCuts"})
    reader = source.reader(source.schema())
    assert len(reader.partitions()) == 4
    found = rows(manager, "StreamCuts")
    assert len(found) == len({(row["stream"], row["kind"]) for row in found}) == 15


def test_settings_have_a_row_for_each_stream_with_their_origin(manager: StreamManager) -> None:
    created(manager.root)
    created(manager.root, "other/b")
    manager.update_settings(grace="2 hours")
    manager.update_stream("s/a", settings={"grace": "3 hours", "expire": "never"})
    found = {(row["stream"], row["setting"]): row for row in rows(manager, "Settings")}
    row = found["a", "grace"]
    assert (row["value"], row["value_ms"], row["origin"]) == ("3 hours", 10_800_000, "stream")
    assert (row["scope"], row["default"]) == ("s", "1 day")
    assert found["b", "grace"]["origin"] == "root"
    assert found["b", "retain"]["origin"] == "default"
    expire = found["a", "expire"]
    assert (expire["value"], expire["value_ms"], expire["origin"]) == ("never", None, "stream")
    assert {row["stream"] for row in rows(manager, "Settings", stream="s/a")} == {"a"}


def test_storage_has_a_row_for_each_stream_and_kind_and_stream_info_counts_live_files(
    manager: StreamManager,
) -> None:
    created(manager.root)
    created(manager.root, "other/b")
    with manager.create_writer("s/a") as writer:
        writer.write_event(b"x", "k")
    found = {(row["stream"], row["kind"]): row for row in rows(manager, "Storage")}
    assert {kind for _, kind in found} == {kind.value for kind in StorageKind}
    (info,) = rows(manager, "StreamInfo", stream="s/a")
    live = found["a", "live"]
    assert (live["files"], live["size_bytes"]) == (info["files"], info["file_bytes"])
    assert live["files"] == 1
    assert "no retention policy" in live["reason"]
    assert (found["b", "swept"]["files"], found["b", "swept"]["reason"]) == (0, None)
    manager.truncate_stream("s/a", manager.tail("s/a"))
    kinds = {row["kind"]: row for row in rows(manager, "Storage", stream="s/a")}
    assert kinds["retained"]["files"] == 1
    assert kinds["retained"]["deletable"] > datetime.now(timezone.utc) + timedelta(days=29)


def test_the_frame_of_maintenance_has_a_row_for_each_kind_and_lag_says_what_is_overdue(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = StreamConfiguration(retention=RetentionPolicy.by_time("7 days"))
    manager.create_stream("s/kept", kept)
    manager.create_stream("s/plain")
    manager.create_reader_group("s/g", ["s/kept", "s/plain"])
    for name in ("s/kept", "s/plain"):
        with manager.create_writer(name) as writer:
            writer.write_event(b"x", "k").result()
    record = open_maintenance(root_of(manager).store)
    started_ms = root_of(manager).store.time_ms() - 5_000
    failures = {"stream s/kept": "StoreError: disk full"}
    record.finish_now(MaintenanceKind.RETENTION, (None,), "job", started_ms, 2, failures)
    retention, scaling, transactions, *_ = rows(manager, "Maintenance")
    assert (retention["kind"], retention["scope"], retention["overdue"]) == (
        "retention",
        None,
        False,
    )
    assert (retention["streams"], retention["failed"]) == (2, 1)
    assert retention["failures"] == '{"stream s/kept": "StoreError: disk full"}'
    assert 0 <= retention["age_seconds"] < 600
    assert (retention["finished"] - retention["started"]).total_seconds() >= 5
    assert (scaling["kind"], scaling["finished"], scaling["overdue"]) == ("scaling", None, False)
    assert transactions["interval_seconds"] == 60.0
    assert {row["overdue"] for row in rows(manager, "Lag")} == {None}
    monkeypatch.setattr(MaintenanceTable, "about_now_ms", lambda table: started_ms + 2 * 86_400_000)
    overdue = {row["stream"]: row["overdue"] for row in rows(manager, "Lag")}
    assert rows(manager, "Maintenance")[1]["overdue"] is True
    assert overdue == {"kept": "retention has not run for 2.0 days", "plain": None}
