"""A stream as a record: configuration, columns, position, segments and who reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import click

from pravega_spark.cli.many_names import look_at_each
from pravega_spark.cli.output import (
    TABLE,
    TableColumn,
    count,
    moment,
    names,
    show_record,
    show_records,
    size,
)
from pravega_spark.config.descriptions import StreamInfo
from pravega_spark.config.policy_texts import retention_text, scaling_text
from pravega_spark.config.root_settings import rule_of
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import NoSuchStream, TruncatedData
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.scaling.rates import last_rates, segment_load
from pravega_spark.schemas.sql import sql_type
from pravega_spark.values.segments import segment_text

SUMMARY = (
    TableColumn("STREAM", "stream"),
    TableColumn("STATE", "state"),
    TableColumn("SEGMENTS", "segments"),
    TableColumn("EPOCH", "epoch"),
    TableColumn("EVENTS", "events", count),
    TableColumn("SIZE", "size_bytes", size),
    TableColumn("SCALING", "scaling"),
    TableColumn("RETENTION", "retention"),
    TableColumn("TAGS", "tags", names),
)
_DETAILS = (
    *SUMMARY,
    TableColumn("LIFE", "life"),
    TableColumn("CREATED", "created_ms", moment),
    TableColumn("VERSION", "version"),
    TableColumn("FILES", "files", count),
    TableColumn("STORED", "stored_bytes", size),
    TableColumn("WATERMARK", "watermark_ms", moment),
    TableColumn("HEAD", "head"),
    TableColumn("TAIL", "tail"),
)
_COLUMNS = (
    TableColumn("COLUMN", "column"),
    TableColumn("TYPE", "type"),
    TableColumn("REQUIRED", "required", lambda value: "yes" if value else "-"),
    TableColumn("COMMENT", "comment"),
)
_SEGMENTS = (
    TableColumn("SEGMENT", "segment"),
    TableColumn("KEYS", "keys"),
    TableColumn("STATE", "state"),
    TableColumn("HEAD", "head"),
    TableColumn("TAIL", "tail"),
    TableColumn("EVENTS", "events", count),
    TableColumn("EVENTS/S", "events_per_second", lambda value: f"{value:,.1f}"),
    TableColumn("BYTES/S", "bytes_per_second", lambda value: size(int(value))),
)
_SUBSCRIBERS = (
    TableColumn("SUBSCRIBER", "subscriber"),
    TableColumn("LAG", "lag", count),
    TableColumn("LAG-BYTES", "lag_bytes", size),
    TableColumn("PUBLISHED", "published_ms", moment),
    TableColumn("CUT", "cut"),
)


def _summary(view: StreamView, size_bytes: int) -> dict[str, Any]:
    """Return what a list of streams shows of one."""
    record, configuration = view.record, view.record.configuration
    return {
        "stream": view.stream,
        "state": record.state.value,
        "segments": len(view.active.segments),
        "epoch": record.active_epoch,
        "events": view.located_head.events_to(view.located_tail),
        "size_bytes": size_bytes,
        "scaling": scaling_text(configuration.scaling),
        "retention": retention_text(configuration.retention),
        "tags": sorted(configuration.tags),
    }


def show_summaries(store: Store, found: Sequence[str], output: str) -> None:
    """Show the summaries of streams; one that was deleted since is left out."""

    def summary(name: str) -> dict[str, Any] | None:
        stream = open_stream(store, name)
        with contextlib.suppress(NoSuchStream):
            return stream.on_newest(
                lambda view: _summary(view, stream.readable_bytes(view)),
                view=begun_view(stream),
            )
        return None

    with look_at_each(summary, found, "streams") as records:
        show_records(records, SUMMARY, output)


def described(manager: StreamManager, name: str) -> dict[str, Any]:
    """Return all that is shown of a stream: its cost does not grow with its events."""
    info = manager.stream_info(name)
    log, configuration = root_of(manager).stream(name), info.configuration
    view = log.view(refresh=False)
    encryption = configuration.encryption
    return {
        **_summary(view, info.size_bytes),
        "life": info.life,
        "created_ms": info.created_ms,
        "version": info.version,
        "configuration_version": info.configuration_version,
        "files": info.files.files,
        "stored_bytes": info.files.size_bytes,
        "watermark_ms": None if info.watermark is None else info.watermark.lower_us // 1_000,
        "settings": {
            name: rule_of(name).text(value) for name, value in configuration.settings.items()
        },
        "columns": _column_records(configuration.schema),
        "encryption_key": None if encryption is None else encryption.key,
        "head": str(info.head),
        "tail": str(info.tail),
        "segment_list": _segment_records(manager, info),
        "subscribers": _subscriber_records(manager, info),
        "overdue": list(overdue_maintenance(log, view).values()),
    }


def _column_records(schema: StreamSchema | None) -> list[dict[str, Any]]:
    """Return the columns of a typed stream, with the types as SQL names them."""
    if schema is None:
        return []
    return [
        {
            "column": field.name,
            "type": sql_type(field.type, comments=True),
            "required": not field.nullable,
            "comment": (field.metadata or {}).get(b"comment", b"").decode() or None,
        }
        for field in schema.fields
    ]


def _segment_records(manager: StreamManager, info: StreamInfo) -> list[dict[str, Any]]:
    stream = root_of(manager).stream(info.stream)
    view = stream.view()
    rates = last_rates(stream, view)
    records = []
    for segment in view.active.segments:
        load = rates and segment_load(rates, segment.number, rates.time_ms)
        record = _segment_record(view, segment.segment_id)
        record["keys"] = f"[{segment.key_range.low:g}, {segment.key_range.high:g})"
        record["events_per_second"] = load.events[0] if load else None
        record["bytes_per_second"] = load.size_bytes[0] if load else None
        records.append(record)
    return records


def _segment_record(view: StreamView, segment_id: int) -> dict[str, Any]:
    found, head = view.segment(segment_id), view.head_offset(segment_id)
    return {
        "segment": segment_text(segment_id),
        "state": "sealed" if found.is_sealed else "open",
        "head": head,
        "tail": found.next_offset,
        "events": found.next_offset - head,
    }


def _subscriber_records(manager: StreamManager, info: StreamInfo) -> list[dict[str, Any]]:
    records = []
    for found in manager.list_subscribers(info.stream):
        lag: tuple[int | None, int | None] = (None, None)
        if found.cut is not None:
            with contextlib.suppress(TruncatedData):
                lag = manager.distance(info.stream, found.cut, info.tail)
        records.append(
            {
                "subscriber": found.name,
                "lag": lag[0],
                "lag_bytes": lag[1],
                "published_ms": found.published_ms,
                "cut": None if found.cut is None else str(found.cut),
            }
        )
    return records


def show_stream(record: dict[str, Any]) -> None:
    """Print the sections of a stream: a block, its segments, and its subscribers if it has any."""
    overdue = (TableColumn("OVERDUE", "overdue", "; ".join),) if record["overdue"] else ()
    show_record(record, (*_DETAILS, *overdue), TABLE)
    for columns, records in (
        (_COLUMNS, record["columns"]),
        (_SEGMENTS, record["segment_list"]),
        (_SUBSCRIBERS, record["subscribers"]),
    ):
        if records:
            click.echo()
            show_records(records, columns, TABLE)
