"""The numbers of writes: of queries' batches, of applications' versions; where they come from.

The driver makes one for each write, from what its tasks saw, and commits with it in each stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import root_restored_ms
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.engine.writing.batch_origin import (
    OTHER_ID,
    BatchOrigin,
    BatchSource,
    origin_of,
)
from pravega_spark.engine.writing.split_batch import SplitBatch, read_split_batch
from pravega_spark.errors import BatchConflict, IllegalState, InvalidOption, NoSuchStream
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.query_checkpoint import UNREADABLE, BatchEnds, QueryCheckpoint
from pravega_spark.spark.write.same_rows import committed_digest, staged_digest
from pravega_spark.spark.write.stopped_batch import lacking, options_text, placing_options
from pravega_spark.spark.write.task_run import SinkMessage, TaskRun, run_of

logger = own_logger(__name__)

_TRIED_AGAIN = 16
"""A checkpoint that could not be read is tried again at each batch that this divides."""


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
    source = NumberedSource(settings, TaskRun(query_id, task.run, number, task.checkpoint))
    return source.numbered(_query_writer(query_id), number)


def query_of(settings: WriteSettings, messages: Iterable[SinkMessage]) -> str | None:
    """Return the id of the query that writes; None if nothing tells it."""
    return run_of(messages).query_id or _checkpoint_query_id(settings.checkpoint)


def _query_writer(query_id: str | None) -> str:
    return f"spark.{query_id}"


def application_batch(
    settings: WriteSettings, messages: Iterable[SinkMessage], application: str | None
) -> NumberedBatch | None:
    """Return the identity that txnAppId and txnVersion give to a write, or None without them.

    ``application`` is that of Spark, as the driver knows it.
    """
    if settings.application is None:
        return None
    name, number = settings.application
    return NumberedSource(settings, run_of(messages).of(application)).numbered(
        application_writer(name), number
    )


def application_writer(name: str) -> str:
    """Return the writer id of a txnAppId, in a stream's log and in a transaction."""
    return f"txn:{name}"


def _checkpoint_query_id(location: str | None) -> str | None:
    """Return the query's id in the ``metadata`` of Spark's checkpoint; None without one."""
    if location is None:
        return None
    try:
        return QueryCheckpoint(location).query_id()
    except UNREADABLE:
        return None


@dataclass
class NumberedSource(BatchSource):
    """Where one write comes from, and what the first one of a run must find."""

    settings: WriteSettings
    task: TaskRun
    _writer_id: str = ""
    _origin: BatchOrigin | None = None
    _ends: BatchEnds | None = None
    _split: list[SplitBatch | None] = field(default_factory=list)
    """The last batch of several streams, once it was read."""
    _warned: set[str] = field(default_factory=set)

    def numbered(self, writer_id: str, number: int) -> NumberedBatch:
        """Return the identity of a batch from here."""
        self._writer_id = writer_id
        return NumberedBatch(writer_id, number, self, self.settings.restored_lives)

    @property
    def parameters(self) -> Mapping[str, object]:
        """The ends of the batch's sources, with which ``offsets/N`` can be written again."""
        return {} if self._ends is None else {"offsets": list(self._ends.lines)}

    def origin(self, known: BatchOrigin | None) -> BatchOrigin:
        """Return the query, run, batch, and the ends of its sources, which are read once."""
        if self._origin is None:
            task = self.task
            found = BatchOrigin(task.query_id, task.run, task.batch)
            self._ends = self._read_ends(found, known)
            digest = None if self._ends is None else self._ends.digest
            self._origin = BatchOrigin(task.query_id, task.run, task.batch, digest)
        return self._origin

    def _read_ends(self, found: BatchOrigin, known: BatchOrigin | None) -> BatchEnds | None:
        """Return where the batch's sources end; None, with one warning a run, if unreadable."""
        if found.query is None or found.batch is None:
            return None
        is_later = found.is_same_run(known)
        was_read = is_later and known is not None and known.ends is not None
        if is_later and not was_read and found.batch % _TRIED_AGAIN:
            return None
        checkpoint = self._checkpoint
        try:
            if checkpoint is None:
                raise ValueError("the write does not know it")
            if not was_read and checkpoint.query_id() != found.query:
                raise ValueError("it is the checkpoint of another query")
            return checkpoint.ends(found.batch)
        except UNREADABLE as error:
            if not is_later:
                self._warn(
                    "cannot read where the sources of batch %d of query %s end (checkpoint %s: "
                    "%s), so a batch is known by its number alone; set the option "
                    "checkpointLocation on the write to a path or URL that this package can read",
                    found.batch,
                    found.query,
                    None if checkpoint is None else checkpoint.location,
                    error,
                )
            return None

    @property
    def _checkpoint(self) -> QueryCheckpoint | None:
        location = self.settings.checkpoint or self.task.checkpoint
        return None if location is None else QueryCheckpoint(location)

    def check_first(self, view: StreamView, known: WriterRecord | None, number: int) -> None:
        """Raise if the stream's last batch is not the checkpoint's, or its streams lack a batch."""
        self._check_restored(view, known, number)
        self._check_last(view, known, number)
        self._check_split(view, known, number)

    def _check_restored(self, view: StreamView, known: WriterRecord | None, number: int) -> None:
        """Raise StaleIdentity if a query that the stream does not know is older than its restore.

        Its first batches may have been after the copy. A new query, and batch 0, lack nothing.
        """
        restored_ms = self._restored_ms(view)
        if known is not None or not number or restored_ms is None:
            return
        checkpoint = self._checkpoint
        try:
            if checkpoint is None or checkpoint.query_id() != self.task.query_id:
                raise ValueError("the write does not know it")
            if checkpoint.created_ms() >= restored_ms:
                return
        except UNREADABLE as error:
            self._warn(
                "stream %s was restored from a copy, and has no batch of %s, whose first one here "
                "is %d. Whether the copy lacks earlier ones is not known, since the checkpoint "
                "cannot be read: %s",
                view.stream,
                self._writer_id,
                number,
                error,
            )
            return
        self.numbered(self._writer_id, number).check_complete(view, -1)

    def _restored_ms(self, view: StreamView) -> int | None:
        """Return when a restore began the stream's life, or brought a root that lacked the stream.

        Where rows name their streams, and for dead letters, a stream that is missing says nothing.
        """
        if view.restored_ms is not None or view.stream != self.settings.stream:
            return view.restored_ms
        restored_ms = root_restored_ms(open_store(self.settings.root))
        is_younger = restored_ms is not None and view.record.created_ms >= restored_ms
        return restored_ms if is_younger else None

    def _check_last(self, view: StreamView, known: WriterRecord | None, number: int) -> None:
        """Raise BatchConflict if the checkpoint has other ends for the stream's last batch."""
        before = origin_of(known)
        origin, checkpoint = self.origin(before), self._checkpoint
        if before is None or known is None or number <= known.last or checkpoint is None:
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
                f"stream {view.stream} has number {known.last} of {self._writer_id!r} from "
                f"{before}, and the checkpoint {checkpoint.location} has {there}: it was copied or "
                "changed since, so its later batches may have rows that the stream has. Nothing "
                "was written. Give the query a new checkpoint, with a start after those rows.",
                writer_id=self._writer_id,
                number=number,
                last=known.last,
            )

    def _check_split(self, view: StreamView, known: WriterRecord | None, number: int) -> None:
        """Raise BatchConflict for other options while streams lack the last batch of several."""
        held, mine = self.split_batch(), placing_options(self.settings)
        if held is None or held.options == mine:
            return
        is_known = known is not None and number <= known.last
        if is_known and view.stream not in held.parts:  # another write of the same batch
            return
        pending = lacking(self.settings.root, held)
        if pending:
            raise BatchConflict(
                f"number {held.number} of {self._writer_id!r} is for the streams "
                f"{', '.join(held.parts)}, by the options {options_text(held.options)}, and was "
                f"stopped before it was in {', '.join(pending)}. This write has the options "
                f"{options_text(mine)}, so those rows would be in no stream, or in two. Nothing "
                "was written. Write that batch once more with the options that it had; then change "
                "them.",
                writer_id=self._writer_id,
                number=number,
                last=held.number,
            )

    def split_batch(self) -> SplitBatch | None:
        """Return the writer's last batch of several streams, which is read once."""
        if not self._split:
            self._split.append(read_split_batch(open_store(self.settings.root), self._writer_id))
        return self._split[0]

    @property
    def is_of_query(self) -> bool:
        """Whether a query's own sink writes, so that no other write has the number."""
        return self._writer_id == _query_writer(self.task.query_id)

    def _warn(self, text: str, *values: object) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, *values, extra=log_fields("append", self.settings.stream))


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
    """Raise BatchConflict if this run wrote other rows under the number of a repeated write."""
    known = archived_records.find_writer(stream, stream.known_view(), identity.writer_id)
    before = origin_of(known)
    if known is None or known.last != identity.number:
        return
    if not identity.source.origin(before).is_same_run(before):
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
            f"this write is of the same run, with other rows ({here}; now {given}). "
            f"{OTHER_ID}{group}",
            writer_id=identity.writer_id,
            number=identity.number,
            last=identity.number,
        )
