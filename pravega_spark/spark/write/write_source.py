"""Where a numbered write comes from: its query, run and batch, and the ends of its sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.store import open_store
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.engine.writing.batch_origin import BatchOrigin, BatchSource
from pravega_spark.engine.writing.split_batch import SplitBatch, read_split_batch
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.query_checkpoint import UNREADABLE, BatchEnds, QueryCheckpoint
from pravega_spark.spark.write.task_run import TaskRun

logger = own_logger(__name__)

_TRIED_AGAIN = 16
"""A checkpoint that could not be read is tried again at each batch that this divides."""

_stopped: set[tuple[str, str]] = set()
"""The roots and writers whose record, as this process knows it, has a batch without an end."""


def query_writer(query_id: str | None) -> str:
    """Return the writer id of a query's own sink."""
    return f"spark.{query_id}"


@dataclass
class WriteSource(BatchSource):
    """Where one write comes from, and what it reads of that and keeps."""

    settings: WriteSettings
    task: TaskRun
    writer_id: str
    _origin: BatchOrigin | None = None
    _ends: BatchEnds | None = None
    _split: list[SplitBatch | None] = field(default_factory=list)
    """The last batch of several streams, once it was read."""
    _warned: set[str] = field(default_factory=set)

    def numbered(self, number: int) -> NumberedBatch:
        """Return the identity of a batch from here."""
        return NumberedBatch(self.writer_id, number, self, self.settings.restored_lives)

    @property
    def parameters(self) -> Mapping[str, object]:
        """The ends of the batch's sources, with which ``offsets/N`` can be written again."""
        return {} if self._ends is None else {"offsets": list(self._ends.lines)}

    def origin(self, known: BatchOrigin | None) -> BatchOrigin:
        """Return the query, run, batch, attempt, and the ends of its sources, read once."""
        if self._origin is None:
            task = self.task
            found = BatchOrigin(task.query_id, task.run, task.batch, attempt=task.attempt)
            self._ends = self._read_ends(found, known)
            digest = None if self._ends is None else self._ends.digest
            self._origin = replace(found, ends=digest)
        return self._origin

    def _read_ends(self, found: BatchOrigin, known: BatchOrigin | None) -> BatchEnds | None:
        """Return where the batch's sources end; None, with one warning a run, if unreadable."""
        if found.query is None or found.batch is None:
            return None
        is_later = found.is_same_run(known)
        was_read = is_later and known is not None and known.ends is not None
        if is_later and not was_read and found.batch % _TRIED_AGAIN:
            return None
        checkpoint = self.checkpoint
        try:
            if checkpoint is None:
                raise ValueError("the write does not know it")
            if not was_read:
                checkpoint.check_is_of(found.query)
            return checkpoint.ends(found.batch)
        except UNREADABLE as error:
            if not is_later:
                self.warn(
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
    def checkpoint(self) -> QueryCheckpoint | None:
        """The checkpoint of the query that writes, if the write knows it."""
        location = self.settings.checkpoint or self.task.checkpoint
        return None if location is None else QueryCheckpoint(location)

    def split_batch(self) -> SplitBatch | None:
        """Return the writer's last batch of several streams, which is read once."""
        if not self._split:
            found = read_split_batch(open_store(self.settings.root), self.writer_id)
            self._split.append(found)
            if found is not None and found.left:
                _stopped.add(self._writer)
        return self._split[0]

    def record(self, batch: SplitBatch) -> None:
        """Record a batch of several streams before its first commit."""
        _stopped.add(self._writer)
        batch.put(open_store(self.settings.root))

    def end(self, batch: SplitBatch) -> None:
        """Note that all of its streams have a batch that was recorded."""
        if not batch.left:
            _stopped.discard(self._writer)

    @property
    def knows_stopped(self) -> bool:
        """Whether this process knows that a batch of the writer may not be in all its streams."""
        return self._writer in _stopped

    @property
    def _writer(self) -> tuple[str, str]:
        return self.settings.root, self.writer_id

    @property
    def is_of_query(self) -> bool:
        """Whether a query's own sink writes, so that no other write has the number."""
        return self.writer_id == query_writer(self.task.query_id)

    def warn(self, text: str, *values: object) -> None:
        """Log a warning of this write once."""
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, *values, extra=log_fields("append", self.settings.stream))
