"""A batch of several streams that a stop left in some of them: what its streams know of it."""

from __future__ import annotations

from collections.abc import Mapping

from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.split_batch import SplitBatch
from pravega_spark.errors import NoSuchStream
from pravega_spark.spark.settings import WriteSettings

Known = tuple[StreamView, WriterRecord | None]
"""A stream, and what it knows of a batch's writer."""


def known_of(root: str, name: str, writer_id: str) -> Known | None:
    """Return what a stream knows of a writer; None if there is no such stream."""
    stream = open_stream(root, name)
    try:
        view = existing_view(stream)
    except NoSuchStream:
        return None
    return view, archived_records.find_writer(stream, view, writer_id)


def lacks(held: SplitBatch, name: str, found: Known | None) -> bool:
    """Return whether a stream of a batch, in the life that it had or restored, lacks it."""
    if found is None:
        return False
    view, known = found
    if view.life != held.parts[name].life and view.restored_ms is None:
        return False  # created again
    return known is None or known.last < held.number


def lacking(root: str, held: SplitBatch) -> list[str]:
    """Return the streams of a batch that lack it."""
    return [n for n in held.parts if lacks(held, n, known_of(root, n, held.writer_id))]


def placing_options(settings: WriteSettings) -> dict[str, str]:
    """Return the options that decide where a row goes, those that are not the default's."""
    found = {
        "stream": settings.stream,
        "scope": settings.scope,
        "columnNames": settings.column_names,
        "routingKey": settings.routing_key,
        "keyEncoding": settings.key_encoding,
        "nullValues": settings.null_values,
        "eventTime": settings.event_time,
        "badRecords": settings.bad_records,
    }
    return {name: value for name, value in found.items() if value}


def options_text(options: Mapping[str, str]) -> str:
    """Return options as an error shows them."""
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "(none)"
