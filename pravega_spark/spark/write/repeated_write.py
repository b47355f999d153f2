"""A numbered write that comes again: whether it is staged, and whether it has the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.engine.writing.batch_origin import OTHER_ID, BatchOrigin, origin_of
from pravega_spark.errors import BatchConflict, IllegalState, NoSuchStream
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.numbered_write import application_writer
from pravega_spark.spark.write.same_rows import committed_digest, staged_digest


def known_origins(
    settings: WriteSettings, streams: Iterable[str]
) -> tuple[BatchOrigin | None, ...] | None:
    """Return where the known number of a write came from in each of its streams.

    None if one of them lacks the number: then the write must be staged.
    """
    if settings.application is None:
        return None
    name, number = settings.application
    found = [_record(settings.root, stream, application_writer(name)) for stream in streams]
    if any(known is None or known.last < number for known in found):
        return None
    return tuple(map(origin_of, found))


def check_repeated(
    settings: WriteSettings, streams: Iterable[str], identity: NumberedBatch | None
) -> None:
    """Raise BatchConflict if a write that was not staged is another one of the known number."""
    assert identity is not None, "only a write with a number is left unstaged"
    for name in streams:
        view = existing_view(open_stream(settings.root, name))
        known = view.writer(identity.writer_id)
        if known is not None and identity.check(known, view):
            raise IllegalState(
                f"stream {name} had number {identity.number} of {identity.writer_id!r} when this "
                "write began, and no longer has it; nothing was written. Write again."
            )


def _record(root: str, name: str, writer_id: str) -> WriterRecord | None:
    try:
        return open_stream(root, name).known_view().writer(writer_id)
    except NoSuchStream:
        return None


def check_same_rows(
    stream: StreamLog, identity: NumberedBatch, chunks: Sequence[StagedChunk]
) -> None:
    """Raise BatchConflict if it must not write other rows under the number of a repeated write."""
    known = archived_records.find_writer(stream, stream.known_view(), identity.writer_id)
    before = origin_of(known)
    if known is None or known.last != identity.number:
        return
    if not identity.source.origin(before).needs_rows_of(before):
        return
    here = committed_digest(stream, known.version)
    check_equal(stream.name, identity, here, staged_digest(stream, chunks))


def check_equal(where: str, identity: NumberedBatch, here: str | None, given: str) -> None:
    """Raise BatchConflict unless both are digests of the same rows."""
    if here is not None and here != given:
        origin = identity.source.origin(None)
        group = "" if origin.query else " Give each run of a script a job group of its own."
        raise BatchConflict(
            f"{where} has number {identity.number} of {identity.writer_id!r} from {origin}, and "
            f"this write repeats it with other rows ({here}; now {given}). "
            f"{OTHER_ID}{group}",
            writer_id=identity.writer_id,
            number=identity.number,
            last=identity.number,
        )
