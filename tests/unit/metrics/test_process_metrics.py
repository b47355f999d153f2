"""The metrics of a process: what its writers and readers count, and that nothing is counted off."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pravega_spark.engine.runtime import observers
from pravega_spark.engine.store.retries import Retries
from pravega_spark.engine.stream.fencing import fence
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import IllegalState, InvalidInput, StoreUnavailable, StreamSealed
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.metrics.catalog import APPEND_BUCKETS, PROCESS_METRICS
from pravega_spark.metrics.process_counters import ProcessCounters
from pravega_spark.metrics.prometheus import ProcessMetrics, start_metrics
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime

A = {"scope": "metered", "stream": "a"}


@pytest.fixture
def manager() -> StreamManager:
    manager = StreamManager(f"memory://{uuid.uuid4().hex}")
    manager.create_scope("metered")
    manager.create_stream("metered/a")
    return manager


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(manager: StreamManager, registry: CollectorRegistry) -> Iterator[ProcessMetrics]:
    with start_metrics(registry=registry) as metrics:
        yield metrics


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"pravega_{name}", labels or A)


@pytest.mark.usefixtures("metrics")
def test_writers_count_events_bytes_and_the_time_of_each_batch(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    with manager.create_writer("metered/a") as writer:
        for event in (b"1", b"22", b"333"):
            writer.write_event(event, "k").result()
        writer.write_events([b"4444"] * 10, routing_key="k").result()
        assert value(registry, "writers") == 1
        assert value(registry, "writer_outstanding_writes") == 0
        assert value(registry, "writer_outstanding_bytes") == 0
        assert value(registry, "writer_failed_events_total") == 0
        assert value(registry, "commit_races_lost_total") == 0
    assert value(registry, "writer_events_total") == 13
    assert value(registry, "writer_bytes_total") == 46
    assert value(registry, "writer_append_seconds_count") == 4
    assert value(registry, "writer_append_seconds_bucket", **A, le="+Inf") == 4
    total = value(registry, "writer_append_seconds_sum")
    assert total is not None
    assert 0 < total < 60
    assert value(registry, "writers") is None


@pytest.mark.usefixtures("metrics")
def test_writers_count_transactions_and_the_bytes_of_large_events(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    with manager.create_transactional_writer("metered/a") as writer:
        with writer.begin_transaction() as transaction:
            transaction.write_events([b"12345"] * 4, "k")
        writer.begin_transaction().abort()
    assert value(registry, "writer_events_total") == 4
    assert value(registry, "writer_bytes_total") == 20
    assert value(registry, "writer_append_seconds_count") is None
    with manager.create_writer("metered/a", large_events=True) as plain:
        plain.write_event(bytes(9 << 20), "k").result()
    assert value(registry, "writer_events_total") == 5
    assert value(registry, "writer_bytes_total") == 20 + (9 << 20)


@pytest.mark.usefixtures("metrics")
def test_queue_s_length_is_what_is_accepted_and_not_durable(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        goes_on.wait(60)

    with manager.create_writer("metered/a") as writer:
        with at_failpoint("append.staged", stop):
            writer.write_event(b"12345", "k")
            assert reached.wait(60)
            for _ in range(6):
                writer.write_event(b"12345", "k")
            assert value(registry, "writer_outstanding_writes") == 7
            size = value(registry, "writer_outstanding_bytes")
            goes_on.set()
        assert size is not None
        assert size >= 35
        writer.flush()
        assert value(registry, "writer_outstanding_writes") == 0


@pytest.mark.usefixtures("metrics")
def test_events_that_cannot_be_committed_are_counted(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    writer = manager.create_writer("metered/a")
    manager.seal_stream("metered/a")
    with pytest.raises(StreamSealed):
        writer.write_events([b"1", b"2"], routing_key="k").result()
    writer.close()
    assert value(registry, "writer_failed_events_total") == 2
    assert value(registry, "writer_events_total") is None


@pytest.mark.usefixtures("metrics")
def test_readers_count_what_they_read_and_show_how_far_they_are_behind(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    with manager.create_writer("metered/a") as writer:
        writer.write_events([b"12345"] * 4, routing_key="k").result()
    reader = manager.stream("metered/a").create_reader()
    events = reader.events()
    next(events)
    plain = {"group": "", "reader": "", **A}
    assert value(registry, "reader_lag_events", **plain) == 3
    assert len(list(events)) == 3
    assert value(registry, "reader_lag_events", **plain) == 0
    assert value(registry, "reader_events_total") == 4
    assert value(registry, "reader_bytes_total") == 20
    del reader, events
    assert value(registry, "reader_lag_events", **plain) is None


@pytest.mark.usefixtures("metrics")
def test_readers_of_a_group_show_their_lag_until_they_leave(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    with manager.create_writer("metered/a") as writer:
        writer.write_events([b"12345"] * 4, routing_key="k").result()
    group = manager.create_reader_group("metered/g", {"metered/a": StreamCut.EARLIEST})
    named = {"group": "metered/g", "reader": "r1", **A}
    with group.create_reader("r1") as reader:
        assert reader.read_next_event(timeout=1).event
        assert value(registry, "reader_lag_events", **named) == 3
        while reader.read_next_event(timeout=0).event:
            pass
        assert value(registry, "reader_lag_events", **named) == 0
    assert value(registry, "reader_lag_events", **named) is None


@pytest.mark.usefixtures("metrics")
def test_a_look_at_times_is_no_read_of_events(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    with manager.create_writer("metered/a") as writer:
        writer.write_event(b"x", "k").result()
    assert (
        manager.create_reader_group("metered/g", {"metered/a": StreamCut.EARLIEST}).lag().events
        == 1
    )
    assert value(registry, "reader_events_total") is None


@pytest.mark.usefixtures("metrics")
def test_large_event_counts_with_the_bytes_of_its_payload(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    size = 9 * 1024 * 1024
    with manager.create_writer("metered/a", large_events=True) as writer:
        writer.write_event(b"x" * size, "k").result()
    assert [event.size_bytes for event in manager.read("metered/a")] == [size]
    assert value(registry, "reader_bytes_total") == size


@pytest.mark.usefixtures("metrics")
def test_commits_are_counted_by_their_operation(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    with manager.create_transactional_writer("metered/a", writer_id="w") as writer:
        with writer.begin_transaction() as txn:
            txn.write_event(b"x", "k")
        writer.begin_transaction().abort()
    manager.truncate_stream("metered/a", manager.tail("metered/a"))
    operations = {
        "BEGIN TRANSACTION": 2,
        "COMMIT TRANSACTION": 1,
        "ABORT TRANSACTION": 1,
        "TRUNCATE STREAM": 1,
    }
    for operation, count in operations.items():
        assert value(registry, "commits_total", **A, operation=operation) == count, operation
    manager.create_scope("t")
    of_scope = {"scope": "t", "stream": "", "operation": "CREATE SCOPE"}
    assert value(registry, "commits_total", **of_scope) == 1


@pytest.mark.usefixtures("metrics")
def test_lost_race_is_counted_once_and_nothing_is_written_twice(
    manager: StreamManager, registry: CollectorRegistry
) -> None:
    def overtake() -> None:
        other = StreamLog(root_of(manager).store, "metered/a")  # as another process opens it
        fence(other, 1, "token")

    with manager.create_writer("metered/a") as writer, at_failpoint("append.staged", overtake):
        writer.write_event(b"x", "k").result()
    assert value(registry, "commit_races_lost_total") == 1
    assert value(registry, "writer_events_total") == 1
    assert len(list(manager.read("metered/a"))) == 1


def test_repeated_call_of_a_storage_is_counted(
    metrics: ProcessMetrics, registry: CollectorRegistry
) -> None:
    failures = iter([True, True, False])

    def call() -> int:
        if next(failures):
            raise StoreUnavailable("no answer", url="s3://b/r")
        return 1

    assert Retries("s3://b/r", 60, FakeRuntime()).call(call) == 1
    assert value(registry, "storage_retries_total", root="s3://b/r") == 2


def test_labels_with_odd_characters_survive_the_text(metrics: ProcessMetrics) -> None:
    odd = 'file:///a "b"\\c\nd,e}=ü'
    for observer in observers.observers:
        observer.call_repeated(odd)
    text = metrics.text().decode()
    (family,) = (f for f in text_string_to_metric_families(text) if "retries" in f.name)
    assert [(s.labels, s.value) for s in family.samples] == [({"root": odd}, 1.0)]
    assert len([line for line in text.splitlines() if "retries_total{" in line]) == 1


def test_streams_beyond_the_limit_share_their_series() -> None:
    counters = ProcessCounters(max_streams=2)
    for number in range(5):
        counters.appended(f"s/{number}", 1, 10, 0.002)
        counters.committed(f"s/{number}/events", "APPEND")
    values = counters.values()
    assert values.get("pravega_writer_events_total", "s", "1") == 1
    assert values.get("pravega_writer_events_total", "", "(others)") == 3
    assert values.get("pravega_commits_total", "", "(others)", "APPEND") == 3
    assert values.get("pravega_writer_events_total", "s", "2") is None


def test_buckets_are_cumulative_and_a_bound_belongs_to_its_bucket(
    metrics: ProcessMetrics, registry: CollectorRegistry
) -> None:
    for seconds in (0.001, 0.0011, 31.0):
        for observer in observers.observers:
            observer.appended("metered/a", 1, 1, seconds)
    counts = [
        value(registry, "writer_append_seconds_bucket", **A, le=str(bound))
        for bound in APPEND_BUCKETS
    ]
    assert counts == [1, *[2] * (len(APPEND_BUCKETS) - 1)]
    assert value(registry, "writer_append_seconds_count") == 3


@pytest.mark.medium
def test_server_answers_a_scrape_until_it_is_closed(manager: StreamManager) -> None:
    metrics = start_metrics(0, registry=CollectorRegistry())
    url = f"http://127.0.0.1:{metrics.port}/metrics"
    with manager.create_writer("metered/a") as writer:
        writer.write_event(b"x", "k").result()
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    assert 'pravega_writer_events_total{scope="metered",stream="a"} 1.0' in text
    metrics.close()
    metrics.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)
    assert observers.observers == []


def test_second_start_in_a_registry_is_refused_and_the_first_goes_on(
    metrics: ProcessMetrics, registry: CollectorRegistry
) -> None:
    with pytest.raises(IllegalState, match="started in this registry before"):
        start_metrics(registry=registry)
    assert len(observers.observers) == 1
    metrics.close()
    start_metrics(registry=registry).close()


@pytest.mark.medium
def test_port_in_use_starts_nothing() -> None:
    with start_metrics(0, registry=CollectorRegistry()) as metrics:
        other = CollectorRegistry()
        with pytest.raises(OSError, match="in use"):
            start_metrics(metrics.port, registry=other)
        assert len(observers.observers) == 1
        start_metrics(registry=other).close()
    with pytest.raises(InvalidInput):
        start_metrics(-1, registry=CollectorRegistry())


def test_text_has_every_metric(metrics: ProcessMetrics) -> None:
    found = re.findall(r"^# TYPE (\S+) (\S+)$", metrics.text().decode(), re.MULTILINE)
    assert found == [(metric.name, metric.kind.value) for metric in PROCESS_METRICS]


@pytest.mark.medium
@pytest.mark.usefixtures("metrics")
def test_forked_child_is_not_observed() -> None:
    child = os.fork()
    if not child:
        os._exit(len(observers.observers))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(observers.observers) == 1


@pytest.mark.medium
def test_without_metrics_nothing_is_timed_counted_or_imported() -> None:
    script = """
import sys, time, uuid
import pravega_spark as pravega
from pravega_spark.engine.writing import queue
from pravega_spark.engine.writing.batch import WriteBatch
taken = []
of = WriteBatch.of.__func__
WriteBatch.of = classmethod(lambda cls, items: (taken.append(of(cls, items)), taken[-1])[1])
manager = pravega.StreamManager(f"memory://{uuid.uuid4().hex}")
manager.create_scope("metered")
manager.create_stream("metered/a")
with manager.create_writer("metered/a") as writer:
    writer.write_event(b"x", "k").result()
assert len(list(manager.read("metered/a"))) == 1
assert taken and {batch.taken_at for batch in taken} == {None}
found = [name for name in sys.modules if name.startswith(("prometheus", "opentelemetry"))]
found += [name for name in sys.modules if name.startswith("pravega_spark.metrics")]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
