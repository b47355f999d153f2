"""Truncation: one commit moves the head and removes the chunks below it from the log.

Sweeps delete the files later. The head never moves back. The commit also removes from the log's
state the epochs before every segment of the head, the segments that no kept epoch names, and the
samples of the retention set that the head has passed. Epochs and segments are rows of the stream's
history first. An epoch that routes an open transaction is kept, with all later ones, and so is one
of a segment that the cut of a keeper names (``kinds``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pravega_spark.engine.kinds import KEEPERS
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.store.reserve import frees
from pravega_spark.engine.stream.commit_builder import RemovedChunks
from pravega_spark.engine.stream.history import HistoryRow
from pravega_spark.engine.stream.layout_rows import append_rows
from pravega_spark.engine.stream.past_epochs import epoch_row
from pravega_spark.engine.stream.records import (
    SAMPLE_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    SampleRecord,
    SubscriberRecord,
    Truncation,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import HeldBySubscriber, InvalidStreamCut, PravegaSparkError
from pravega_spark.values.segments import StreamCut, segment_epoch

BytesAt = Callable[[int, int], int]

BY_RETENTION: Final = "retention"
"""The author of retention's truncations, as readers and the stream's history report it."""


@dataclass(frozen=True, slots=True)
class TruncationResult:
    """The head that a truncation set and what it removed; zeros if the head was there already."""

    version: int
    head: StreamCut
    events: int = 0
    size_bytes: int = 0
    """Bytes of the events in the chunks that were removed from the log.

    ``events`` counts to the event, and so do the bytes of an explanation. A chunk that contains the
    new head stays, so these may be fewer; a later truncation counts all of that chunk.
    """
    chunks: int = 0
    passed: tuple[str, ...] = ()
    """Subscribers that still needed truncated events."""


@frees
def truncate(
    stream: StreamLog,
    cut: StreamCut | str,
    *,
    by: str = "user",
    past_subscribers: bool = False,
    life: int | None = None,
) -> TruncationResult:
    """Move the head to a cut and remove the chunks completely below it, in one idempotent commit.

    A sealed stream can be truncated up to its end. ``by`` names the author for history and
    readers; ``life`` is the life that the call is made for, by default the present one. Raises
    InvalidStreamCut for a cut of another stream or below the head anywhere, HeldBySubscriber for
    one that a subscriber still needs unless ``past_subscribers``, IllegalState while the stream is
    being sealed, StaleIdentity, NoSuchStream.
    """
    known = stream.view(life=life)
    allowed = None if past_subscribers else frozenset[str]()
    done = move_head(stream, known, cut, by=by, allowed=allowed)
    if done is None:
        view = stream.view(refresh=False)
        return TruncationResult(view.version, view.head)
    return done[0]


ExtraDomains = Callable[[StreamView], "Mapping[str, str | None] | None"]
"""Returns, for the view that a commit decides on, more domains to set; None cancels the commit."""


@frees
def move_head(
    stream: StreamLog,
    known: StreamView,
    cut: StreamCut | str,
    *,
    by: str,
    allowed: Collection[str] | None,
    expired: Collection[str] = (),
    bytes_at: BytesAt | None = None,
    extra_domains: ExtraDomains = lambda view: {},
    reason: str = "",
) -> tuple[TruncationResult, Mapping[str, str | None]] | None:
    """Truncate as :func:`truncate` does, on ``known`` or later, and set more in the same commit.

    Return the result and the extra domains that were set, or None if nothing was committed: the
    head is there already, or ``extra_domains`` cancelled.

    ``allowed`` names the subscribers that may be passed (None: all); ``expired`` those that the
    same commit removes, which hold nothing. ``bytes_at`` returns the bytes of a segment before an
    offset, by default from the chunks.
    """
    goal = _goal(known, cut)
    if goal.cut == known.head:
        return None
    passed = refuse_held(known, goal, allowed, expired)
    oldest = _oldest_epoch(known, goal.cut, passed)
    sizes = _sizes(known, goal.cut, bytes_at or partial(stream.bytes_at, view=known))
    rows = list(_unneeded_records(known, oldest))
    if rows:
        append_rows(stream, known, rows)
    failpoint("truncate.history")

    def decide(
        view: StreamView,
    ) -> Proposal[tuple[TruncationResult, Mapping[str, str | None]] | None]:
        domains = extra_domains(view)
        if domains is None:
            return None, None
        head = _goal(view, cut)
        if head.cut == view.head:
            return None, None
        passed = refuse_held(view, head, allowed, expired)
        remembered = max(view.oldest_epoch, min(oldest, _oldest_epoch(view, head.cut, passed)))
        body, result = _body(stream, view, head=head, oldest=remembered, by=by, sizes=sizes)
        result = replace(result, passed=tuple(passed))
        body.domains = {**body.domains, **domains}
        details = {"pastSubscribers": passed, "expired": sorted(expired), "reason": reason}
        body.parameters = {**body.parameters, **{k: v for k, v in details.items() if v}}
        return body, (result, domains)

    return stream.commit(decide, life=known.life).value


def passed_subscribers(view: StreamView, cut: LocatedCut) -> list[SubscriberRecord]:
    """Return the subscribers that still need events before a cut, by name."""
    found = []
    for record in view.subscribers:
        if record.bound is not None:
            bound = locate(view, record.bound.cut(view.stream, view.life))
            if not bound.raised_to_head().is_at_or_after(cut):
                found.append(record)
    return found


def refuse_held(
    view: StreamView,
    goal: LocatedCut,
    allowed: Collection[str] | None,
    expired: Collection[str],
) -> list[str]:
    """Return the names of the subscribers that are passed; raise if one may not be passed."""
    passed = [record for record in passed_subscribers(view, goal) if record.name not in expired]
    held = [] if allowed is None else [r.name for r in passed if r.name not in allowed]
    for record in passed:
        if record.name in held:
            bound = record.bound
            assert bound is not None
            holds = "published" if record.published else "is protected from"
            raise HeldBySubscriber(
                f"stream {view.stream} cannot be truncated at {goal}: subscriber {record.name} "
                f"{holds} {bound.cut(view.stream, view.life)} and still needs the events between. "
                "Wait for it, remove it, or truncate with past_subscribers=True.",
                subscribers=tuple(held),
                cut=bound.cut(view.stream, view.life),
            )
    return [record.name for record in passed]


def _sizes(view: StreamView, head: StreamCut, bytes_at: BytesAt) -> Mapping[int, int]:
    """Return the bytes before a head in its segments, or nothing if a chunk cannot be read.

    Truncation must work even on damaged chunks.
    """
    try:
        return view.sized(head, bytes_at).sizes
    except (PravegaSparkError, OSError):
        return {}


def _goal(view: StreamView, cut: StreamCut | str) -> LocatedCut:
    """Return the wanted head in canonical form; raise if it may not be the head.

    The end of a forgotten segment is unknown. So a cut that differs from the head in forgotten
    segments alone may be the one that set the head, and counts as the head: a repetition succeeds.
    """
    given = locate(view, cut)
    goal = given.canonical()
    if goal.cut == view.head:
        return goal
    view.check_not_sealing("truncated")
    if not goal.is_at_or_after(view.located_head) or given.has_lost():
        raise InvalidStreamCut(
            f"stream {view.stream} cannot be truncated at {given}: that is below the head, "
            f"{view.head}, at least in part, and the head never moves back. Give a later cut."
        )
    return goal


def _oldest_epoch(view: StreamView, head: StreamCut, passed: Collection[str]) -> int:
    """Return the oldest epoch that a stream with this head needs; ``passed`` need nothing."""
    named = [segment_id for segment_id, _ in head]
    for keeper in map(view.subscriber, KEEPERS - set(passed)):
        if keeper is not None and keeper.bound is not None:
            named += [s for s in keeper.bound.positions if view.has_segment(s)]
    routing = (opened.epoch for opened in view.transactions.values())
    return max(view.oldest_epoch, min([*map(segment_epoch, named), *routing]))


def _unneeded_records(view: StreamView, oldest: int) -> Iterator[HistoryRow]:
    """Yield the epochs before the oldest one to keep, and the segments that only they name."""
    kept = set(view.epoch(oldest).segment_ids)
    domains, unnamed = view.snapshot.domains, set()
    for number in range(view.oldest_epoch, oldest):
        yield epoch_row(view, number)
        unnamed.update(set(view.epoch(number).segment_ids) - kept)
    for segment_id in sorted(unnamed):
        name = f"{SEGMENT_PREFIX}{segment_id}"
        yield HistoryRow("segment", view.version, name, domains[name])


def _body(
    stream: StreamLog,
    view: StreamView,
    head: LocatedCut,
    oldest: int,
    by: str,
    sizes: Mapping[int, int],
) -> tuple[Body, TruncationResult]:
    now_ms, version = stream.now_ms(), view.version + 1
    removed = [row.name for row in _unneeded_records(view, oldest)]
    ids = [int(n.removeprefix(SEGMENT_PREFIX)) for n in removed if n.startswith(SEGMENT_PREFIX)]
    record = replace(
        view.record,
        head=head.cut.positions,
        oldest_epoch=oldest,
        truncation=Truncation(version, now_ms, by),
        head_sizes={s: sizes[s] for s, offset in head.cut if offset > 0 and s in sizes},
        gone_bytes=view.record.gone_bytes + sum(view.segment(s).size_bytes for s in ids),
    )
    chunks = _chunks_below(stream, view, head, now_ms)
    events = view.located_head.events_to(head)
    body = Body(
        "TRUNCATE STREAM",
        {"head": str(head), "by": by},
        {"numTruncatedEvents": events, "numRemovedFiles": len(chunks)},
        {
            STREAM_DOMAIN: record.encode(),
            **dict.fromkeys([*removed, *_passed_samples(view, head)]),
        },
        removes=chunks,
    )
    return body, TruncationResult(
        version, head.cut, events=events, size_bytes=chunks.event_bytes, chunks=len(chunks)
    )


def _passed_samples(view: StreamView, head: LocatedCut) -> list[str]:
    """Return the domains of the samples at or before a head; samples are in order."""
    samples = view.samples

    def is_after(sample: SampleRecord) -> bool:
        tail = locate(view, sample.tail.cut(view.stream, view.life))
        return not head.is_at_or_after(tail)

    count = bisect_left(samples, True, key=is_after)
    return [f"{SAMPLE_PREFIX}{sample.version}" for sample in samples[:count]]


def _chunks_below(
    stream: StreamLog, view: StreamView, head: LocatedCut, now_ms: int
) -> RemovedChunks:
    """Return the removal of the chunks that lie completely below the new head."""
    below = RemovedChunks(now_ms)
    with stream.log.files() as files:
        for rng in view.located_head.ranges_to(head):
            found = files.cells(rng.segment_id, rng.start, rng.end)
            if found and found[-1][0] + found[-1][1] > rng.end:
                del found[-1]  # the others end before its base offset
            below.cells += [(rng.segment_id, cell) for cell in found]
    return below
