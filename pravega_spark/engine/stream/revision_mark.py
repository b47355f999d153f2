"""The mark of a revisioned stream: a revision that its users move by compare-and-set."""

from __future__ import annotations

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.stream.records import MARK_DOMAIN, RevisionMark, StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import StreamSealed


def compare_and_set_mark(
    stream: StreamLog, life: int, segment_id: int, expected: int | None, offset: int | None
) -> bool:
    """Set the mark of a segment in one commit if it is the expected one; None: there is none.

    A mark of another segment, of before a scale, counts as none. Raises StreamSealed.
    """

    def decide(view: StreamView) -> Proposal[bool]:
        known = view.revision_mark
        present = None if known is None or known.segment_id != segment_id else known.offset
        if present != expected:
            return None, False
        if offset == present:
            return None, True
        if view.record.state is not StreamState.ACTIVE:
            raise StreamSealed(
                f"stream {stream.name} is sealed, and its mark cannot be moved any more.",
                stream=stream.name,
            )
        record = None if offset is None else RevisionMark(segment_id, offset, view.version + 1)
        body = Body(
            "SET REVISION MARK",
            parameters={"segment": segment_id, "offset": offset},
            domains={MARK_DOMAIN: None if record is None else record.encode()},
        )
        return body, True

    return stream.commit(decide, life=life).value
