"""Where a numbered batch comes from: what tells it from another one under the same number.

A query numbers its batches from 0 in its checkpoint. Who changes that by hand, copies it, or writes
two frames under one number makes another batch of a number that the stream has. The origin is
recorded with the number, as the note of the query's or the application's writer record: earlier
versions move the record on and leave the note, which then says nothing about the new number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import BatchConflict

_NEW = (
    "Nothing was written. If the rows are new, give the query a new checkpoint, or put the "
    "checkpoint's offsets back as they were; the stream's history has those of its batches, in the "
    "parameter 'offsets' of each commit."
)
OTHER_ID = (
    "Nothing was written. Give each write of a batch, and each query, a txnAppId of its own, such "
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
        """Return what people read in errors."""
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
