"""Offers of batches in tests: what a writer stores under contention, without committing it."""

from __future__ import annotations

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import encode_events
from pravega_spark.engine.chunks.routing import Router
from pravega_spark.engine.stream.records import anonymous_id
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import StagedBatch
from pravega_spark.engine.writing.group_commit import AppendGroup, group_of
from pravega_spark.engine.writing.identity import SessionBatch
from pravega_spark.engine.writing.stage import RoutedEvents, stage_offer


def offer(
    stream: StreamLog,
    events: list[tuple[str | None, bytes]],
    identity: SessionBatch | None = None,
    *,
    view: StreamView | None = None,
    life: int | None = None,
) -> StagedBatch:
    """Store a batch as an offer; by default of a new writer without an id."""
    now_us = stream.runtime.now_us()
    table = encode_events([k for k, _ in events], [now_us] * len(events), [e for _, e in events])
    return offer_table(stream, table, identity, view=view, life=life)


def offer_table(
    stream: StreamLog,
    table: pa.Table,
    identity: SessionBatch | None = None,
    *,
    view: StreamView | None = None,
    life: int | None = None,
) -> StagedBatch:
    """Store a table of events as an offer; by default of a new writer without an id."""
    view = view or stream.view(refresh=False)
    if identity is None:
        writer_id = anonymous_id(view.version, stream.runtime.token())
        identity = SessionBatch(writer_id, 0, 0, table.num_rows)
    router = Router(view.active.segments)
    routed = RoutedEvents(
        router.segment_ids, router.segment_indexes(table.column("routing_key"), start=0)
    )
    staged = stage_offer(stream, view, table, routed, identity, life or view.life)
    assert staged is not None
    return staged


def commit_offers(stream: StreamLog) -> None:
    """Commit once what other processes offer."""
    group_of(stream).committer.commit_with_offers([])


def contended(stream: StreamLog) -> AppendGroup:
    """Let a process know that others write to the stream now."""
    group = group_of(stream)
    group.committer._contention.extend(stream.runtime.monotonic())
    return group
