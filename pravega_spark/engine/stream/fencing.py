"""Fencing tokens of a stream: an append that names one is refused once another one was set.

The rules are S2's. It is cooperation, not access control: an append without a token passes.
"""

from __future__ import annotations

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.stream.records import FENCE_DOMAIN, FenceRecord, StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    ConditionFailed,
    FencingTokenMismatch,
    InvalidInput,
    StreamSealed,
)
from pravega_spark.values.checks import check_text
from pravega_spark.values.limits import MAX_FENCING_TOKEN_BYTES
from pravega_spark.values.names import has_utf8


def check_fencing_token(what: str, token: str) -> str:
    """Return a token; raise InvalidInput unless it is a text of at most 36 bytes in UTF-8."""
    check_text(what, token)
    if not has_utf8(token) or len(token.encode()) > MAX_FENCING_TOKEN_BYTES:
        raise InvalidInput(
            f"{what} has at most {MAX_FENCING_TOKEN_BYTES} bytes in UTF-8, got {token[:80]!r}; use "
            "a short id, such as a UUID."
        )
    return token


def check_token(view: StreamView, token: str) -> None:
    """Raise FencingTokenMismatch unless a token is the stream's newest one."""
    newest = view.fence
    if newest.token != token:
        raise FencingTokenMismatch(
            f"stream {view.stream}: the newest fencing token is {newest.token!r} (set at version "
            f"{newest.version}), not {token!r}; this writer must stop. Whoever takes over sets a "
            "token by StreamManager.fence and opens a writer with it.",
            stream=view.stream,
            fencing_token=token,
            newest_token=newest.token,
        )


def fence(stream: StreamLog, life: int, token: str, expected: str | None = None) -> bool:
    """Set the newest token in one commit; return False if it is the newest already.

    Raises ConditionFailed if a token is expected and another one is the newest; StreamSealed.
    """

    def decide(view: StreamView) -> Proposal[bool]:
        newest = view.fence.token
        if newest == token:
            return None, False
        if view.record.state is not StreamState.ACTIVE:
            raise StreamSealed(
                f"stream {stream.name} is sealed and takes no fencing token; nothing can be "
                "appended to it.",
                stream=stream.name,
            )
        if expected is not None and newest != expected:
            raise ConditionFailed(
                f"stream {stream.name}: the newest fencing token is {newest!r}, not {expected!r}; "
                "nothing was changed. Decide again with that token.",
                stream=stream.name,
                expected=expected,
                actual=newest,
            )
        record = FenceRecord(token, view.version + 1)
        body = Body(
            "FENCE STREAM",
            parameters={"token": token},
            domains={FENCE_DOMAIN: record.encode() if token else None},
        )
        return body, True

    return stream.commit(decide, life=life).value
