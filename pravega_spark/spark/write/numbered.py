"""Numbered writes: the number of each, the first batch of a run, and one that comes again.

A run goes on where an earlier one ended. Between them the checkpoint, the options or the stream may
have changed so that rows would be missing, or twice.

The numbers of writes: of queries' batches, and of applications' versions. The driver makes one for
each write, from what its tasks saw, and commits with it in each stream.

Whether a write that comes again within one run has the rows that are there already. The order of a
frame's rows may differ each time, and so may times that are those of writing. So the digest is a
sum over the rows, of their keys and payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import xxhash

from pravega_spark.dead_letters import SUFFIX
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import root_restored_ms
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog, chunk_ref, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import read_staged
from pravega_spark.engine.writing.identity import OTHER_ID, BatchOrigin, NumberedBatch, origin_of
from pravega_spark.engine.writing.split_batch import SplitBatch, StreamPart
from pravega_spark.errors import (
    BatchConflict,
    DataLoss,
    IllegalState,
    InvalidOption,
    NoSuchStream,
    TruncatedData,
)
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.batch_source import (
    UNREADABLE,
    WriteSource,
    query_id_of,
    query_writer,
)
from pravega_spark.spark.write.task_run import SinkMessage, TaskRun, run_of
from pravega_spark.values.segments import SegmentRange

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


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """A batch for a stream that has none of its run, and what the stream knows of its writer."""

    source: WriteSource
    view: StreamView
    known: WriterRecord | None
    number: int

    def check(self) -> None:
        """Raise if the stream's last batch is not the checkpoint's, or its streams lack a batch."""
        self._check_restored()
        self._check_last()
        self._check_split()

    def _check_restored(self) -> None:
        """Raise StaleIdentity if a query that the stream does not know is older than its restore.

        Its first batches may have been after the copy. A new query, and batch 0, lack nothing.
        """
        source, restored_ms = self.source, self._restored_ms()
        if self.known is not None or not self.number or restored_ms is None:
            return
        checkpoint = source.checkpoint
        try:
            if checkpoint is None:
                raise ValueError("the write does not know it")
            checkpoint.check_is_of(source.task.query_id)
            if checkpoint.created_ms() >= restored_ms:
                return
        except UNREADABLE as error:
            source.warn(
                "stream %s was restored from a copy, and has no batch of %s, whose first one here "
                "is %d. Whether the copy lacks earlier ones is not known, since the checkpoint "
                "cannot be read: %s",
                self.view.stream,
                source.writer_id,
                self.number,
                error,
            )
            return
        source.numbered(self.number).check_complete(self.view, -1)

    def _restored_ms(self) -> int | None:
        """Return when a restore began the stream's life, or brought a root that lacked the stream.

        Where rows name their streams, and for dead letters, a stream that is missing says nothing.
        """
        view, settings = self.view, self.source.settings
        if view.restored_ms is not None or view.stream != settings.stream:
            return view.restored_ms
        restored_ms = root_restored_ms(open_store(settings.root))
        is_younger = restored_ms is not None and view.record.created_ms >= restored_ms
        return restored_ms if is_younger else None

    def _check_last(self) -> None:
        """Raise BatchConflict if the checkpoint has other ends for the stream's last batch."""
        source, known, before = self.source, self.known, origin_of(self.known)
        origin, checkpoint = source.origin(before), source.checkpoint
        if before is None or known is None or self.number <= known.last or checkpoint is None:
            return
        if origin.ends is None or before.query != origin.query or before.ends is None:
            return
        assert before.batch is not None
        try:
            ends = checkpoint.ends(before.batch).digest
        except UNREADABLE:  # Spark keeps the last hundred
            return
        if ends != before.ends:
            there = BatchOrigin(origin.query, None, before.batch, ends)
            raise BatchConflict(
                f"stream {self.view.stream} has number {known.last} of {source.writer_id!r} from "
                f"{before}, and the checkpoint {checkpoint.location} has {there}: it was copied or "
                "changed since, so its later batches may have rows that the stream has. Nothing "
                "was written. Give the query a new checkpoint, with a start after those rows.",
                writer_id=source.writer_id,
                number=self.number,
                last=known.last,
            )

    def _check_split(self) -> None:
        """Raise BatchConflict if rows of the last batch of several would be missing, or twice."""
        source = self.source
        if self._is_known:
            check_left(source.numbered(self.number))
        elif source.is_of_query:
            self._check_letters()
        held, mine = source.split_batch(), placing_options(source.settings)
        if held is None or held.options == mine:
            return
        is_elsewhere = self.view.stream not in held.parts
        if self._is_known and is_elsewhere:  # another write of the same batch
            return
        pending = lacking(source.settings.root, held)
        if pending:
            raise BatchConflict(
                f"number {held.number} of {source.writer_id!r} is for the streams "
                f"{', '.join(held.parts)}, by the options {options_text(held.options)}, and was "
                f"stopped before it was in {', '.join(pending)}. This write has the options "
                f"{options_text(mine)}, so those rows would be in no stream, or in two. Nothing "
                "was written. Write that batch once more with the options that it had; then change "
                "them.",
                writer_id=source.writer_id,
                number=self.number,
                last=held.number,
            )
        if is_elsewhere and source.is_of_query and self.number == held.number:
            self._raise_moved(held.parts, held.options)

    def _check_letters(self) -> None:
        """Raise BatchConflict if all of a query's batch went to the dead letters before.

        A batch of one stream leaves no record, and without the option nobody looks there.
        """
        settings = self.source.settings
        if self.view.stream != settings.stream or settings.bad_records == "dlq":
            return
        letters = self.view.stream + SUFFIX
        found = known_of(settings.root, letters, self.source.writer_id)
        if found is not None and found[1] is not None and found[1].last == self.number:
            self._raise_moved([letters], {**placing_options(settings), "badRecords": "dlq"})

    def _raise_moved(self, streams: Iterable[str], options: Mapping[str, str]) -> None:
        source = self.source
        raise BatchConflict(
            f"number {self.number} of {source.writer_id!r} is in {', '.join(streams)}, by the "
            f"options {options_text(options)}, and not in {self.view.stream}. This write has the "
            f"options {options_text(placing_options(source.settings))}, so its rows would be in "
            "two streams. Nothing was written. Write that batch once more with the options that "
            "it had, and the same code; then change them.",
            writer_id=source.writer_id,
            number=self.number,
            last=self.number,
        )

    @property
    def _is_known(self) -> bool:
        return self.known is not None and self.number <= self.known.last


def query_batch(
    settings: WriteSettings, messages: Sequence[SinkMessage], number: int
) -> NumberedBatch:
    """Return the identity of a query's micro-batch; raise InvalidOption without the query's id."""
    task, query_id = run_of(messages), query_of(settings, messages)
    if query_id is None:
        raise InvalidOption(
            "the streaming query's id is neither in the tasks' properties nor in "
            f"{settings.checkpoint}/metadata, so a repeated micro-batch could not be "
            "recognized. Set the option checkpointLocation to a path that the driver can read."
        )
    run = TaskRun(query_id, task.run, number, task.checkpoint)
    return _CheckedSource(settings, run, query_writer(query_id)).numbered(number)


def query_of(settings: WriteSettings, messages: Iterable[SinkMessage]) -> str | None:
    """Return the id of the query that writes; None if nothing tells it."""
    return run_of(messages).query_id or query_id_of(settings.checkpoint)


def application_batch(
    settings: WriteSettings, messages: Iterable[SinkMessage], application: str
) -> NumberedBatch | None:
    """Return the identity that txnAppId and txnVersion give to a write, or None without them.

    ``application`` is that of Spark, as the driver knows it.
    """
    if settings.application is None:
        return None
    name, number = settings.application
    run = attempt_of(settings, run_of(messages), application)
    if run.query_id is None:
        run = replace(run, query_id=query_id_of(settings.checkpoint))
    return _CheckedSource(settings, run, application_writer(name)).numbered(number)


def attempt_of(settings: WriteSettings, task: TaskRun, application: str) -> TaskRun:
    """Return what a batch write's task saw, with a run and an attempt of this application."""
    return task.of(application, is_in_query=settings.checkpoint is not None)


def application_writer(name: str) -> str:
    """Return the writer id of a txnAppId, in a stream's log and in a transaction."""
    return f"txn:{name}"


class _CheckedSource(WriteSource):
    """A write whose batch is checked if it is the first one of a run."""

    def check_first(self, view: StreamView, known: WriterRecord | None, number: int) -> None:
        """Raise if the stream's last batch is not the checkpoint's, or its streams lack a batch."""
        FirstBatch(self, view, known, number).check()


_LIMIT = 1 << 128


def staged_digest(stream: StreamLog, chunks: Iterable[StagedChunk]) -> str:
    """Return the digest of the rows in staged chunks."""
    view = stream.known_view()
    names = _columns(view)
    return _digest(batch for c in chunks for batch in read_staged(stream, view, c, names))


def committed_digest(stream: StreamLog, version: int) -> str | None:
    """Return the digest of the rows that a version appended; None if they are no longer there."""
    view = stream.known_view()
    names = _columns(view)

    def batches(commit: Commit) -> Iterator[pa.RecordBatch]:
        for add in commit.adds:
            ref = chunk_ref(add, stream.path)
            rng = SegmentRange(
                view.stream,
                life=view.life,
                segment_id=ref.segment_id,
                start=ref.base_offset,
                end=ref.end,
            )
            yield from read_range(stream, rng, [ref], columns=names, shared=False)

    try:
        commit = stream.log.reader.commit(version, light=False)
        return None if commit is None else _digest(batches(commit))
    except (TruncatedData, DataLoss):
        return None


def _columns(view: StreamView) -> list[str]:
    return [name for name in view.event_format.events.names if name != "timestamp"]


def _digest(batches: Iterable[pa.RecordBatch]) -> str:
    total = rows = 0
    for batch in batches:
        columns = [_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            total = (total + xxhash.xxh3_128_intdigest(repr(row).encode())) % _LIMIT
            rows += 1
    return f"{rows} rows {total:032x}"


def _values(column: pa.Array) -> list[Any]:
    """Return a column's values; times as numbers, since Python does not hold all of them."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


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
        group = "" if origin.query else " Give each run of a script a separate job group."
        raise BatchConflict(
            f"{where} has number {identity.number} of {identity.writer_id!r} from {origin}, and "
            f"this write repeats it with other rows ({here}; now {given}). "
            f"{OTHER_ID}{group}",
            writer_id=identity.writer_id,
            number=identity.number,
            last=identity.number,
        )
