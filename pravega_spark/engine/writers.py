"""Writer ids and sessions: opening an id of the user's own is a commit that fences older ones."""

from __future__ import annotations

from dataclasses import replace

from pravega_spark.engine import moved
from pravega_spark.engine.actions import Body
from pravega_spark.engine.log import Proposal
from pravega_spark.engine.records import StreamState, WriterRecord
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.errors import StreamSealed

_MARK = "_"


def anonymous_id(version: int, token: str) -> str:
    """Return an id for a writer without one of its own; it carries the version of its opening."""
    return f"{_MARK}{version}.{token}"


def is_anonymous(writer_id: str) -> bool:
    """Tell whether the id was made by :func:`anonymous_id`; users' names have no ``_``."""
    return writer_id.startswith(_MARK)


def opened_at(writer_id: str) -> int:
    """Return the version at which an anonymous writer was opened."""
    return int(writer_id.removeprefix(_MARK).partition(".")[0])


def open_session(stream: Stream, life: int, writer_id: str) -> WriterRecord:
    """Commit OPEN: raise the session of a writer id and return what the log holds of it.

    From then on batches of older sessions raise WriterFenced. Also settles any commit of an
    older session whose answer was lost.
    """

    def decide(view: StreamView) -> Proposal[WriterRecord]:
        if view.record.state is not StreamState.ACTIVE:
            raise StreamSealed(f"stream {stream.name} is sealed; no writer can be opened on it.")
        known = moved.writer(stream, view, writer_id) or WriterRecord(writer_id, 0, 0, view.version)
        record = replace(known, session=known.session + 1, version=view.version + 1)
        body = Body(
            "OPEN WRITER",
            parameters={"writer": writer_id, "session": record.session},
            domains={**view.writer_changes(record)},
        )
        return body, record

    return stream.commit(decide, life=life).value
