"""The identity of a batch, by which the log recognises or refuses it.

The origin of a numbered batch tells it from another batch under the same number. A query
numbers its batches from 0 in its checkpoint. A user who changes that by hand, copies it, or writes
two frames under one number makes another batch of a number that the stream has. The origin is
recorded with the number, as the note of the query's or the application's writer record: earlier
versions move the record on and leave the note, which then says nothing about the new number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.fencing import check_token
from pravega_spark.engine.stream.records import StreamState, WriterRecord, is_anonymous, opened_at
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    BatchConflict,
    OutOfOrder,
    StaleIdentity,
    StreamSealed,
    WriterFenced,
    WriterForgotten,
)

_NEW = (
    "Nothing was written. If the rows are new, give the query a new checkpoint, or put the "
    "checkpoint's offsets back as they were; the stream's history has those of its batches, in the "
    "parameter 'offsets' of each commit."
)
OTHER_ID = (
    "Nothing was written. Give each write of a batch, and each query, a separate txnAppId, such "
    "as txnAppId='app/good'."
)


@dataclass(frozen=True, slots=True)
class BatchOrigin:
    """The query, its run, its batch, and a digest of the ends of the batch's sources.

    Outside of a query ``query`` and ``batch`` are None, and ``run`` is Spark's job group in its
    application, if there is one. ``ends`` is None if the checkpoint cannot be read. ``attempt`` is
    "(application)/(execution)" for a write in ``foreachBatch``, "(application)" for one in a thread
    of it, and None where the run says as much.
    """

    query: str | None = None
    run: str | None = None
    batch: int | None = None
    ends: str | None = None
    attempt: str | None = None

    def encode(self) -> str | None:
        """Return the text of the note; None if there is nothing to say."""
        if self == BatchOrigin():
            return None
        return to_json([self.query, self.run, self.batch, self.ends, self.attempt])

    def is_same_run(self, other: BatchOrigin | None) -> bool:
        """Return whether one run made both."""
        return other is not None and self.run is not None and self.run == other.run

    def needs_rows_of(self, known: BatchOrigin | None) -> bool:
        """Return whether a write under the known number must have the same rows.

        Another execution of the same batch may rightly have others, and a script that runs again.
        Of a write in a thread the execution is unknown, so it may be the same.
        """
        if known is None or self.attempt is None or known.attempt is None:
            return self.is_same_run(known)
        here, _, mine = self.attempt.partition("/")
        there, _, its = known.attempt.partition("/")
        is_again = "" not in (mine, its) and mine != its and self.batch == known.batch
        return here == there and not is_again

    def check(
        self, where: str, writer_id: str, number: int, last: int, known: BatchOrigin | None
    ) -> None:
        """Raise BatchConflict if this batch, under a known number, is not the one that is known.

        ``known`` is the origin of the ``last`` number; None, if an earlier version wrote that.
        """
        if known is None or (self.query != known.query and None in (self.query, known.query)):
            return
        what = (
            f"{where} has number {last} of {writer_id!r} from {known}, and this write has number "
            f"{number} from {self}"
        )
        fields: dict[str, Any] = {"writer_id": writer_id, "number": number, "last": last}
        if self.query != known.query:
            raise BatchConflict(f"{what}: it is of another query. {OTHER_ID}", **fields)
        if self.batch is None or known.batch is None:
            return
        if self.batch < known.batch:
            raise BatchConflict(
                f"{what}: the query went back, so these are other rows. {_NEW}", **fields
            )
        is_same = self.batch == known.batch
        if is_same and None not in (self.ends, known.ends) and self.ends != known.ends:
            raise BatchConflict(
                f"{what}: its sources end elsewhere, so these are other rows. {_NEW}", **fields
            )
        if number < last and self.needs_rows_of(known):
            raise BatchConflict(f"{what}: a query's numbers must increase. {OTHER_ID}", **fields)

    def __str__(self) -> str:
        if self.query is None:
            return "no query" if self.run is None else f"job group {self.run}"
        ends = "unknown ends" if self.ends is None else f"ends {self.ends}"
        batch = "a batch" if self.batch is None else f"batch {self.batch}"
        return f"{batch} of query {self.query} ({ends}, run {self.run})"


class BatchSource:
    """What a numbered batch says about itself; by itself nothing, as a plain script's."""

    @property
    def parameters(self) -> Mapping[str, object]:
        """What the commit's history has about the batch."""
        return {}

    def origin(self, known: BatchOrigin | None) -> BatchOrigin:
        """Return where the batch comes from; ``known`` is where the last one came from."""
        return BatchOrigin()

    def check_first(self, view: StreamView, known: WriterRecord | None, number: int) -> None:
        """Raise for the first batch of a run if the stream must not take it."""


def origin_of(record: WriterRecord | None) -> BatchOrigin | None:
    """Return the origin of a record's last number, or None if nothing is known of it.

    Earlier versions record none, and leave that of an earlier number.
    """
    if record is None or record.session > 0 or record.note_number != record.last:
        return None
    return decode_origin(record.note)


def decode_origin(text: str | None) -> BatchOrigin | None:
    """Read what :meth:`BatchOrigin.encode` wrote; None for any other text."""
    try:
        query, run, batch, ends, attempt = json.loads(text or "")
    except (ValueError, TypeError):
        return None
    return BatchOrigin(query, run, batch, ends, attempt)


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
        return _advance(
            known,
            self.writer_id,
            session=self.session,
            last=self.last,
            version=version,
            note=self.note,
        )


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
        return _advance(
            known, self.writer_id, session=0, last=self.number, version=version, note=note
        )


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
    return WriterRecord(
        writer_id=writer_id,
        session=session,
        last=last,
        version=version,
        note=note,
        note_number=last if note is not None else 0,
    )


BatchIdentity = SessionBatch | NumberedBatch


def open_session(
    stream: StreamLog, life: int, writer_id: str, fencing_token: str | None = None
) -> WriterRecord:
    """Commit OPEN WRITER: increment the session of a writer id and return its record.

    After that, batches of older sessions raise WriterFenced. The record also shows whether a
    commit of an older session with an unknown outcome landed. Raises FencingTokenMismatch if a
    token is given that is not the newest.
    """

    def decide(view: StreamView) -> Proposal[WriterRecord]:
        if view.record.state is not StreamState.ACTIVE:
            raise StreamSealed(
                f"stream {stream.name} is sealed; no writer can be opened on it. Create a new "
                "stream.",
                stream=stream.name,
            )
        if fencing_token is not None:
            check_token(view, fencing_token)
        known = archived_records.find_writer(stream, view, writer_id) or WriterRecord(
            writer_id, session=0, last=0, version=view.version
        )
        record = replace(known, session=known.session + 1, version=view.version + 1)
        body = Body(
            "OPEN WRITER",
            parameters={"writer": writer_id, "session": record.session},
            domains={**view.writer_changes(record)},
        )
        return body, record

    return stream.commit(decide, life=life).value
