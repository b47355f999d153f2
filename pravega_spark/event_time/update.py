"""Commits the next watermark of a stream, and drops the marks and watermarks that nobody needs.

The decision is made on the snapshot that the commit builds on. If nothing follows from the marks,
nothing is committed. Only the silence of a writer is a matter of time, and it is judged late: by
the age of the version that holds the writer's last note (ADR 14).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pravega_spark.config.descriptions import Watermark, WriterMark
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.stream.history import HistoryRow
from pravega_spark.engine.stream.layout_rows import append_rows
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import (
    MARK_PREFIX,
    WATERMARK_PREFIX,
    Advance,
    encode_watermark,
    locate_clipped,
    marks_of,
    next_advance,
    next_watermark,
    watermarks_of,
)
from pravega_spark.values.limits import MAX_WATERMARKS

Silent = Callable[[WriterMark], bool]


class WatermarkUpdate(NamedTuple):
    """What an update did, or would do."""

    watermark: Watermark | None
    """The watermark that it recorded; None if none follows from the marks."""
    dropped: tuple[WriterMark, ...]
    """The writers that have left or are silent, and no longer count."""
    held_by: tuple[WriterMark, ...]
    """The writers that hold the next watermark back."""


def update_watermark(
    stream: StreamLog,
    timeout_ms: int,
    *,
    life: int,
    dry_run: bool = False,
) -> WatermarkUpdate:
    """Record the next watermark of a stream in one commit; make none if nothing has changed.

    A writer that has noted nothing for longer than ``timeout_ms`` is silent. Raises NoSuchStream,
    StaleIdentity.
    """
    view = stream.view(life=life)
    is_silent = _silence(stream, timeout_ms, keep=not dry_run)
    if dry_run:
        return _update(view, *next_watermark(view, watermarks_of(view), is_silent))
    thinned = _thinned(view, is_silent)
    if thinned:
        append_rows(stream, view, [_row(view, old) for old in thinned])
    failpoint("watermark.history")

    def decide(view: StreamView) -> Proposal[WatermarkUpdate]:
        known = watermarks_of(view)
        found, advance = next_watermark(view, known, is_silent)
        update = _update(view, found, advance)
        if view.record.state is StreamState.SEALING or not (found or advance.unneeded):
            return None, update
        domains: dict[str, str | None] = {
            f"{MARK_PREFIX}{mark.writer_id}": None for mark in advance.unneeded
        }
        parameters: dict[str, object] = {}
        if advance.unneeded:
            parameters["dropped"] = [mark.writer_id for mark in advance.unneeded]
        if found is not None:
            parameters |= {"lower": found.lower_us, "upper": found.upper_us}
            domains[f"{WATERMARK_PREFIX}{view.version + 1}"] = encode_watermark(found)
            domains |= {_domain(old): None for old in thinned if old in known}
        return Body("WATERMARK", parameters, domains=domains), update

    return stream.commit(decide, life=life).value


def _update(view: StreamView, found: Watermark | None, advance: Advance) -> WatermarkUpdate:
    if found is not None:
        found = Watermark(
            lower_us=found.lower_us,
            upper_us=found.upper_us,
            cut=found.cut,
            version=view.version + 1,
        )
    return WatermarkUpdate(found, advance.unneeded, advance.held_by)


def _silence(stream: StreamLog, timeout_ms: int, *, keep: bool) -> Silent:
    """Return whether a writer is silent, by its last note's version; a clock is read on use."""
    ages: VersionAges | None = None

    def is_silent(mark: WriterMark) -> bool:
        nonlocal ages
        ages = ages or VersionAges.read(stream.log, keep=keep)
        return ages.now_ms - ages.written_ms(mark.version) > timeout_ms

    return is_silent


def _thinned(view: StreamView, is_silent: Silent) -> Sequence[Watermark]:
    """Return the watermarks that leave the state with the next one, if there are too many.

    Every second one of the older half leaves, so the newer ones stay dense. Those that lie below
    the head, except for the last of them, serve no reader and leave first.
    """
    known = watermarks_of(view)
    if len(known) < MAX_WATERMARKS or not next_advance(known, marks_of(view), is_silent).bounds:
        return ()
    head = view.located_head
    below = [one for one in known if head.is_at_or_after(locate_clipped(view, one))]
    return below[:-1] or known[1 : len(known) // 2 : 2]


def _domain(watermark: Watermark) -> str:
    return f"{WATERMARK_PREFIX}{watermark.version}"


def _row(view: StreamView, old: Watermark) -> HistoryRow:
    assert old.version is not None
    return HistoryRow("watermark", old.version, _domain(old), view.snapshot.domains[_domain(old)])
