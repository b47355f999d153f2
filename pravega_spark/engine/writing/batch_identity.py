"""Batch identities: how the log recognises a batch that it already holds, or must refuse."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.writer_ids import is_anonymous, opened_at
from pravega_spark.engine.writing.batch_origin import BatchSource, origin_of
from pravega_spark.errors import OutOfOrder, StaleIdentity, WriterFenced, WriterForgotten
from pravega_spark.names import log_title


@dataclass(frozen=True, slots=True)
class SessionBatch:
    """A batch of a writer session: accepted only if it continues the writer's last event number.

    ``previous`` is the number of the event before the batch, ``last`` that of its last event.
    """

    writer_id: str
    session: int
    previous: int
    last: int
    note: str | None = None

    def check(self, known: WriterRecord | None, view: StreamView) -> bool:
        """Return True if the batch is new, False if the log already holds it.

        Raises WriterFenced, OutOfOrder, WriterForgotten.
        """
        self.check_session(known, view)
        if known is None:
            return True
        if self.last <= known.last and self.previous < self.last:
            return False
        if self.previous != known.last:
            raise OutOfOrder(
                f"writer {self.writer_id!r} of stream {view.stream}: the batch of events "
                f"{self.previous + 1} to {self.last} does not follow event {known.last}, the last "
                "in the log; reopen the writer and continue after its last_event_number.",
                writer_id=self.writer_id,
                last_event_number=known.last,
            )
        return True

    def check_session(self, known: WriterRecord | None, view: StreamView) -> None:
        """Raise WriterFenced or WriterForgotten unless the session is its writer's newest."""
        if known is None:
            self._check_unknown(view)
        elif known.session != self.session:
            raise WriterFenced(
                f"writer {self.writer_id!r} of stream {view.stream}: session {self.session} was "
                f"fenced by session {known.session}; this writer must stop.",
                writer_id=self.writer_id,
                session=self.session,
                newer_session=known.session,
            )

    def _check_unknown(self, view: StreamView) -> None:
        expected = is_anonymous(self.writer_id) and self.previous == 0
        if not expected or opened_at(self.writer_id) < view.snapshot.horizon:
            raise WriterForgotten(
                f"writer {self.writer_id!r} of stream {view.stream}: the log has no record of it, "
                "so it is unknown whether earlier batches landed; open a new writer.",
                writer_id=self.writer_id,
            )

    def record(self, known: WriterRecord | None, version: int) -> WriterRecord:
        """Return the writer's record after this batch."""
        return _advance(known, self.writer_id, self.session, self.last, version, self.note)


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A numbered batch of a query or an application, as Delta's ``txnAppId`` and ``txnVersion``.

    The log skips a batch whose number is not above the last one that it holds for this id, unless
    the origins show that it is another batch. ``complete_lives`` are restored lives of which the
    user says that no batch is missing.
    """

    writer_id: str
    number: int
    source: BatchSource = field(default_factory=BatchSource, compare=False)
    complete_lives: frozenset[int] = frozenset()

    def check(self, known: WriterRecord | None, view: StreamView) -> bool:
        """Return True if the batch is new, False if the log already holds it.

        Raises BatchConflict for another batch of a known number, StaleIdentity if a restore lost
        batches before this one.
        """
        before = origin_of(known)
        origin = self.source.origin(before)
        if not origin.is_same_run(before):
            self.source.check_first(view, known, self.number)
        if known is None:
            return True
        if self.number <= known.last:
            where = f"stream {view.stream}"
            origin.check(where, self.writer_id, self.number, known.last, before)
            return False
        if known.is_restored and self.number > known.last + 1:
            self.check_complete(view, known.last)
        return True

    def check_complete(self, view: StreamView, last: int) -> None:
        """Raise StaleIdentity unless the user said that the restored stream misses no batch.

        ``last`` is the last batch that the copy has, -1 if it has none.
        """
        if view.life in self.complete_lives:
            return
        lives = ",".join(map(str, [*sorted(self.complete_lives), view.life]))
        copy = "the stream or its root was restored from a copy that holds"
        held = f"{copy} its batches up to {last}" if last >= 0 else f"{copy} none of its batches"
        if last < 0 and view.restored_ms is None:
            held = "the root was restored from a copy, and this stream has been created since"
        between = f"{last + 1} to {self.number - 1}" if self.number > last + 2 else f"{last + 1}"
        raise StaleIdentity(
            f"writer {self.writer_id!r} of {log_title(view.stream)}: {held}, and this is batch "
            f"{self.number}. If there were rows for this stream under {between}, they are missing: "
            "write them again, or continue under another id (a streaming query: with another "
            f"checkpoint). If there were none, set the option restoredLives={lives}: each life "
            "holds for one restore of one stream.",
            name=view.stream,
            current_life=view.life,
        )

    def record(self, known: WriterRecord | None, version: int) -> WriterRecord:
        """Return the writer's record after this batch."""
        note = self.source.origin(origin_of(known)).encode()
        return _advance(known, self.writer_id, 0, self.number, version, note)


def _advance(
    known: WriterRecord | None,
    writer_id: str,
    session: int,
    last: int,
    version: int,
    note: str | None,
) -> WriterRecord:
    """Return the record with a new last number; a batch without a note keeps the last note."""
    if note is None and known is not None:
        return replace(known, session=session, last=last, version=version)
    return WriterRecord(writer_id, session, last, version, note, last if note is not None else 0)


BatchIdentity = SessionBatch | NumberedBatch
