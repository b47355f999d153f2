"""Spans of OpenTelemetry: which there are, what they say, and that nobody pays for them unasked."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pravega_spark.engine.runtime import tracing
from pravega_spark.errors import StreamSealed
from pravega_spark.manager import StreamManager


@pytest.fixture
def manager() -> StreamManager:
    manager = StreamManager(f"memory://{uuid.uuid4().hex}")
    manager.create_scope("s")
    manager.create_stream("s/a")
    return manager


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def attributes(span: ReadableSpan) -> dict[str, object]:
    return {
        key.removeprefix("messaging.").removeprefix("pravega."): value
        for key, value in (span.attributes or {}).items()
    }


def test_append_is_a_span_with_its_commit_inside(
    manager: StreamManager, spans: InMemorySpanExporter
) -> None:
    with manager.create_writer("s/a") as writer:
        writer.write_events([b"1", b"2"], routing_key="k").result()
    (append,), (commit,) = named(spans, "append s/a"), named(spans, "commit s/a/events")
    assert attributes(append) == {
        "system": "pravega_spark",
        "destination.name": "s/a",
        "operation.name": "append",
        "operation.type": "send",
        "batch.message_count": 2,
    }
    assert attributes(commit) == {
        "system": "pravega_spark",
        "destination.name": "s/a/events",
        "operation.name": "commit",
        "version": 1,
        "operation": "APPEND",
    }
    assert commit.parent is not None
    assert commit.parent.span_id == id_of(append)
    assert (append.kind, commit.kind) == (SpanKind.PRODUCER, SpanKind.INTERNAL)


def test_reads_are_spans_of_batches_in_the_caller_s_span(
    manager: StreamManager, spans: InMemorySpanExporter
) -> None:
    with manager.create_writer("s/a") as writer:
        writer.write_events([b"1"] * 3, routing_key="k").result()
    with trace.get_tracer_provider().get_tracer("app").start_as_current_span("mine") as mine:
        assert len(list(manager.read("s/a"))) == 3
    found = named(spans, "read s/a")
    assert sum(int(attributes(span).get("batch.message_count", 0)) for span in found) == 3  # type: ignore[call-overload]
    for span in found:
        assert (span.kind, attributes(span)["operation.type"]) == (SpanKind.CLIENT, "receive")
        assert span.parent is not None
        assert span.parent.span_id == mine.get_span_context().span_id


def test_transactions_and_maintenance_are_spans(
    manager: StreamManager, spans: InMemorySpanExporter
) -> None:
    with manager.create_transactional_writer("s/a", writer_id="w") as writer:
        with writer.begin_transaction() as txn:
            txn.write_event(b"x", "k")
        writer.begin_transaction().abort()
    (committed,) = named(spans, "commit transaction s/a")
    assert attributes(committed)["transaction"] == txn.id
    assert len(named(spans, "abort transaction s/a")) == 1
    manager.maintain(kinds=["transactions"])
    (round_,) = named(spans, f"maintain {manager.root}")
    assert attributes(round_)["kinds"] == ("transactions",)
    (work,) = named(spans, "transactions s/a")
    assert work.status.status_code is StatusCode.UNSET


def test_error_ends_its_span_with_the_cause(
    manager: StreamManager, spans: InMemorySpanExporter
) -> None:
    writer = manager.create_writer("s/a")
    manager.seal_stream("s/a")
    with pytest.raises(StreamSealed):
        writer.write_event(b"1", "k").result()
    writer.close()
    (append,) = named(spans, "append s/a")
    assert append.status.status_code is StatusCode.ERROR
    assert "StreamSealed" in str(append.status.description)


def test_without_a_provider_a_span_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    with tracing.span("append", "s/a") as current:
        assert current is None
        tracing.count_events(current, 1)
    assert trace._TRACER_PROVIDER is None


def test_a_later_provider_is_used_at_once(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tracing.span("append", "s/a"):
        pass
    other, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(other))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    for _ in range(2):
        with tracing.span("append", "s/b"):
            pass
    assert Counter(span.name for span in spans.get_finished_spans()) == {"append s/a": 1}
    assert Counter(span.name for span in other.get_finished_spans()) == {"append s/b": 2}
