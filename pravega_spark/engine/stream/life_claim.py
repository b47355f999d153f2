"""Which number a new life of a name gets, and the row of the scope that claims it.

Cuts, pointers, versions and archives know a life by its number alone, and copies of one root live
on without knowing each other. So the number is drawn: the clock is its high part, and the rest is
random. Only the first life of a name in a root that is no copy is 1.

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
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.root_marker import is_copy
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import STREAM_DOMAIN, StreamRecord, StreamState
from pravega_spark.engine.stream.repair import check_has_log
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.row_files import Row
from pravega_spark.policies import StreamConfiguration

DRAW = "DRAW LIFE"
"""The operation of the commit that draws the number of the next life."""
_RANDOM_BITS = 21
_CLOCK_BITS = 32
"""Of the seconds since 1970. With the random bits a number stays below 2^53, as JavaScript asks."""

Claim = Callable[[int], tuple[bool, Row]]
"""Writes the row of a life; returns whether it did, and the row that is there."""


def draw_life(runtime: Runtime, above: int) -> int:
    """Return the number of a new life, higher than ``above``, that no copy of the root draws."""
    seconds = min(max(runtime.now_ms() // 1_000, 0), (1 << _CLOCK_BITS) - 1)
    lowest = max(above + 1, seconds << _RANDOM_BITS)
    return lowest + int(runtime.random() * (1 << _RANDOM_BITS))


def claim_life(stream: StreamLog, claim: Claim) -> tuple[bool, Row] | None:
    """Write the row of a stream's next life, and return what the claim did; None if it exists.

    Raises what ``claim`` raises, and CorruptLog if the stream has lost its log.
    """
    listed = 0
    while (life := _next_life(stream, listed)) is not None:
        claimed, row = claim(life)
        if row["life"] == life:
            failpoint("create.row")
            if not claimed:
                check_has_log(stream)
            return claimed, row
        listed = int(row["life"])  # it has begun since, or its log was lost
    return None


def _next_life(stream: StreamLog, listed: int) -> int | None:
    """Return the life that a creation begins, above one that is listed; None if it exists."""
    view = lifecycle.current_view(stream)
    if view is not None and view.record.state is not StreamState.DELETED:
        return None
    if view is None:
        if not listed and not is_copy(stream.store):
            return 1
        check_has_log(stream)

    def decide(snapshot: Snapshot | None) -> Proposal[int | None]:
        before = None if snapshot is None else StreamView(snapshot).record
        if before is not None:
            if before.state is not StreamState.DELETED:
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
