"""The metadata tables of streams.

The load is what the scaling job stored at its last run, ``load_time``. It is null for sealed
segments, for streams with a fixed number of segments, and where the job never ran.

The metadata table ``StreamCuts``: every cut that the stream or a reader group records. Of a stream:
its head and tail, saved cuts, the cuts that subscribers published, and samples of retention. Of a
reader group: its position, its end cuts and its complete checkpoints.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.config.descriptions import Watermark, WriterMark
from pravega_spark.config.root_settings import STREAM_SETTING_NAMES, rule_of
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.epoch_history import epoch_times, epochs_between
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.saved_cuts import saved_cuts
from pravega_spark.engine.stream.segment_history import sealed_ms
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.table_schema import schema_versions
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import REMOVED_US, known_watermarks, marks_of
from pravega_spark.errors import InvalidStreamCut, NoSuchStream
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.description import GroupVersion
from pravega_spark.scaling.decision import AVERAGE_NAMES
from pravega_spark.scaling.rates import StreamRates, known_load, last_rates
from pravega_spark.spark.monitor.metadata.table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)
from pravega_spark.txn import leases, lifecycle
from pravega_spark.values.segments import (
    Segment,
    StreamCut,
    segment_epoch,
    segment_number,
    segment_text,
)


def _stream_row(manager: StreamManager, name: str) -> Iterator[Row]:
    record = begun_view(open_stream(manager.root, name)).record
    tags = sorted(record.configuration.tags)
    yield {**name_columns(name), "tags": tags, "state": record.state.value}


STREAMS = MetadataTable(
    schema(
        scope=StringType(), stream=StringType(), tags=ArrayType(StringType()), state=StringType()
    ),
    rows_of_stream=_stream_row,
)


def _stream_info_row(manager: StreamManager, name: str) -> Iterator[Row]:
    info = manager.stream_info(name)
    yield {
        **name_columns(name),
        "state": info.state,
        "life": info.life,
        "version": info.version,
        "epoch": info.epoch,
        "segments": len(info.segments),
        "events": info.events,
        "size_bytes": info.size_bytes,
        "files": info.files.files,
        "file_bytes": info.files.size_bytes,
        "head": str(info.head),
        "tail": str(info.tail),
        "created": utc_time(info.created_ms),
        "tags": sorted(info.configuration.tags),
        "configuration": json.dumps(info.configuration.to_json()),
        "configuration_version": info.configuration_version,
        "watermark": None if info.watermark is None else info.watermark.lower,
    }


STREAM_INFO = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        state=StringType(),
        life=LongType(),
        version=LongType(),
        epoch=IntegerType(),
        segments=IntegerType(),
        events=LongType(),
        size_bytes=LongType(),
        files=LongType(),
        file_bytes=LongType(),
        head=StringType(),
        tail=StringType(),
        created=TimestampType(),
        tags=ArrayType(StringType()),
        configuration=StringType(),
        configuration_version=LongType(),
        watermark=TimestampType(),
    ),
    rows_of_stream=_stream_info_row,
)


def _epoch_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    stream = open_stream(manager.root, name)
    view = begun_view(stream)
    found = epochs_between(stream, view)
    ends = [utc_time(epoch.created_ms) for epoch in found[1:]]
    for epoch, ended in zip(found, [*ends, None], strict=True):
        yield {
            **name_columns(name),
            "epoch": epoch.number,
            "reference": epoch.reference,
            "created": utc_time(epoch.created_ms),
            "ended": ended,
            "active": epoch.number == view.active.number,
            "truncated": epoch.number < view.oldest_epoch,
            "splits": epoch.splits,
            "merges": epoch.merges,
            "segments": [_segment(segment) for segment in epoch.segments],
        }


def _segment(segment: Segment) -> Row:
    keys = segment.key_range
    return {
        "segment": str(segment),
        "segment_id": segment.segment_id,
        "key_low": keys.low,
        "key_high": keys.high,
    }


EPOCHS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        epoch=IntegerType(),
        reference=IntegerType(),
        created=TimestampType(),
        ended=TimestampType(),
        active=BooleanType(),
        truncated=BooleanType(),
        splits=IntegerType(),
        merges=IntegerType(),
        segments=ArrayType(
            StructType(
                [
                    StructField("segment", StringType()),
                    StructField("segment_id", LongType()),
                    StructField("key_low", DoubleType()),
                    StructField("key_high", DoubleType()),
                ]
            )
        ),
    ),
    rows_of_stream=_epoch_rows,
)


_EVENT_RATES = tuple(f"events_{name}" for name in AVERAGE_NAMES)
_BYTE_RATES = tuple(f"bytes_{name}" for name in AVERAGE_NAMES)


def _segment_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    stream = open_stream(manager.root, name)
    view = begun_view(stream)
    rates = last_rates(stream, view)
    active = set(view.active.segment_ids)
    lineage = view.lineage
    records = view.snapshot.names(SEGMENT_PREFIX)
    segment_ids = sorted(int(record.removeprefix(SEGMENT_PREFIX)) for record in records)
    sealed_epochs = {view.segment(segment_id).sealed_epoch for segment_id in segment_ids}
    times = epoch_times(stream, view, sealed_epochs | set(map(segment_epoch, segment_ids)))
    for segment_id in segment_ids:
        record, keys = view.segment(segment_id), lineage.find(segment_id).key_range
        created = times.get(segment_epoch(segment_id))
        ended = sealed_ms(view, segment_id, record.sealed_epoch, times)
        yield {
            **name_columns(name),
            "segment": segment_text(segment_id),
            "segment_id": segment_id,
            "number": segment_number(segment_id),
            "epoch": segment_epoch(segment_id),
            "key_low": keys.low,
            "key_high": keys.high,
            "active": segment_id in active,
            "created": None if created is None else utc_time(created),
            "sealed": record.is_sealed,
            "sealed_epoch": record.sealed_epoch,
            "sealed_time": None if ended is None else utc_time(ended),
            "head_offset": view.head_offset(segment_id),
            "next_offset": record.next_offset,
            "size_bytes": record.size_bytes,
            **(_load_columns(stream, view, rates, segment_id) if segment_id in active else {}),
        }


def _load_columns(
    stream: StreamLog, view: StreamView, rates: StreamRates | None, segment_id: int
) -> Row:
    """Return the columns of a segment's load."""
    load = known_load(stream, view, rates, segment_id)
    if load is None:
        return {}
    return {
        **dict(zip(_EVENT_RATES, load.events, strict=True)),
        **dict(zip(_BYTE_RATES, load.size_bytes, strict=True)),
        "hot": load.hot,
        "cold": load.cold,
        "muted_until": load.muted_until_ms and utc_time(load.muted_until_ms),
        "cooldown_until": load.cooldown_until_ms and utc_time(load.cooldown_until_ms),
        "load_time": utc_time(load.time_ms),
    }


SEGMENTS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        segment=StringType(),
        segment_id=LongType(),
        number=IntegerType(),
        epoch=IntegerType(),
        key_low=DoubleType(),
        key_high=DoubleType(),
        active=BooleanType(),
        created=TimestampType(),
        sealed=BooleanType(),
        sealed_epoch=IntegerType(),
        sealed_time=TimestampType(),
        head_offset=LongType(),
        next_offset=LongType(),
        size_bytes=LongType(),
        **dict.fromkeys((*_EVENT_RATES, *_BYTE_RATES), DoubleType()),
        hot=BooleanType(),
        cold=BooleanType(),
        muted_until=TimestampType(),
        cooldown_until=TimestampType(),
        load_time=TimestampType(),
    ),
    rows_of_stream=_segment_rows,
)


def _cuts_of_stream(manager: StreamManager, name: str) -> Iterator[Row]:
    view = begun_view(open_stream(manager.root, name))
    truncation = view.record.truncation
    truncated_ms = view.record.created_ms if truncation is None else truncation.time_ms
    yield _cut_row(view, "head", view.head, truncated_ms)
    yield _cut_row(view, "tail", view.tail, view.timestamp_ms)
    for subscriber in subscribers.listed(view):
        if subscriber.cut is not None:
            time_ms = subscriber.published_ms or subscriber.since_ms
            yield _cut_row(view, "subscriber", subscriber.cut, time_ms, subscriber.name)
    for saved in saved_cuts(view):
        yield _cut_row(view, "saved", saved.cut, saved.saved_ms, name=saved.name)
    for sample in view.samples:
        yield _cut_row(view, "sample", sample.tail.cut(name, view.life), sample.time_ms)


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
                yield _cut_row(
                    view,
                    kind,
                    cut=cuts_by_stream[stream],
                    time_ms=None,
                    holder=state.group,
                    name=name,
                )


def _cut_row(
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


def _schema_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    view = begun_view(open_stream(manager.root, name))
    found = schema_versions(view.snapshot)
    for number, one in enumerate(found, 1):
        yield {
            **name_columns(name),
            "number": number,
            "version": one.version,
            "created": utc_time(one.time_ms),
            "active": number == len(found),
            "columns": str(one.schema),
            "schema": one.schema.to_json(),
        }


SCHEMAS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        number=IntegerType(),
        version=LongType(),
        created=TimestampType(),
        active=BooleanType(),
        columns=StringType(),
        schema=StringType(),
    ),
    rows_of_stream=_schema_rows,
)


def _setting_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    settings = manager.stream_settings(name)
    for setting in STREAM_SETTING_NAMES:
        value = settings.value(setting)
        yield {
            **name_columns(name),
            "setting": setting,
            "value": settings.text(setting),
            "value_ms": value if isinstance(value, int) else None,
            "origin": settings.origin(setting).value,
            "default": rule_of(setting).default,
        }


SETTINGS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        setting=StringType(),
        value=StringType(),
        value_ms=LongType(),
        origin=StringType(),
        default=StringType(),
    ),
    rows_of_stream=_setting_rows,
)


def _storage_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    for part in manager.stream_storage(name).parts:
        yield {
            **name_columns(name),
            "kind": part.kind.value,
            "files": part.files,
            "size_bytes": part.size_bytes,
            "large_events": part.large_events,
            "large_bytes": part.large_bytes,
            "deletable": None if part.deletable_ms is None else utc_time(part.deletable_ms),
            "reason": part.reason or None,
        }


STORAGE = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        kind=StringType(),
        files=LongType(),
        size_bytes=LongType(),
        large_events=LongType(),
        large_bytes=LongType(),
        deletable=TimestampType(),
        reason=StringType(),
    ),
    rows_of_stream=_storage_rows,
)


def _rows(manager: StreamManager, name: str) -> Iterator[Row]:
    view = begun_view(open_stream(manager.root, name))
    for found in known_watermarks(view):
        yield _watermark_row(view, "present" if found.version is None else "recorded", found)
    for mark in marks_of(view):
        if mark.time_us != REMOVED_US:
            yield _watermark_row(view, "writer", mark)


def _watermark_row(view: StreamView, kind: str, found: Watermark | WriterMark) -> Row:
    """Return a row; of a writer both bounds are the time that it noted last."""
    mark = found if isinstance(found, WriterMark) else None
    bounds = (
        (found.time, found.time) if isinstance(found, WriterMark) else (found.lower, found.upper)
    )
    start = locate(view, found.cut).above_head()
    return {
        **name_columns(view.stream),
        "kind": kind,
        "writer": None if mark is None else mark.writer_id,
        "alive": None if mark is None else mark.is_alive,
        "lower": bounds[0],
        "upper": bounds[1],
        "cut": str(found.cut),
        "version": found.version,
        "events": start.events_to(view.located_tail),
    }


WATERMARKS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        kind=StringType(),
        writer=StringType(),
        alive=BooleanType(),
        lower=TimestampType(),
        upper=TimestampType(),
        cut=StringType(),
        version=LongType(),
        events=LongType(),
    ),
    rows_of_stream=_rows,
)


def _transaction_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    stream = open_stream(manager.root, name)
    view = begun_view(stream)
    extended_ms, now_ms = leases.extended_ms(stream, view), stream.now_ms()
    for info in [*manager.list_transactions(name), *manager.list_completed_transactions(name)]:
        row = {
            **name_columns(name),
            "transaction": info.transaction_id,
            "status": info.status.value,
            "writer": info.writer_id,
            "epoch": lifecycle.epoch_of(info.transaction_id),
            "created": utc_time(info.created_ms),
            "events": info.events,
            "size_bytes": info.size_bytes,
            "reason": info.reason,
        }
        if info.ended_ms:
            row |= {"ended": utc_time(info.ended_ms), "version": info.version}
        elif info.transaction_id in view.transactions:
            opened = view.transactions[info.transaction_id]
            row["lease_seconds"] = opened.lease_ms / 1_000
            row["joint"] = opened.token if opened.is_part else None
        if info.transaction_id in extended_ms:
            age_ms = now_ms - extended_ms[info.transaction_id]
            row["lease_age_seconds"] = max(0.0, age_ms / 1_000)
        yield row


TRANSACTIONS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        transaction=StringType(),
        status=StringType(),
        writer=StringType(),
        epoch=IntegerType(),
        created=TimestampType(),
        ended=TimestampType(),
        lease_seconds=DoubleType(),
        lease_age_seconds=DoubleType(),
        events=LongType(),
        size_bytes=LongType(),
        version=LongType(),
        reason=StringType(),
        joint=StringType(),
    ),
    rows_of_stream=_transaction_rows,
)
