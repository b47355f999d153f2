"""The metadata table ``StreamCuts``: every cut that the stream or a reader group records.

Of a stream: its head and tail, saved cuts, the cuts that subscribers published, and samples of
retention.
Of a reader group: its position, its end cuts and its complete checkpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql.types import LongType, StringType, TimestampType

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.saved_cuts import saved_cuts
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidStreamCut, NoSuchStream
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamCut
from pravega_spark.reader_groups.group_description import GroupVersion
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)


def _cuts_of_stream(manager: StreamManager, name: str) -> Iterator[Row]:
    view = begun_view(open_stream(manager.root, name))
    truncation = view.record.truncation
    truncated_ms = view.record.created_ms if truncation is None else truncation.time_ms
    yield _row(view, "head", view.head, truncated_ms)
    yield _row(view, "tail", view.tail, view.timestamp_ms)
    for subscriber in subscribers.listed(view):
        if subscriber.cut is not None:
            time_ms = subscriber.published_ms or subscriber.since_ms
            yield _row(view, "subscriber", subscriber.cut, time_ms, subscriber.name)
    for saved in saved_cuts(view):
        yield _row(view, "saved", saved.cut, saved.saved_ms, name=saved.name)
    for sample in view.samples:
        yield _row(view, "sample", sample.tail.cut(name, view.life), sample.time_ms)


def _cuts_of_group(store: Store, group: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = group.state
    recorded: list[tuple[str, str | None, Mapping[str, StreamCut]]] = [
        ("position", None, state.cuts()),
        ("end", None, state.ends),
    ]
    done = {c.number: c for c in (*state.checkpoints, state.last_checkpoint) if c and c.is_complete}
    recorded += [("checkpoint", c.name, state.cuts_of(c.positions)) for c in done.values()]

    def look(stream: str) -> StreamView | None:
        with contextlib.suppress(NoSuchStream):
            return begun_view(open_stream(store, stream))
        return None

    for stream, view in zip(streams, in_rounds(store, look, streams), strict=True):
        for kind, name, cuts_by_stream in recorded:
            if stream in cuts_by_stream:
                yield _row(view, kind, cuts_by_stream[stream], None, state.group, name)


def _row(
    view: StreamView | None,
    kind: str,
    cut: StreamCut,
    time_ms: int | None,
    holder: str | None = None,
    name: str | None = None,
) -> Row:
    """Return a row. ``events`` counts to the tail; null if stream or cut is not valid."""
    events = None
    with contextlib.suppress(InvalidStreamCut):
        if view is not None:
            start = locate(view, cut).above_head()
            events = start.events_to(view.located_tail)
    return {
        **name_columns(cut.stream),
        "kind": kind,
        "holder": holder,
        "name": name,
        "cut": str(cut),
        "time": None if time_ms is None else utc_time(time_ms),
        "events": events,
    }


STREAM_CUTS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        kind=StringType(),
        holder=StringType(),
        name=StringType(),
        cut=StringType(),
        time=TimestampType(),
        events=LongType(),
    ),
    rows_of_stream=_cuts_of_stream,
    rows_of_group=_cuts_of_group,
)
