"""The sink of a frame whose rows name their streams: one commit in each stream, each once.

The commits are independent, so a reader of several streams may see a batch in one before another. A
driver that dies between two of them leaves the batch in some streams alone. Then Spark writes it
again: each stream that has it skips it, and the others get their rows. A row that goes to another
stream than before would be in two streams, or in none, so a replay must have as many rows for each
stream as the record of the batch says (``split_batch``). A batch write without txnAppId has no
number to skip it by; its error says which streams have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pravega_spark.dead_letters import SUFFIX
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import ensure_probed, open_store
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import StreamState, WriterRecord
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.engine.writing.identity import NumberedBatch, origin_of
from pravega_spark.engine.writing.split_batch import SplitBatch, StreamPart
from pravega_spark.errors import BatchConflict, IllegalState, InvalidOption, PravegaSparkError
from pravega_spark.spark.options import warn_of_leftovers
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.versions import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pravega_spark.spark.write.batch_source import WriteSource
from pravega_spark.spark.write.columns import InputColumns, StreamColumn, has_events
from pravega_spark.spark.write.joined_batches import joined
from pravega_spark.spark.write.messages import TaskCommitMessage, chunks_of, commit_chunks
from pravega_spark.spark.write.numbered import (
    Known,
    application_batch,
    check_left,
    check_same_rows,
    committed_digest,
    known_of,
    lacks,
    placing_options,
    query_batch,
    query_of,
    staged_digest,
)
from pravega_spark.spark.write.plan import is_new_root
from pravega_spark.spark.write.staging import ChunkStager, StagingThreads, events_of
from pravega_spark.spark.write.target import FramePlan, plan_in_task
from pravega_spark.spark.write.task_run import SinkMessage, TaskRun, application
from pravega_spark.values.limits import TASK_BYTES

logger = own_logger(__name__)

_FRAMES = " Two frames of a batch need a txnAppId each, such as txnAppId='app/good'."


@dataclass
class SplitWrite:
    """One write to several streams: its identity, and the chunks that the tasks staged for each.

    :meth:`begin` answers three questions before the first commit. May the batch be in some of its
    streams alone? If so, does each row go where it went before? And what must the record say, in
    case this write is stopped as well?
    """

    settings: WriteSettings
    identity: NumberedBatch
    chunks: Mapping[str, Sequence[StagedChunk]]
    _known: dict[str, Known] = field(default_factory=dict)
    """What is known of each stream that was looked at: its view, and the writer's record."""
    _recorded: SplitBatch | None = None

    def begin(self, views: Sequence[StreamView]) -> None:
        """Check the streams that the rows name, and record them if a stream lacks the batch.

        Raises what the batch's commits would raise, and BatchConflict for a replay with other rows.
        """
        is_new = [self._is_new(view) for view in views]
        target = self.settings.stream  # of the rows whose bad ones are dead letters
        if target and self.chunks and target not in self._known:
            self._is_new(existing_view(open_stream(self.settings.root, target)))
        last: SplitBatch | None = None
        if self._may_be_stopped():
            last = self._source.split_batch()
            own = last if last is not None and last.number == self.identity.number else None
            self._look_at_more(last, is_its=own is not None)
            self._check_replay(own)
            check_left(self.identity)
        self._record(views, last, is_new=any(is_new))

    def end(self) -> None:
        """Note that all of its streams have the batch."""
        if self._recorded is not None:
            self._source.end(self._recorded)

    # ---------------- may it be in some of its streams alone?

    def _may_be_stopped(self) -> bool:
        """Return whether this batch, or the one before, may be in some of its streams alone.

        It is in one of them already, or no earlier batch of this run is, or this process knows of a
        stopped one. So the batches of a run read nothing more than its first one.
        """
        records = [known for _, known in self._known.values()]
        is_replay = any(map(self._has, records)) or self._source.knows_stopped
        return is_replay or not any(map(self._is_of_this_run, records))

    def _is_new(self, view: StreamView) -> bool:
        """Return whether a stream lacks the batch; raise what its commit would raise."""
        stream = open_stream(self.settings.root, view.stream)
        known = archived_records.find_writer(stream, view, self.identity.writer_id)
        self._known[view.stream] = view, known
        return self.identity.check(known, view)

    def _has(self, known: WriterRecord | None) -> bool:
        return known is not None and known.last >= self.identity.number

    def _is_of_this_run(self, known: WriterRecord | None) -> bool:
        before = origin_of(known)
        return self._source.origin(before).is_same_run(before)

    def _look_at_more(self, last: SplitBatch | None, *, is_its: bool) -> None:
        """Look at the streams to which the batch may have gone, besides those that its rows name.

        ``last`` is the newest recorded batch. If it is an earlier one, its streams are those of a
        query; an application's frames may each have their own.
        """
        names: set[str] = set()
        if last is not None and (is_its or (self.chunks and self._source.is_of_query)):
            names.update(last.parts)
        if self.settings.stream and self.chunks:
            names.add(self.settings.stream + SUFFIX)
        for name in sorted(names - set(self._known)):
            found = known_of(self.settings.root, name, self.identity.writer_id)
            if found is not None:
                self._known[name] = found

    def _lacking(self, batch: SplitBatch) -> dict[str, StreamPart]:
        """Return the parts of a recorded batch for the streams that lack it."""
        root, writer_id = self.settings.root, self.identity.writer_id
        return {
            name: part
            for name, part in batch.parts.items()
            if lacks(batch, name, self._known.get(name) or known_of(root, name, writer_id))
        }

    def _is_other_frame(self, batch: SplitBatch) -> bool:
        """Return whether an application may write another frame under the number of a batch."""
        is_apart = bool(self.chunks) and self.chunks.keys().isdisjoint(batch.parts)
        return is_apart and not self._source.is_of_query

    @property
    def _source(self) -> WriteSource:
        assert isinstance(self.identity.source, WriteSource)
        return self.identity.source

    @property
    def _rows(self) -> dict[str, int]:
        return {name: sum(c.rows for c in chunks) for name, chunks in self.chunks.items()}

    # ---------------- what must the record say?

    def _record(
        self, views: Sequence[StreamView], last: SplitBatch | None, *, is_new: bool
    ) -> None:
        """Record the batch if a stop could leave it in some streams, or if one did.

        ``last`` is the newest recorded batch: this one, if it is written again, or an earlier one.
        The record takes its place, so it keeps what streams still lack of that one.
        """
        number = self.identity.number
        parts = {view.stream: StreamPart(view.life, self._rows[view.stream]) for view in views}
        stopped = {} if last is None else dict(last.left)
        was_stopped = bool(stopped.pop(number, {}))  # and a later number was written meanwhile
        if last is not None and last.number == number:
            lacking = self._lacking(last)
            is_needed = is_new
            if not self._is_other_frame(last):
                is_needed |= bool(lacking)
                # Streams that have it already stay named, although it has no rows for them now.
                done = last.parts.keys() - lacking.keys() - parts.keys()
                parts.update({name: StreamPart(last.parts[name].life, 0) for name in done})
        elif is_new:
            lacking = {} if last is None else self._lacking(last)
            # A stream that gets this number would skip an earlier one that it still lacks.
            overtakes = not lacking.keys().isdisjoint(parts)
            is_needed = len(views) > 1 or was_stopped or overtakes
            if last is not None and lacking and is_needed:
                stopped[last.number] = lacking
                self._warn_of_stopped(last.number, lacking)
        else:
            is_needed = False
        if is_needed:
            self._recorded = SplitBatch(
                writer_id=self.identity.writer_id,
                number=number,
                parts=parts,
                options=placing_options(self.settings),
                left=stopped,
            )
            self._source.record(self._recorded)
            failpoint("many_streams.recorded")
        elif last is not None and was_stopped and number == self.settings.accept_replay:
            self._source.record(replace(last, left=stopped))

    def _warn_of_stopped(self, number: int, lacking: Iterable[str]) -> None:
        logger.warning(
            "number %d of %s was stopped before it was in %s, and number %d is written now. If "
            "number %d is written again, it is refused where later numbers are",
            number,
            self.identity.writer_id,
            _names(lacking),
            self.identity.number,
            number,
            extra=log_fields("append", self.settings.stream, number=number),
        )

    # ---------------- does each row go where it went before?

    def _check_replay(self, own: SplitBatch | None) -> None:
        """Raise BatchConflict if the batch is in some streams, and its rows now go elsewhere.

        ``own`` is the record of this very batch, if there is one.
        """
        having = {n: known for n, (_, known) in self._known.items() if known and self._has(known)}
        lacking = self._lacking(own) if own else {}
        added = [name for name in self.chunks if name not in having]
        again = having.keys() & self.chunks.keys()
        for name in again:
            stream = open_stream(self.settings.root, name)
            check_same_rows(stream, self.identity, self.chunks[name])
        if not having or not (lacking or added):
            return  # nothing of it is in a stream, or all of it
        if self.identity.number == self.settings.accept_replay:
            return
        if own is None:
            self._check_unrecorded(having, added)
        elif own.rows != self._rows:
            # Other rows under one number: another frame of an application's batch, as long as no
            # stream shows that it is this one, written again.
            if self._is_other_frame(own) and not (added and (lacking or again)):
                return
            raise self._conflict(
                f"was stopped when it was in {_names(having)}"
                f"{f' and not in {_names(lacking)}' if lacking else ''}. It had {_text(own.rows)}"
            )
        for name, known in having.items():
            self._compare(name, known)

    def _check_unrecorded(self, having: Mapping[str, WriterRecord], added: Iterable[str]) -> None:
        """Raise BatchConflict for rows of another stream than the one that the batch was for.

        A batch of one stream leaves no record. An earlier version leaves none at all, and neither
        an origin; and a restored root has none, nor all that its streams had.
        """
        sure = [n for n, k in having.items() if k.last == self.identity.number and origin_of(k)]
        others = [name for name in added if not self._was_restored(name)]
        if sure and others:
            raise self._conflict(
                f"is in {_names(sure)}, and no record says that it had rows for {_names(others)}"
            )

    def _was_restored(self, name: str) -> bool:
        """Whether a restore may have dropped the batch from a stream that lacks it."""
        view, known = self._known[name]
        return view.restored_ms is not None and (known is None or known.is_restored)

    def _conflict(self, what: str) -> BatchConflict:
        writer_id, number = self.identity.writer_id, self.identity.number
        return BatchConflict(
            f"number {number} of {writer_id!r} {what}; this write of it has {_text(self._rows)}. "
            "So rows would be in two streams, or in none. Nothing was written. Write the batch "
            "once more with the code, the columns and the options that it had; or, if those rows "
            f"do not matter, set the option acceptReplay={number}: the streams that lack the batch "
            f"then take the rows that they have now.{'' if self._source.is_of_query else _FRAMES}",
            writer_id=writer_id,
            number=number,
            last=number,
        )

    def _compare(self, name: str, known: WriterRecord) -> None:
        """Warn if a stream that has the batch got other rows than it would get now.

        They may rightly differ, as a time or a random id in an event does.
        """
        if name not in self.chunks or known.last != self.identity.number:
            return
        stream = open_stream(self.settings.root, name)
        here, given = (
            committed_digest(stream, known.version),
            staged_digest(stream, self.chunks[name]),
        )
        if here is not None and here != given:
            logger.warning(
                "number %d of %s is in stream %s with other rows (%s; now %s). If a row's stream "
                "is chosen at random, rows of this batch are in two streams, or in none; if only "
                "their values differ, nothing is lost",
                self.identity.number,
                self.identity.writer_id,
                name,
                here,
                given,
                extra=log_fields("append", name, number=self.identity.number),
            )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _text(rows: Mapping[str, int]) -> str:
    """Return numbers of rows by stream as an error shows them."""
    shown = [f"{count} for {name}" for name, count in sorted(rows.items())]
    return f"rows {', '.join(shown)}" if shown else "no rows"


@dataclass(slots=True)
class _StreamStaging:
    plan: FramePlan
    stager: ChunkStager


def stage_many(
    batches: Iterable[pa.RecordBatch],
    names: StreamColumn,
    frame: StructType,
    columns: InputColumns | None,
    settings: WriteSettings,
    partition_id: int,
) -> dict[str, TaskCommitMessage]:
    """Stage a task's rows; return for each of their streams what to commit.

    ``frame`` are the columns of the rows, and ``columns`` those of events of bytes, if it has them.
    The driver cannot know the streams, so the task makes the plans, and creates streams that are
    missing if the settings allow it. All streams together buffer as much as one would.
    """
    token, first = os.urandom(8).hex(), 0
    streams: dict[str, _StreamStaging] = {}
    with StagingThreads() as threads:
        for batch in joined(batches):
            for name, rows, numbers in names.split(batch, columns):
                if name not in streams:
                    of_stream = replace(settings, stream=name)
                    plan = plan_in_task(of_stream, names.without_names(frame))
                    stager = ChunkStager(
                        plan.staging, of_stream, f"{token}-{partition_id}", partition_id, threads
                    )
                    streams[name] = _StreamStaging(plan, stager)
                its = streams[name]
                events = events_of(rows, its.plan.columns, partition_id, first + numbers)
                its.stager.add(events)
            first += batch.num_rows
            stagers = [found.stager for found in streams.values()]
            while sum(stager.size for stager in stagers) > TASK_BYTES:
                max(stagers, key=lambda stager: stager.size).drain_largest()
        task = TaskRun.current()
        may_be_first = task.batch == 0 or (task.batch is None and settings.checkpoint is not None)
        is_first = not streams and may_be_first and settings.create_if_missing
        if is_first and is_new_root(settings, task):
            ensure_probed(open_store(settings.root))  # or the next batch would miss the root
        return {
            name: TaskCommitMessage(
                found.plan.staging.life, found.plan.staging.version, found.stager.finish()
            )
            for name, found in streams.items()
        }


@dataclass
class ManyStreamsMessage(SinkMessage):
    """What one task staged, by stream."""

    parts: dict[str, TaskCommitMessage] = field(default_factory=dict)


class _ManyStreamsWriter:
    """What the writers of batches and of micro-batches have in common."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns, on the driver."""
        if settings.transaction is not None:
            raise InvalidOption(
                f"option transaction={settings.transaction} is of one stream: name it by "
                ".save('scope/stream')."
            )
        if settings.bad_records == "dlq":
            raise InvalidOption(
                "option badRecords=dlq is for a write to one stream: name it by "
                ".save('scope/stream') or .start('scope/stream')."
            )
        self.settings = settings
        self._frame = schema
        self._columns = InputColumns.of(schema, settings) if has_events(schema, settings) else None
        self._names = StreamColumn.of(schema, settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ManyStreamsMessage:
        """Stage one partition; runs in a task."""
        context = TaskContext.get()
        partition_id = 0 if context is None else context.partitionId()
        parts = stage_many(
            iterator,
            self._names,
            frame=self._frame,
            columns=self._columns,
            settings=self.settings,
            partition_id=partition_id,
        )
        return ManyStreamsMessage(parts)


class ManyStreamsBatchWriter(_ManyStreamsWriter, DataSourceArrowWriter):
    """Writes a frame in one commit for each stream that its rows name.

    With txnAppId and txnVersion the write takes effect at most once in each stream.
    """

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns, on the driver."""
        super().__init__(settings, schema)
        if settings.event_time_delay_ms is not None and settings.application is None:
            raise InvalidOption(
                "option eventTimeDelay notes the time of a writer, which a batch write has only "
                "with txnAppId and txnVersion; set these, or remove it."
            )
        self._application = application()
        warn_of_leftovers(settings.leftovers, "a write of a frame")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit in each stream, in the order of the names; check all of them first."""
        found = complete_parts(messages)
        identity = application_batch(self.settings, found, self._application)
        commit_each(self.settings, found, identity)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: chunks without a commit are in no stream, and a sweep deletes them."""


class ManyStreamsStreamWriter(_ManyStreamsWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query, exactly once in each stream that their rows name."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch in each stream; skip it in those that already have it."""
        commit_batch(self.settings, complete_parts(messages), batchId, "a query's write")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: streams may have the micro-batch, and Spark commits it again."""


def commit_batch(
    settings: WriteSettings, messages: Sequence[ManyStreamsMessage], number: int, what: str
) -> None:
    """Commit a query's micro-batch; one without rows still must not be a replay of one with some.

    ``what`` names the write in the warning of options that mean nothing here.
    """
    if number == 0:
        warn_of_leftovers(settings.leftovers, what)
    has_rows = any(message.parts for message in messages)
    if has_rows or query_of(settings, messages) is not None:
        identity = query_batch(settings, messages, number)
        commit_each(settings, messages, identity, batchId=number)


def commit_each(
    settings: WriteSettings,
    messages: Sequence[ManyStreamsMessage],
    identity: NumberedBatch | None,
    **parameters: object,
) -> None:
    """Commit what the tasks staged, once in each stream.

    Raises before the first commit if one of the streams is sealed, was deleted or created again
    since the tasks ran, or has another batch of the number, and if the write was stopped between
    two commits and now has other rows. A later error names the streams that have the write.
    """
    parts: dict[str, list[TaskCommitMessage]] = {}
    for message in messages:
        for name, part in message.parts.items():
            parts.setdefault(name, []).append(part)
    views = _checked(settings, parts)
    split = None
    if identity is not None:
        staged = {name: chunks_of(found) for name, found in parts.items()}
        split = SplitWrite(settings, identity, staged)
        split.begin(views)
    done: list[str] = []
    for name in sorted(parts):
        try:
            appended = commit_chunks(
                replace(settings, stream=name), parts[name], identity, **parameters
            )
        except PravegaSparkError as error:
            if not done:
                raise
            again = (
                "Write the frame again, before any later number: they skip it"
                if identity is not None
                else "A write without txnAppId and txnVersion has no number to skip it by, so "
                "write only the rows of the other streams again"
            )
            raise IllegalState(
                f"{error} The write is already in {', '.join(done)}, and not in stream {name} and "
                f"those after it. {again}."
            ) from error
        if appended is not None and appended.duplicate and identity is not None:
            logger.warning(
                "skipped a duplicate write: stream %s has number %d of %s, or a later one",
                name,
                identity.number,
                identity.writer_id,
                extra=log_fields("append", name, number=identity.number),
            )
        done.append(name)
        failpoint("many_streams.committed")
    if split is not None:
        split.end()


def _checked(
    settings: WriteSettings, parts: Mapping[str, Sequence[TaskCommitMessage]]
) -> list[StreamView]:
    views = []
    for name, found in parts.items():
        view = _view(settings, name)
        for part in found:
            view.check_life(part.life)
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        views.append(view)
    return views


def _view(settings: WriteSettings, name: str) -> StreamView:
    return existing_view(open_stream(settings.root, name))


def complete_parts(messages: Sequence[WriterCommitMessage | None]) -> list[ManyStreamsMessage]:
    """Return the tasks' messages; raise IllegalState if a task has none."""
    found = [message for message in messages if isinstance(message, ManyStreamsMessage)]
    if len(found) < len(messages):
        raise IllegalState(
            f"{len(messages) - len(found)} of {len(messages)} tasks sent no commit message; "
            "nothing was committed. Write again."
        )
    return found
