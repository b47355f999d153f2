"""The first batch of a run: what its stream, checkpoint and last batch of several must be.

A run goes on where an earlier one ended. Between them the checkpoint, the options or the stream may
have changed so that rows would be missing, or twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import root_restored_ms
from pravega_spark.engine.stream.letter_stream import SUFFIX
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.batch_origin import BatchOrigin, origin_of
from pravega_spark.errors import BatchConflict
from pravega_spark.spark.write.query_checkpoint import UNREADABLE
from pravega_spark.spark.write.stopped_batch import (
    check_left,
    known_of,
    lacking,
    options_text,
    placing_options,
)
from pravega_spark.spark.write.write_source import WriteSource


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
