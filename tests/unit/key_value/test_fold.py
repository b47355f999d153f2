from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark import StreamManager
from pravega_spark.engine.kinds import FOLD_SUBSCRIBER
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchStream, StaleIdentity
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.key_value import fold as fold_due_module
from pravega_spark.key_value.changes import encode_change
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import NEVER, FoldDue, fold, fold_due
from pravega_spark.key_value.folded_table import FoldedTable
from pravega_spark.key_value.keys import KeyType, TableKey
from pravega_spark.manager import root_of
from pravega_spark.retention.run import RetentionOptions, run_retention
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.folded_tables import scanned

NAME, LOG = "shop/stock", "shop/_kv_tables/stock"


def shop(runtime: FakeRuntime, **options: Any) -> StreamManager:
    manager = manager_of(runtime)
    manager.create_scope("shop")
    options.setdefault("key_type", "string")
    manager.create_key_value_table(NAME, KeyValueTableConfiguration(**options))
    return manager


def opened(manager: StreamManager, runtime: FakeRuntime) -> tuple[StreamLog, FoldedTable]:
    """Return the log and the folded table as another process opens them."""
    store = root_of(manager).store
    folded = FoldedTable(store, f"{LOG}/table", KeyType.STRING, False, runtime, file_bytes=5_000)
    return StreamLog(store, LOG, runtime), folded


def values(state: Any) -> dict[str, bytes]:
    return {key.primary.decode(): change.value or b"" for key, change in scanned(state).items()}


def write(manager: StreamManager, changes: dict[str, bytes | None]) -> None:
    table = manager.key_value_table(NAME)
    for key, value in changes.items():
        done = table.remove(key) if value is None else table.put(key, value)
        done.result()


def test_a_fold_makes_the_table_a_dict_and_lets_the_log_be_truncated() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime, partitions=2)
    write(manager, {"a": b"1", "b": b"2", "c": b"3"})
    write(manager, {"a": None, "b": b"two"})
    log, folded = opened(manager, runtime)
    assert folded.read() is None
    done = fold(log, folded)
    assert done.is_published
    assert done.events == 5
    state = folded.read()
    assert state is not None
    assert values(state) == {"b": b"two", "c": b"3"}
    assert state.cut == log.view().tail
    run_retention(log, RetentionOptions(root={}))
    assert log.view().head == state.cut
    write(manager, {"d": b"4"})
    assert fold(log, folded).events == 1
    assert values(folded.read()) == {"b": b"two", "c": b"3", "d": b"4"}
    again = fold(log, folded)
    assert again.merge is None
    assert not again.is_published


def _value(table: Any, key: str) -> bytes:
    entry = table.get(key)
    assert entry is not None
    value: bytes = entry.value
    return value


def test_gets_and_iterators_see_the_fold_under_the_log() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime)
    table = manager.key_value_table(NAME)
    for key in "abcdef":
        table.put(key, key.encode()).result()
    log, folded = opened(manager, runtime)
    fold(log, folded)
    run_retention(log, RetentionOptions(root={}))
    table.put("a", b"new").result()
    table.remove("b").result()
    other = StreamManager(root_of(manager).store.url, runtime=runtime).key_value_table(NAME)
    for found in (table, other):
        assert _value(found, "a") == b"new"
        assert found.get("b") is None
        assert _value(found, "f") == b"f"
        assert [entry.key for entry in found.entries()] == ["a", "c", "d", "e", "f"]


def test_the_log_is_never_truncated_before_the_fold_is_durable() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime)
    write(manager, {"a": b"1"})
    log, folded = opened(manager, runtime)
    for point in ("fold.read", "fold.written", "fold.commit", "fold.committed", "fold.publish"):
        write(manager, {point: b"1"})

        def stop() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), at_failpoint(point, stop):
            fold(*opened(manager, runtime))
        run_retention(log, RetentionOptions(root={}))
        state = opened(manager, runtime)[1].read()
        start = log.view().head
        if state is None:
            assert start.positions == {0: 0}
        else:
            assert start.positions[0] <= state.cut.positions[0]
    fold(log, folded)
    assert len(values(folded.read())) == 6


def test_a_fold_overtaken_by_another_is_void_and_publishes_nothing_behind() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime)
    write(manager, {"a": b"1"})

    def overtake() -> None:
        write(manager, {"b": b"2"})
        assert fold(*opened(manager, runtime)).is_published

    with at_failpoint("fold.written", overtake):
        done = fold(*opened(manager, runtime))
    assert done.merge is not None
    assert not done.merge.is_committed
    log, folded = opened(manager, runtime)
    assert values(folded.read()) == {"a": b"1", "b": b"2"}
    record = log.view().subscriber(FOLD_SUBSCRIBER)
    assert record is not None
    assert record.bound is not None
    assert record.bound.positions == {0: 2}


def test_a_fold_of_a_life_that_ends_meanwhile_touches_nothing() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime)
    write(manager, {"a": b"1"})

    def recreate() -> None:
        assert manager.delete_key_value_table(NAME)
        manager.create_key_value_table(NAME, KeyValueTableConfiguration(key_type="string"))
        write(manager, {"z": b"26"})

    for point in ("fold.read", "fold.written"):
        with at_failpoint(point, recreate), pytest.raises((StaleIdentity, NoSuchStream)):
            fold(*opened(manager, runtime))
        log, folded = opened(manager, runtime)
        state = folded.read()
        assert state is None or values(state) == {}
        assert list(log.view().tail.positions.values()) == [1], "the new life is not touched"
    log, folded = opened(manager, runtime)
    fold(log, folded)
    assert values(folded.read()) == {"z": b"26"}
    with pytest.raises(StaleIdentity):
        fold(log, folded, life=1)


def test_a_fold_that_commits_as_the_life_ends_leaves_no_rows() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime)
    write(manager, {"a": b"1"})
    delete = at_failpoint("fold.commit", lambda: manager.delete_key_value_table(NAME), own=True)
    with delete:
        done = fold(*opened(manager, runtime))
    assert delete.hits == 1
    assert done.merge is not None
    assert not done.merge.is_committed
    assert values(opened(manager, runtime)[1].read()) == {}


def test_a_life_with_other_keys_begins_with_its_own_columns() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime)
    write(manager, {"a": b"1"})
    fold(*opened(manager, runtime))
    manager.delete_key_value_table(NAME)
    manager.create_key_value_table(NAME, KeyValueTableConfiguration(key_type="long"))
    manager.key_value_table(NAME).put(7, b"seven").result()
    log, _ = opened(manager, runtime)
    folded = FoldedTable(root_of(manager).store, f"{LOG}/table", KeyType.LONG, False, runtime)
    fold(log, folded)
    assert [key.primary for key in scanned(folded.read())] == [(7 + (1 << 63)).to_bytes(8, "big")]
    assert folded.log.snapshot is not None
    assert '"long"' in folded.log.snapshot.metadata["schemaString"]


def test_entries_expire_late_and_never_early_whatever_the_writers_clock_says() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime, ttl="1 hour")
    log, folded = opened(manager, runtime)
    behind = FakeRuntime()
    behind.wall_ms = runtime.wall_ms - 86_400_000
    with EventStreamWriter(StreamLog(root_of(manager).store, LOG, behind)) as writer:
        writer.write_event(encode_change(TableKey(b"late"), b"value"), "late").result()
    fold(log, folded, ttl_ms=3_600_000)
    assert values(folded.read()) == {"late": b"value"}, "a clock that was a day behind"
    runtime.sleep(1_800)
    fold(log, folded, ttl_ms=3_600_000)
    assert values(folded.read()) == {"late": b"value"}
    runtime.sleep(1_900)
    fold(log, folded, ttl_ms=3_600_000)
    assert values(folded.read()) == {}


def test_a_fold_is_due_by_bytes_by_age_and_not_without_changes() -> None:
    runtime = FakeRuntime()
    manager = shop(runtime)
    log, folded = opened(manager, runtime)
    assert fold_due(log.view(), folded.record(), None, runtime.now_ms()).at_ms == NEVER
    write(manager, {"a": b"1"})
    due = fold_due(log.view(), folded.record(), None, runtime.now_ms())
    assert not due.is_due
    runtime.sleep(601)
    assert fold_due(log.view(), folded.record(), None, runtime.now_ms()).is_due
    fold(log, folded)
    assert fold_due(log.view(), folded.record(), None, runtime.now_ms()).at_ms == NEVER
    for number in range(5):
        write(manager, {f"k{number}": bytes(1_000_000)})
    assert not fold_due(log.view(), folded.record(), None, runtime.now_ms()).is_due
    for number in range(14):
        write(manager, {f"k{number}": bytes(1_000_000)})
    assert fold_due(log.view(), folded.record(), None, runtime.now_ms()).is_due


def test_a_fold_is_due_by_the_number_of_changes_and_the_part_of_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold_due_module, "FOLD_CHANGES", 10)
    runtime = FakeRuntime()
    manager = shop(runtime, partitions=2)
    log, folded = opened(manager, runtime)

    def due() -> FoldDue:
        return fold_due(log.view(), folded.record(), None, runtime.now_ms())

    for number in range(10):
        assert (due().is_due, due().changes) == (False, number)
        write(manager, {f"a{number}": b""})
    assert due().is_due
    write(manager, {f"k{number:03d}": b"" for number in range(200)})
    view, record = log.view(), folded.record()
    fold(log, folded)
    assert due().changes == 0
    assert fold_due(view, folded.record(), None, 0).changes == 0, "a fold newer than the view"
    assert fold_due(view, record, None, 0).changes == 210
    write(manager, {f"k{number:03d}": b"1" for number in range(20)})
    scale_stream(
        log,
        [next(iter(log.view().active.segment_ids))],
        [KeyRange(0.0, 0.25), KeyRange(0.25, 0.5)],
        life=1,
    )
    write(manager, {"k100": b"1"})
    assert (due().is_due, due().changes) == (True, 21), "a tenth of 210 rows"


@pytest.mark.medium
@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.binary(max_size=4)),
        max_size=6,
    ),
    st.sampled_from([50, 1 << 20]),
)
def test_folds_at_any_time_agree_with_a_dict(batches: Any, run_bytes: int) -> None:
    runtime = FakeRuntime()
    manager = shop(runtime, partitions=2)
    log, folded = opened(manager, runtime)
    expected: dict[str, bytes | None] = {}
    for number, changes in enumerate(batches):
        write(manager, changes)
        expected |= changes
        if number == 2:
            low = log.view().active.segments[0]
            begin, end = low.key_range.low, low.key_range.high
            middle = (begin + end) / 2
            ranges = [KeyRange(begin, middle), KeyRange(middle, end)]
            scale_stream(log, [low.segment_id], ranges)
        if number % 2:
            fold(log, folded, run_bytes=run_bytes)
            run_retention(log, RetentionOptions(root={}))
            found = {k: v for k, v in expected.items() if v is not None}
            assert values(folded.read()) == found
    fold(log, folded, run_bytes=run_bytes)
    found = {key: value for key, value in expected.items() if value is not None}
    assert values(opened(manager, runtime)[1].read()) == found
    reader = StreamManager(root_of(manager).store.url, runtime=runtime).key_value_table(NAME)
    assert {entry.key: entry.value for entry in reader.entries()} == found
