"""Writer sessions: a writer that opens with an id of the user's own fences older sessions of it."""

from __future__ import annotations

from dataclasses import replace

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.fencing import check_token
from pravega_spark.engine.stream.records import StreamState, WriterRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import StreamSealed


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
            writer_id, 0, 0, view.version
        )
        record = replace(known, session=known.session + 1, version=view.version + 1)
        body = Body(
            "OPEN WRITER",
            parameters={"writer": writer_id, "session": record.session},
            domains={**view.writer_changes(record)},
        )
        return body, record

    return stream.commit(decide, life=life).value
