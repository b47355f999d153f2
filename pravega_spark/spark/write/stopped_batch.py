"""A batch of several streams that a stop left in some of them: what its streams know of it."""

from __future__ import annotations

from collections.abc import Mapping

from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.engine.writing.split_batch import SplitBatch, StreamPart
from pravega_spark.errors import BatchConflict, NoSuchStream
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.write_source import WriteSource

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
    return _is_of(view, held.parts[name]) and (known is None or known.last < held.number)


def _is_of(view: StreamView, part: StreamPart) -> bool:
    """Return whether a stream is the one of a batch: it was not created again, or was restored."""
    return view.life == part.life or view.restored_ms is not None


def lacking(root: str, held: SplitBatch) -> list[str]:
    """Return the streams of a batch that lack it."""
    return [n for n in held.parts if lacks(held, n, known_of(root, n, held.writer_id))]


def check_left(identity: NumberedBatch) -> None:
    """Raise BatchConflict for a number that streams lack, and would skip for a later one."""
    source, number = identity.source, identity.number
    assert isinstance(source, WriteSource)
    held, root = source.split_batch(), source.settings.root
    if held is None or source.settings.accept_replay == number:
        return
    gone = []
    for name, part in held.left.get(number, {}).items():
        found = known_of(root, name, source.writer_id)
        if found is not None and _is_of(found[0], part) and found[1] and found[1].last > number:
            gone.append(f"{name} (rows {part.rows})")
    if gone:
        raise BatchConflict(
            f"number {number} of {source.writer_id!r} was stopped before it was in "
            f"{', '.join(gone)}, and later numbers are there since, so this write of it would be "
            "skipped there. Nothing was written. Write the rows of "
            f"{'that stream' if len(gone) == 1 else 'those streams'} under another txnAppId. If "
            f"they do not matter, write number {number} no more, or set the option "
            f"acceptReplay={number} once.",
            writer_id=source.writer_id,
            number=number,
            last=held.number,
        )


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
