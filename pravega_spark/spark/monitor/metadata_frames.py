"""``metadata`` frames: tables about the streams and reader groups under a root, for SQL and people.

Names are spread over tasks; each task looks at its own, one by one, and writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
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

from pravega_spark.engine.layout import cuts
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidStreamCut, NoSuchStream
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamCut, segment_epoch, segment_number, segment_text
from pravega_spark.reader_groups import group_description
from pravega_spark.reader_groups.group_description import GroupVersion
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.transactions import transaction_leases, transaction_lifecycle

NAMES_OF_TASK = 200
"""Streams, or groups, that one task looks at."""

Row = dict[str, Any]


def _schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


SCHEMAS = {
    "Streams": _schema(
        scope=StringType(), stream=StringType(), tags=ArrayType(StringType()), state=StringType()
    ),
    "StreamInfo": _schema(
        scope=StringType(),
        stream=StringType(),
        state=StringType(),
        life=IntegerType(),
        version=LongType(),
        epoch=IntegerType(),
        segments=IntegerType(),
        events=LongType(),
        size_bytes=LongType(),
        head=StringType(),
        tail=StringType(),
        created=TimestampType(),
        tags=ArrayType(StringType()),
        configuration=StringType(),
    ),
    "Segments": _schema(
        scope=StringType(),
        stream=StringType(),
        segment=StringType(),
        segment_id=LongType(),
        number=IntegerType(),
        epoch=IntegerType(),
        key_low=DoubleType(),
        key_high=DoubleType(),
        active=BooleanType(),
        sealed=BooleanType(),
        head_offset=LongType(),
        next_offset=LongType(),
        size_bytes=LongType(),
    ),
    "Transactions": _schema(
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
    ),
    "StreamCuts": _schema(
        scope=StringType(),
        stream=StringType(),
        kind=StringType(),
        holder=StringType(),
        name=StringType(),
        cut=StringType(),
        time=TimestampType(),
        events=LongType(),
    ),
    "ReaderGroups": _schema(
        scope=StringType(),
        group=StringType(),
        generation=LongType(),
        state=StringType(),
        retention=StringType(),
        streams=ArrayType(StringType()),
        readers=ArrayType(StringType()),
        assigned=IntegerType(),
        unassigned=IntegerType(),
        future=IntegerType(),
        at_end=BooleanType(),
        last_checkpoint=StringType(),
        checkpoints_under_way=IntegerType(),
        version=LongType(),
        updated=TimestampType(),
        configuration=StringType(),
    ),
    "Lag": _schema(
        group=StringType(),
        scope=StringType(),
        stream=StringType(),
        segment=StringType(),
        segment_id=LongType(),
        state=StringType(),
        reader=StringType(),
        current_offset=LongType(),
        head_offset=LongType(),
        next_offset=LongType(),
        lag=LongType(),
        lag_bytes=LongType(),
        lag_seconds=DoubleType(),
    ),
}


class NamesPartition(InputPartition):
    """Names of streams, or of reader groups, for one task to look at."""

    def __init__(self, names: tuple[str, ...], of_groups: bool) -> None:
        """Take the names."""
        super().__init__(None)
        self.names = names
        self.of_groups = of_groups


class MetadataReader(DataSourceReader):
    """Reads one of the tables; what it looks at is spread over tasks."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        """Take the settings and the schema that Spark wants."""
        self.settings = settings
        self._table = settings.metadata or "Streams"
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """List the streams (named ones, of a scope, matching a pattern, or all) and the groups.

        Groups are narrowed by their own scope, or by the streams that they read.
        """
        found: list[InputPartition] = []
        if self._table in _OF_STREAM:
            found += _partitions(self._streams(), of_groups=False)
        if self._table in _OF_GROUP:
            found += _partitions(self._groups(), of_groups=True)
        return found

    def _streams(self) -> list[str]:
        if self.settings.streams:
            return list(self.settings.streams)
        manager = StreamManager(self.settings.root)
        scopes = manager.list_scopes() if self.settings.scope is None else [self.settings.scope]
        return [n for scope in scopes for n in manager.list_streams(scope) if self._wants(n)]

    def _groups(self) -> list[str]:
        settings, manager = self.settings, StreamManager(self.settings.root)
        for name in settings.streams:
            open_stream(manager.root, name).view()  # a name that is wrong is told
        is_by_stream = settings.streams or self._table in _OF_STREAM
        if settings.scope is None or is_by_stream:
            scopes = manager.list_scopes()
        else:
            scopes = [settings.scope]
        return [name for scope in scopes for name in manager.list_reader_groups(scope)]

    def _wants(self, stream: str) -> bool:
        """Tell whether a stream is one of those that the options name."""
        settings = self.settings
        if settings.streams:
            return stream in settings.streams
        return settings.pattern is None or bool(re.fullmatch(settings.pattern, stream))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's streams or groups; runs in a task."""
        if not isinstance(partition, NamesPartition):
            return
        rows: list[Row] = []
        for name in partition.names:
            rows += self._rows_of_group(name) if partition.of_groups else self._rows_of_stream(name)
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        yield pa.RecordBatch.from_pylist(rows, schema=arrow)

    def _rows_of_stream(self, name: str) -> list[Row]:
        try:
            return list(_OF_STREAM[self._table](StreamManager(self.settings.root), name))
        except NoSuchStream:
            if self.settings.streams:
                raise
            return []  # deleted meanwhile

    def _rows_of_group(self, name: str) -> list[Row]:
        store = open_store(self.settings.root)
        found = group_description.find(store, name)
        if found is None:
            return []
        scope = self.settings.scope if self._table in _OF_STREAM else None
        streams = [s for s in found.state.lives if self._wants(s)]
        if scope is not None:
            streams = [s for s in streams if s.startswith(f"{scope}/")]
        return list(_OF_GROUP[self._table](store, found, streams)) if streams else []


def _partitions(names: Sequence[str], *, of_groups: bool) -> Iterator[NamesPartition]:
    for i in range(0, len(names), NAMES_OF_TASK):
        yield NamesPartition(tuple(names[i : i + NAMES_OF_TASK]), of_groups)


def _streams(manager: StreamManager, name: str) -> Iterator[Row]:
    record = open_stream(manager.root, name).view().record
    tags = sorted(record.configuration.tags)
    yield {**_name(name), "tags": tags, "state": record.state.value}


def _stream_info(manager: StreamManager, name: str) -> Iterator[Row]:
    info = manager.stream_info(name)
    yield {
        **_name(name),
        "state": info.state,
        "life": info.life,
        "version": info.version,
        "epoch": info.epoch,
        "segments": len(info.segments),
        "events": info.events,
        "size_bytes": info.size_bytes,
        "head": str(info.head),
        "tail": str(info.tail),
        "created": _time(info.created_ms),
        "tags": sorted(info.configuration.tags),
        "configuration": json.dumps(info.configuration.to_json()),
    }


def _segments(manager: StreamManager, name: str) -> Iterator[Row]:
    view = open_stream(manager.root, name).view()
    active = set(view.active.segment_ids)
    lineage = view.lineage
    names = view.snapshot.names(SEGMENT_PREFIX)
    found = sorted(int(name.removeprefix(SEGMENT_PREFIX)) for name in names)
    heads = view.head_offsets(found)
    for segment_id in found:
        record, keys = view.segment(segment_id), lineage.find(segment_id).key_range
        yield {
            **_name(name),
            "segment": segment_text(segment_id),
            "segment_id": segment_id,
            "number": segment_number(segment_id),
            "epoch": segment_epoch(segment_id),
            "key_low": keys.low,
            "key_high": keys.high,
            "active": segment_id in active,
            "sealed": record.is_sealed,
            "head_offset": heads[segment_id],
            "next_offset": record.next_offset,
            "size_bytes": record.size_bytes,
        }


def _transactions(manager: StreamManager, name: str) -> Iterator[Row]:
    stream = open_stream(manager.root, name)
    view = stream.view()
    extended_ms, now_ms = transaction_leases.extended_ms(stream, view), stream.now_ms()
    for info in [*manager.list_transactions(name), *manager.list_completed_transactions(name)]:
        row = {
            **_name(name),
            "transaction": info.transaction_id,
            "status": info.status.value,
            "writer": info.writer_id,
            "epoch": transaction_lifecycle.epoch_of(info.transaction_id),
            "created": _time(info.created_ms),
            "events": info.events,
            "size_bytes": info.size_bytes,
            "reason": info.reason,
        }
        if info.ended_ms:
            row |= {"ended": _time(info.ended_ms), "version": info.version}
        elif info.transaction_id in view.transactions:
            row["lease_seconds"] = view.transactions[info.transaction_id].lease_ms / 1_000
        if info.transaction_id in extended_ms:
            age_ms = now_ms - extended_ms[info.transaction_id]
            row["lease_age_seconds"] = max(0.0, age_ms / 1_000)
        yield row


def _cuts_of_stream(manager: StreamManager, name: str) -> Iterator[Row]:
    view = open_stream(manager.root, name).view()
    truncation = view.record.truncation
    moved_ms = view.record.created_ms if truncation is None else truncation.time_ms
    yield _cut(view, "head", view.head, moved_ms)
    yield _cut(view, "tail", view.tail, view.timestamp_ms)
    for subscriber in subscribers.listed(view):
        if subscriber.cut is not None:
            time_ms = subscriber.published_ms or subscriber.since_ms
            yield _cut(view, "subscriber", subscriber.cut, time_ms, subscriber.group)
    for sample in view.samples:
        yield _cut(view, "sample", sample.tail.cut(name, view.life), sample.time_ms)


def _cuts_of_group(store: Store, found: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = found.state
    places: list[tuple[str, str | None, Mapping[str, StreamCut]]] = [
        ("position", None, state.cuts()),
        ("end", None, state.ends),
    ]
    done = {c.number: c for c in (*state.checkpoints, state.last) if c and c.is_complete}
    places += [("checkpoint", c.name, state.cuts_of(c.positions)) for c in done.values()]
    for stream in streams:
        view: StreamView | None = None
        with contextlib.suppress(NoSuchStream):
            view = open_stream(store, stream).view()
        for kind, name, cuts_by_stream in places:
            if stream in cuts_by_stream:
                yield _cut(view, kind, cuts_by_stream[stream], None, state.group, name)


def _cut(
    view: StreamView | None,
    kind: str,
    cut: StreamCut,
    time_ms: int | None,
    holder: str | None = None,
    name: str | None = None,
) -> Row:
    """Return a row; ``events`` are those from the cut to the tail, where it is still a place."""
    events = None
    with contextlib.suppress(InvalidStreamCut):
        if view is not None:
            events = cuts.distance_events(view, cuts.clip_to_head(view, cut)[0], view.tail)
    return {
        **_name(cut.stream),
        "kind": kind,
        "holder": holder,
        "name": name,
        "cut": str(cut),
        "time": None if time_ms is None else _time(time_ms),
        "events": events,
    }


def _reader_group(store: Store, found: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = found.state
    yield {
        "scope": state.group.partition("/")[0],
        "group": state.group,
        "generation": state.generation,
        "state": state.phase.value,
        "retention": state.configuration.retention.value,
        "streams": sorted(state.lives),
        "readers": sorted(state.readers),
        "assigned": len(state.assigned),
        "unassigned": len(state.unassigned),
        "future": len(state.future),
        "at_end": state.is_at_end,
        "last_checkpoint": None if state.last is None else state.last.name,
        "checkpoints_under_way": sum(not c.is_complete for c in state.checkpoints),
        "version": found.version,
        "updated": _time(found.updated_ms),
        "configuration": json.dumps(state.configuration.to_json()),
    }


def _lag(store: Store, found: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = group_description.said(store, found.state)
    for stream in streams:
        for segment in group_description.segment_positions(
            state, stream, partial(open_stream, store)
        ):
            yield {
                "group": found.state.group,
                **_name(stream),
                "segment_id": segment.segment_id,
                **segment.named(),
            }


def _name(name: str) -> Row:
    scope, _, stream = name.partition("/")
    return {"scope": scope, "stream": stream}


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, timezone.utc)


_OF_STREAM: dict[str, Callable[[StreamManager, str], Iterable[Row]]] = {
    "Streams": _streams,
    "StreamInfo": _stream_info,
    "Segments": _segments,
    "Transactions": _transactions,
    "StreamCuts": _cuts_of_stream,
}
_OF_GROUP: dict[str, Callable[[Store, GroupVersion, Sequence[str]], Iterable[Row]]] = {
    "ReaderGroups": _reader_group,
    "Lag": _lag,
    "StreamCuts": _cuts_of_group,
}
