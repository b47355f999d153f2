"""A fenced writer writes nothing more: an older token's, and an older session's of a writer id."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a write that began after another was set is acknowledged, or one that
    has no token is refused for it."""
    for call in of(calls, "write", "write_if"):
        if call.error == "FencingTokenMismatch" and call.arguments.get("token") is None:
            raise Violation("a write without a token is not compared with one", f"{call}")
    writes = [call for call in of(calls, "write", "write_if") if call.ok]
    for write in writes:
        token, session = write.arguments.get("token"), write.arguments.get("session")
        stream = write.arguments["stream"]
        if token is not None:
            _of_token([c for c in of(calls, "fence") if c.arguments["stream"] == stream], write)
        if session is not None:
            _of_session(
                [
                    c
                    for c in of(calls, "open_writer")
                    if c.arguments["stream"] == stream
                    and c.arguments["writer"] == write.arguments["writer"]
                ],
                write,
            )


def _of_token(fences: Sequence[Recorded], write: Recorded) -> None:
    """Between the fence and the write's end nobody may have set the write's token again."""
    token = write.arguments["token"]
    for fence in fences:
        if not fence.ok or fence.arguments["token"] == token or not fence.before(write):
            continue
        again = any(
            other.arguments["token"] == token
            and other.may_have_happened
            and not other.before(fence)
            and write.ended is not None
            and other.began < write.ended
            for other in fences
        )
        if not again:
            raise Violation("a fenced writer writes nothing", f"{fence}; then {write}")


def _of_session(opened: Sequence[Recorded], write: Recorded) -> None:
    """A session is fenced by one that was opened after it and before the write."""
    mine = [c for c in opened if c.arguments.get("session") == write.arguments["session"]]
    for own in mine:
        for other in opened:
            if other.ok and own.before(other) and other.before(write):
                raise Violation("a fenced writer writes nothing", f"{other}; then {write}")
