"""What this server could not read of events and entries, from then on until it can be read.

No poll reads chunks: that would cost as much as the root is large. But what a page of events or of
a table meets is known to the overview, too. It is forgotten when the same events, or the same page
of entries, can be read, and when they are no longer there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.event_walk import Unreadable
from pravega_spark.values.segments import SegmentRange, segment_text

STREAM, TABLE = "stream", "table"
KEPT_RANGES: Final = 64
"""The most ranges, or pages of entries, of one stream or table that are kept: those found first."""
KEPT_SUBJECTS: Final = 256


class Subject(NamedTuple):
    """A stream or a key-value table of the root."""

    kind: str
    name: str

    @property
    def path(self) -> str:
        """The address of its page."""
        return f"/{self.kind}s/{self.name}"


@dataclass(frozen=True, slots=True)
class FoundLoss:
    """Some events that could not be read, and when that was found."""

    rng: SegmentRange
    text: str
    found_ms: int


@dataclass(frozen=True, slots=True)
class FoundPage:
    """A page of entries that could not be read to its end, by its query."""

    query: tuple[tuple[str, str], ...]
    text: str
    found_ms: int


_Found = TypeVar("_Found", FoundLoss, FoundPage)


class FoundDamage:
    """The damage that one server has found; thread-safe, and bounded."""

    def __init__(self, runtime: Runtime, root_url: str) -> None:
        """Know of none."""
        self._runtime, self._url = runtime, root_url
        self._lock = new_lock()
        self._losses: dict[Subject, tuple[FoundLoss, ...]] = {}
        self._pages: dict[Subject, tuple[FoundPage, ...]] = {}

    @property
    def losses(self) -> Mapping[Subject, Sequence[FoundLoss]]:
        """The events that could not be read when that was last tried."""
        return self._losses

    @property
    def pages(self) -> Mapping[Subject, Sequence[FoundPage]]:
        """The pages of entries that could not be read."""
        return self._pages

    def looked(self, subject: Subject, rng: SegmentRange, lost: Sequence[Unreadable]) -> None:
        """Note what could not be read of a range that was tried just now, and forget the rest."""
        found = [
            FoundLoss(one.lost, said(one.error, self._url), self._runtime.now_ms())
            for one in lost
            if isinstance(one.error, Damaged)
        ]
        with self._lock:
            known = self._losses.get(subject, ())
            if found or known:
                left = [part for loss in known for part in _outside(loss, rng)]
                left = sorted(
                    [*left, *found], key=lambda loss: (loss.rng.segment_id, loss.rng.start)
                )
                self._losses = _with(self._losses, subject, left)

    def looked_at_page(
        self, subject: Subject, query: Mapping[str, str | None], problem: str | None
    ) -> None:
        """Note that a page of entries could not be read, or forget it."""
        named = tuple(sorted((name, text) for name, text in query.items() if text))
        with self._lock:
            known = self._pages.get(subject, ())
            if problem or known:
                left = [page for page in known if page.query != named]
                if problem:
                    left.append(FoundPage(named, problem, self._runtime.now_ms()))
                self._pages = _with(self._pages, subject, left)

    def follow(self, subject: Subject, view: StreamView) -> None:
        """Forget what is no longer there: of another life, or before the head. Costs no call."""
        with self._lock:
            known = self._losses.get(subject)
            if known is not None:
                left = [part for loss in known for part in _readable(loss, view)]
                self._losses = _with(self._losses, subject, left)

    def keep(self, streams: Collection[str], tables: Collection[str]) -> None:
        """Forget streams and tables that are not listed any more."""
        names = {STREAM: streams, TABLE: tables}
        with self._lock:
            self._losses = {s: v for s, v in self._losses.items() if s.name in names[s.kind]}
            self._pages = {s: v for s, v in self._pages.items() if s.name in names[s.kind]}


def events_address(subject: Subject, loss: FoundLoss) -> str:
    """Return the address of the page that tries to read these events again."""
    at = f"{segment_text(loss.rng.segment_id)}={loss.rng.start}"
    if subject.kind == TABLE:
        return f"{subject.path}?{urlencode({'changes': '1', 'order': 'oldest', 'at': at})}"
    return f"{subject.path}/events?{urlencode({'order': 'oldest', 'at': at})}"


def entries_address(subject: Subject, page: FoundPage) -> str:
    """Return the address of the page of entries that tries to read them again."""
    return f"{subject.path}?{urlencode(page.query)}" if page.query else subject.path


def _with(
    known: dict[Subject, tuple[_Found, ...]], subject: Subject, found: Sequence[_Found]
) -> dict[Subject, tuple[_Found, ...]]:
    """Return what is known with the new finds of one subject, those that have room."""
    others = {one: value for one, value in known.items() if one != subject}
    if not found or (subject not in known and len(others) >= KEPT_SUBJECTS):
        return others
    return {**others, subject: tuple(found[:KEPT_RANGES])}


def _outside(loss: FoundLoss, rng: SegmentRange) -> Iterator[FoundLoss]:
    """Yield the parts of a loss that lie outside a range."""
    lost = loss.rng
    if (lost.life, lost.segment_id) != (rng.life, rng.segment_id):
        yield loss
        return
    for start, end in (
        (lost.start, min(lost.end, rng.start)),
        (max(lost.start, rng.end), lost.end),
    ):
        if start < end:
            yield replace(loss, rng=replace(lost, start=start, end=end))


def _readable(loss: FoundLoss, view: StreamView) -> Iterator[FoundLoss]:
    """Yield the part of a loss that a view still has."""
    lost = loss.rng
    if lost.life == view.life and view.has_segment(lost.segment_id):
        start = max(lost.start, view.head_offset(lost.segment_id))
        if start < lost.end:
            yield replace(loss, rng=replace(lost, start=start))
