"""Which number a new life of a name gets, and the row of the scope that claims it.

Cuts, pointers, versions and archives know a life by its number alone, and copies of one root live
on without knowing each other. So the number is drawn: the clock is its high part, and the rest is
random. Only the first life of a name in a root that is no copy is 1, and that alone if its creator
ends the creation. A row without a log may also be of a stream that was lost with all its objects;
so whoever ends another one's creation draws, too.

A draw is a commit. The record of the deleted stream gets the number before the drawn one, so the
life that begins is again the next of its log. All creators, also those of earlier releases, find
the same number there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.lost_log import check_not_lost
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.root_marker import is_copy
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import STREAM_DOMAIN, StreamRecord, StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.row_files import Row
from pravega_spark.engine.tables.scopes import Scope
from pravega_spark.names import copied_back_advice, log_title, split_log
from pravega_spark.policies import StreamConfiguration

logger = own_logger(__name__)

DRAW = "DRAW LIFE"
"""The operation of the commit that draws the number of the next life."""
_RANDOM_BITS = 21
_CLOCK_BITS = 32
"""Of the seconds since 1970. With the random bits a number stays below 2^53, as JavaScript asks."""

_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
"""Before another one's creation is ended: one that goes on ends within them."""

Claim = Callable[[int], tuple[bool, Row]]
"""Writes the row of a life; returns whether it did, and the row that is there."""


def draw_life(runtime: Runtime, above: int) -> int:
    """Return the number of a new life, higher than ``above``, that no copy of the root draws."""
    seconds = min(max(runtime.now_ms() // 1_000, 0), (1 << _CLOCK_BITS) - 1)
    lowest = max(above + 1, seconds << _RANDOM_BITS)
    return lowest + int(runtime.random() * (1 << _RANDOM_BITS))


def claim_life(stream: StreamLog, index: Scope, claim: Claim) -> tuple[bool, Row] | None:
    """Write the row of a stream's next life, and return what the claim did; None if it exists.

    A row of somebody else whose life has not begun is moved to a new life, as it is. Raises what
    ``claim`` raises, and CorruptLog if the stream has lost its log.
    """
    listed = 0
    while True:
        view = stream.current_view()
        if view is not None and view.record.state is not StreamState.DELETED:
            return None
        row = None
        if view is not None and not view.record.has_lived:  # somebody drew, and did not go on
            row = index.log_row(split_log(stream.name)[1])
        if row is None or view is None or row["life"] > view.life:
            life = _next_life(stream, view, listed)
            if life is None:
                return None
            claimed, row = claim(life)
            if row["life"] == life and (claimed or stream.newest() is not None):
                failpoint("create.row")
                return claimed, row
        renewed = take_over(stream, index, row)
        if renewed is not None:
            return False, renewed
        listed = int(row["life"])  # it has begun since


def _next_life(stream: StreamLog, view: StreamView | None, listed: int) -> int | None:
    """Return the life that a creation begins, above one that is listed; None if it exists."""
    if view is None:
        if not is_copy(stream.store):
            return 1
        check_has_log(stream)
    return _drawn(stream, listed)


def take_over(stream: StreamLog, index: Scope, row: Row) -> Row | None:
    """Move the row of a creation that somebody else began to a new life, and return it.

    None if the stream has begun, or its life has ended. Its creator gets some time first. Raises
    CorruptLog if the stream has lost its log, and NoSuchScope.
    """
    has_log(stream)
    life = _drawn(stream, row["life"], first=True)
    if life is None:
        return None
    logger.warning(
        "stream %s is in the index of its scope and has no log: its creation was killed, or its "
        "folder was lost. It begins in life %d, and is empty.",
        stream.name,
        life,
        extra=log_fields("create stream", stream.name, life=life),
    )
    return index.renewed(row, life)


def has_log(stream: StreamLog) -> bool:
    """Return whether a stream that is listed has a log; its creator gets some time to begin it.

    Raises CorruptLog if the stream has lost its log, and not its other objects.
    """
    for pause in _PAUSES_S:
        if stream.newest() is not None:
            return True
        stream.runtime.sleep(pause)
    if stream.newest() is not None:
        return True
    check_has_log(stream)
    return False


def forestall(stream: StreamLog, life: int) -> bool:
    """Let a life that is listed never begin; return False if the log has had lives.

    Raises CorruptLog if the stream has lost its log.
    """
    if stream.newest() is None:
        check_has_log(stream)
    return _drawn(stream, life + 1, first=True) is not None


def _drawn(stream: StreamLog, listed: int, *, first: bool = False) -> int | None:
    """Draw a life above ``listed``, unless one was drawn that has not begun; return it.

    None if the stream exists, or, with ``first``, if it ever has.
    """

    def decide(snapshot: Snapshot | None) -> Proposal[int | None]:
        before = None if snapshot is None else StreamView(snapshot).record
        if before is not None:
            if before.state is not StreamState.DELETED or (first and before.has_lived):
                return None, None
            if before.is_drawn and before.life + 1 >= listed:
                return None, before.life + 1
        life = draw_life(stream.runtime, max(listed, before.life if before else 0))
        return _draw(stream, snapshot, before, life), life

    life = stream.log.commit(decide).value
    failpoint("create.drawn")
    return life


def _draw(
    stream: StreamLog, snapshot: Snapshot | None, before: StreamRecord | None, life: int
) -> Body:
    known = before or StreamRecord(
        stream.name,
        stream.runtime.token(),
        0,
        StreamState.DELETED,
        StreamConfiguration(),
        active_epoch=-1,
        oldest_epoch=-1,
        next_segment_number=0,
        head={},
        created_ms=stream.now_ms(),
    )
    record = replace(known, life=life - 1, sealed_ms=None)
    parameters = {"stream": stream.name, "life": life}
    body = Body(DRAW, parameters, domains={STREAM_DOMAIN: record.encode()})
    if snapshot is None:
        lifecycle.declare(body, None, record)
    return body


def has_begun(stream: StreamLog, life: int) -> bool:
    """Return whether the stream exists by the creation that claimed a life.

    Somebody else may have ended it in another life, which is then the first one of the log.
    """
    view = stream.current_view()
    if view is None or view.record.state is StreamState.DELETED:
        return False
    return view.life == life or view.record.active_epoch == 0


def check_has_log(stream: StreamLog) -> None:
    """Raise CorruptLog if a stream without a log has other objects.

    For a creation that is found half made: a creation puts nothing before its first commit.
    """
    folder = f"{stream.root_url.rstrip('/')}/{stream.name}"
    title = log_title(stream.name)
    check_not_lost(
        stream.log,
        stream.name,
        title,
        f"{copied_back_advice(stream.name, folder)}; or delete what is left of that folder: "
        f"{title} is then created again, empty.",
        stream=stream.name,
    )
