"""The metrics of a root: what they say of streams and groups, and what a scrape costs."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import InvalidInput, InvalidName
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager, manager_over, root_of
from pravega_spark.metrics import measurement
from pravega_spark.metrics.catalog import ROOT_METRICS
from pravega_spark.metrics.prometheus import RootMetrics, root_metrics
from pravega_spark.values.segments import StreamCut
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.spy_store import Spy

Values = Callable[..., "float | None"]


@pytest.fixture
def manager() -> StreamManager:
    manager = StreamManager(f"memory://{uuid.uuid4().hex}")
    manager.create_scope("s")
    manager.create_stream("s/a")
    return manager


@pytest.fixture
def value(manager: StreamManager) -> Iterator[Values]:
    """Scrape, and return the value of a metric; of the last stream without labels."""
    metrics = root_metrics(manager, cache=0)

    def value(name: str, **labels: str) -> float | None:
        registry = CollectorRegistry()
        registry.register(metrics)
        return registry.get_sample_value(f"pravega_{name}", labels or {"scope": "s", "stream": "a"})

    return value  # type: ignore[return-value]


def write(manager: StreamManager, *events: bytes, stream: str = "s/a") -> None:
    with manager.create_writer(stream) as writer:
        for event in events:
            writer.write_event(event, "k").result()


def test_stream_s_metrics_are_what_its_log_says(manager: StreamManager, value: Values) -> None:
    policy = RetentionPolicy.by_consumption()
    manager.update_stream("s/a", StreamConfiguration(retention=policy))
    write(manager, b"1", b"22", b"333")
    manager.subscribe("s/a", "archive")
    info = manager.stream_info("s/a")
    assert value("stream_segments") == 1
    assert value("stream_written_events_total") == value("stream_events") == 3
    assert value("stream_written_bytes_total") == value("stream_size_bytes") == 6
    assert value("stream_truncated_events_total") == value("stream_truncated_bytes_total") == 0
    assert value("stream_last_truncation_timestamp_seconds") is None
    assert value("stream_version") == info.version
    assert (value("stream_files"), value("stream_files_bytes")) == (3, info.files.size_bytes)
    assert value("stream_subscribers") == 1
    labels = {"state": "ACTIVE", "scaling": "fixed", "retention": "consumption"}
    assert value("stream_info", scope="s", stream="a", **labels) == 1
    assert value("streams", scope="s") == 1
    assert value("scrape_errors", kind="stream") == 0


def test_written_events_splits_and_merges_count_also_what_a_truncation_dropped(
    manager: StreamManager, value: Values
) -> None:
    write(manager, b"12", b"34")
    manager.scale_stream("s/a", seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    write(manager, b"5")
    manager.scale_stream("s/a", seal=[1, 2], key_ranges=[(0.0, 1.0)])
    write(manager, b"678", b"9")
    before = [value(f"stream_{n}_total") for n in ("written_events", "written_bytes")]
    manager.truncate_stream("s/a", StreamCut("s/a", 1, {0: 2}))
    assert value("stream_truncated_events_total") == 2
    tail = manager.tail("s/a")
    manager.truncate_stream("s/a", tail)
    assert manager.stream("s/a")._view().oldest_epoch == 2  # two are in the history
    assert [value(f"stream_{n}_total") for n in ("written_events", "written_bytes")] == before
    assert before == [5, 9]
    assert value("stream_truncated_events_total") == 5
    assert value("stream_truncated_bytes_total") == 9
    assert value("stream_events") == value("stream_size_bytes") == 0
    assert (value("stream_segment_splits_total"), value("stream_segment_merges_total")) == (1, 1)
    assert value("stream_last_truncation_timestamp_seconds")
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    manager.create_stream("s/a")
    write(manager, b"of the next life")
    assert value("stream_written_events_total") == 1
    assert value("stream_segment_splits_total") == 0


def test_counts_of_a_dropped_past_are_the_same_for_a_process_that_sees_it_first_now(
    manager: StreamManager,
) -> None:
    write(manager, b"1", b"2")
    manager.scale_stream("s/a", seal=[0], key_ranges=[(0.0, 0.5), (0.5, 1.0)])
    write(manager, b"3")
    manager.truncate_stream("s/a", manager.tail("s/a"))
    texts = {root_metrics(manager).text().split(b"pravega_scrape_duration")[0] for _ in range(2)}
    (text,) = texts
    assert b'pravega_stream_written_events_total{scope="s",stream="a"} 3.0' in text
    assert b'pravega_stream_segment_splits_total{scope="s",stream="a"} 1.0' in text


def test_transactions_are_counted_by_outcome(manager: StreamManager, value: Values) -> None:
    with manager.create_transactional_writer("s/a", writer_id="w") as writer:
        with writer.begin_transaction() as txn:
            txn.write_event(b"x", "k")
        writer.begin_transaction().abort()
        writer.begin_transaction()
        assert value("stream_open_transactions") == 1
        (left,) = manager.list_transactions("s/a")
        began = value("stream_oldest_transaction_timestamp_seconds")
        assert began == left.created_ms / 1_000
    with manager.create_transactional_writer("s/a", writer_id="w"):
        pass  # a newer session ends what the older one left open
    of = {"scope": "s", "stream": "a"}
    outcomes = ("committed", "aborted", "swept")
    found = [value("stream_recent_transactions", outcome=outcome, **of) for outcome in outcomes]
    assert found == [1, 1, 1]
    assert value("stream_open_transactions") == 0
    assert value("stream_oldest_transaction_timestamp_seconds") is None


def test_watermark_is_the_one_of_the_stream(manager: StreamManager, value: Values) -> None:
    assert value("stream_watermark_lower_timestamp_seconds") is None
    with manager.create_writer("s/a", writer_id="w") as writer:
        writer.write_event(b"x", "k")
        writer.note_time(2_500)
        writer.flush()
        assert value("stream_watermark_lower_timestamp_seconds") == 2.5
        assert value("stream_watermark_upper_timestamp_seconds") == 2.5


def test_lag_is_that_of_the_group_without_a_read_of_events(
    manager: StreamManager, value: Values
) -> None:
    manager.create_stream("s/b")
    group = manager.create_reader_group("s/g", {"s/a": manager.head("s/a"), "s/b": None})
    write(manager, b"12345", b"1", b"22")
    of = {"group": "s/g", "scope": "s", "stream": "a"}
    with group.create_reader("r") as reader:
        assert reader.read_next_event(timeout=1).event
        assert reader.read_next_event(timeout=1).event
        reader.keep_alive()
        assert value("group_readers", group="s/g") == 1
    lag = group.lag()
    assert (lag.events, lag.size_bytes) == (1, 2)
    assert value("group_lag_events", **of) == 1
    assert value("group_lag_bytes", **of) == 2
    seconds = value("group_lag_seconds", **of)
    assert seconds is not None
    assert lag.seconds <= seconds < lag.seconds + 60
    assert value("group_lag_events", **{**of, "stream": "b"}) == 0
    assert value("group_lag_seconds", **{**of, "stream": "b"}) == 0
    assert value("group_readers", group="s/g") == 0
    assert value("group_unassigned_segments", group="s/g") == 2
    assert value("reader_groups", scope="s") == 1


def test_lag_inside_a_chunk_is_in_proportion(manager: StreamManager, value: Values) -> None:
    with manager.create_writer("s/a") as writer:
        writer.write_events([b"0123456789"] * 10, routing_key="k").result()
    start = StreamCut("s/a", 1, {0: 4})
    manager.create_reader_group("s/g", {"s/a": start})
    of = {"group": "s/g", "scope": "s", "stream": "a"}
    assert value("group_lag_events", **of) == 6
    assert value("group_lag_bytes", **of) == 60


def test_maintenance_shows_its_age_and_what_is_overdue(
    manager: StreamManager, value: Values
) -> None:
    of = {"kind": "retention", "scope": ""}
    assert value("maintenance_age_seconds", **of) is None
    assert value("maintenance_overdue", **of) == 0, "the root is new"
    assert value("maintenance_overdue", kind="scaling", scope="") == 0
    manager.maintain(kinds=[MaintenanceKind.RETENTION])
    age = value("maintenance_age_seconds", **of)
    assert age is not None
    assert age < 600
    assert value("maintenance_overdue", **of) == 0
    assert value("maintenance_failed_streams", **of) == 0


def test_maintenance_that_a_root_waits_for_since_days_is_overdue() -> None:
    clock = FakeRuntime()
    manager = manager_over(MemoryStore(clock_ms=clock.now_ms), clock)
    manager.create_scope("s")
    manager.create_stream("s/a")
    clock.sleep(3 * 24 * 3_600)
    manager.maintain(kinds=[MaintenanceKind.SCALING])
    text = root_metrics(manager, cache=0).text().decode()
    assert 'pravega_maintenance_overdue{kind="retention",scope=""} 1.0' in text
    assert 'pravega_maintenance_overdue{kind="scaling",scope=""} 0.0' in text


def watched(manager: StreamManager) -> tuple[StreamManager, Spy]:
    """Return another manager of the root, and the store that counts its calls."""
    spy = Spy(root_of(manager).store)
    return manager_over(spy), spy


def calls_of_a_scrape(metrics: RootMetrics, spy: Spy) -> list[str]:
    wait_for_maintenance()
    spy.calls.clear()
    metrics.text()
    return sorted(operation for operation, _ in spy.calls)


def test_calls_of_a_scrape_do_not_grow_with_events_commits_or_chunks(
    manager: StreamManager,
) -> None:
    manager, spy = watched(manager)
    metrics = root_metrics(manager, cache=0)
    group = manager.create_reader_group("s/g", ["s/a"])
    write(manager, b"1")
    with group.create_reader("r") as reader:
        assert reader.read_next_event(timeout=1).event
        metrics.text()
        idle = calls_of_a_scrape(metrics, spy)
        with manager.create_writer("s/a") as writer:
            writer.write_events([b"x"] * 5_000, routing_key="k").result()
        few = calls_of_a_scrape(metrics, spy)
        write(manager, *[b"1234567890"] * 40)
        many = calls_of_a_scrape(metrics, spy)
        assert calls_of_a_scrape(metrics, spy) == few == many == idle
    assert len(idle) < 16
    assert {"put", "put_if_absent", "delete"}.isdisjoint(idle)


@pytest.mark.medium
def test_scrape_far_behind_a_busy_log_reads_few_of_its_commits(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "JUMP_COMMITS", 16)
    manager, spy = watched(manager)
    metrics = root_metrics(manager, cache=0)
    metrics.text()
    other = StreamLog(spy.inner, "s/a")  # as another process opens it
    with EventStreamWriter(other) as writer:
        for _ in range(600):
            writer.write_event(b"x", "k").result()
    calls = calls_of_a_scrape(metrics, spy)
    assert len(calls) < 300
    text = metrics.text().decode()
    assert 'pravega_stream_written_events_total{scope="s",stream="a"} 600.0' in text


def test_scrapes_within_the_cache_s_time_make_no_call(manager: StreamManager) -> None:
    manager, spy = watched(manager)
    metrics = root_metrics(manager, cache="1 hour")
    text = metrics.text()
    spy.calls.clear()
    assert metrics.text() == text
    assert spy.calls == []


def test_registering_measures_nothing(manager: StreamManager) -> None:
    manager, spy = watched(manager)
    CollectorRegistry(auto_describe=True).register(root_metrics(manager))
    assert spy.calls == []


def test_streams_beyond_the_limit_are_skipped_and_counted(manager: StreamManager) -> None:
    for name in ("s/b", "s/c", "s/d"):
        manager.create_stream(name)
    manager.create_reader_group("s/g", ["s/a", "s/d"])
    text = root_metrics(manager, max_streams=2).text().decode()
    assert 'pravega_scrape_skipped{kind="stream"} 2.0' in text
    assert 'pravega_streams{scope="s"} 4.0' in text
    assert 'pravega_stream_events{scope="s",stream="b"} 0.0' in text
    assert "pravega_stream_events{" in text
    assert 'pravega_stream_events{scope="s",stream="c"}' not in text
    assert 'pravega_group_lag_events{group="s/g",scope="s",stream="d"} 0.0' in text


def test_only_the_given_scopes_are_measured(manager: StreamManager) -> None:
    manager.create_scope("other")
    manager.create_stream("other/x")
    text = root_metrics(manager, scopes=["other", "none"]).text().decode()
    assert 'stream="x"' in text
    assert 'stream="a"' not in text
    assert "pravega_scopes 1.0" in text


def test_damaged_stream_is_counted_and_logged_and_the_others_are_measured(
    manager: StreamManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.create_stream("s/b")
    write(manager, b"1", stream="s/b")
    broken, _ = watched(manager)
    root_of(manager).store.put("s/a/events/_delta_log/00000000000000000001.json", b"{not a commit")
    with caplog.at_level(logging.WARNING, logger="pravega_spark"):
        text = root_metrics(broken).text().decode()
    assert 'pravega_scrape_errors{kind="stream"} 1.0' in text
    assert 'pravega_stream_events{scope="s",stream="b"} 1.0' in text
    assert "stream s/a could not be measured" in caplog.text


def test_text_is_what_prometheus_parses_and_has_every_metric(manager: StreamManager) -> None:
    text = root_metrics(manager).text().decode()
    parsed = {family.name: family for family in text_string_to_metric_families(text)}
    names = {m.name.removesuffix("_total"): m for m in ROOT_METRICS}
    assert parsed.keys() == names.keys()
    for name, metric in names.items():
        assert parsed[name].type == metric.kind.value
        for sample in parsed[name].samples:
            assert set(sample.labels) == set(metric.labels)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_streams": 0}, InvalidInput),
        ({"max_streams": True}, InvalidInput),
        ({"cache": "often"}, InvalidInput),
        ({"scopes": ["a/b"]}, InvalidName),
    ],
)
def test_unusable_options_are_refused(
    manager: StreamManager, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        root_metrics(manager, **options)  # type: ignore[arg-type]
