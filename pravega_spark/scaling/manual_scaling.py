"""Scaling by hand: one commit seals segments, opens others over the same keys, and switches."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pravega_spark.engine.layout import epochs
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.errors import InvalidInput, NoSuchSegment, ScaleConflict
from pravega_spark.model import (
    Epoch,
    KeyRange,
    parse_segment,
    segment_epoch,
    segment_number,
    segment_text,
)


def scale_stream(
    stream: StreamLog,
    seal: Collection[int],
    ranges: Sequence[KeyRange],
    *,
    automatic: bool = False,
    life: int | None = None,
) -> Epoch:
    """Replace the segments ``seal`` by new ones of the ranges; return the epoch that has them.

    Any number of disjoint splits and merges at once (Pravega's scaleStream). A request whose
    answer was lost can be made again: it finds its own epoch and makes no second one. A segment
    that a rolling transaction repeated under a newer epoch is meant by its old id too, unless the
    request is ``automatic``: what was decided on another layout is not done. ``life`` is the one
    that the request was made for, by default the present one.

    Raises InvalidConfiguration for ranges that do not tile the sealed ones or leave fewer
    segments than the policy's minimum, NoSuchSegment, StreamSealed, and ScaleConflict when
    another scale came first.
    """

    def decide(view: StreamView) -> Proposal[Epoch]:
        meant = [segment_id if automatic else _newest(view, segment_id) for segment_id in seal]
        done = _done(view, meant, ranges)
        if done is not None:
            return None, done
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        for named, current in zip(seal, meant, strict=True):
            _check_current(view, named, current)
        now_ms = stream.now_ms()
        draft = CommitBuilder(view, now_ms)
        number = view.record.next_segment_number
        minimum = view.record.configuration.scaling.minimum
        epoch = epochs.scale(draft, meant, ranges, now_ms, number, minimum=minimum)
        draft.switch(epoch)
        told = described(view.active, epoch, automatic=automatic)
        return draft.body("SCALE STREAM", told), epoch

    return stream.commit(decide, life=stream.life_of(life)).value


def described(before: Epoch, after: Epoch, *, automatic: bool) -> dict[str, object]:
    """Return what history says of a scale."""
    return {
        "epoch": after.number,
        "sealed": [str(s) for s in before.segments if s not in after.segments],
        "opened": [
            f"{s}=[{s.key_range.low}, {s.key_range.high})"
            for s in after.segments
            if s not in before.segments
        ],
        "automatic": automatic,
    }


def _newest(view: StreamView, segment_id: int) -> int:
    """Return the segment that repeats one, as long as only rolling transactions came after it."""
    while view.has_segment(segment_id):
        sealed = view.segment(segment_id).sealed_epoch
        if sealed is None or sealed <= view.oldest_epoch or not _is_repetition(view.epoch(sealed)):
            break
        reference = view.epoch(sealed - 1).reference
        later = (view.epoch(number) for number in range(sealed, view.active.number + 1))
        again = next((epoch for epoch in later if epoch.reference == reference), None)
        if again is None:
            break
        number = segment_number(segment_id)
        segment_id = next(s.segment_id for s in again.segments if s.number == number)
    return segment_id


def _is_repetition(epoch: Epoch) -> bool:
    return epoch.reference != epoch.number


def _done(view: StreamView, seal: Collection[int], ranges: Sequence[KeyRange]) -> Epoch | None:
    """Return the epoch that this very request has made already, if it has."""
    if not seal or not all(view.has_segment(segment_id) for segment_id in seal):
        return None
    sealed = {view.segment(segment_id).sealed_epoch for segment_id in seal}
    number = sealed.pop()
    if sealed or number is None or not view.oldest_epoch < number <= view.active.number:
        return None
    epoch, before = view.epoch(number), view.epoch(number - 1)
    gone = set(before.segment_ids) - set(epoch.segment_ids)
    opened = sorted(s.key_range for s in epoch.segments if s.epoch == number)
    same = gone == set(seal) and opened == sorted(ranges)
    return epoch if same and not _is_repetition(epoch) else None


def _check_current(view: StreamView, named: int, current: int) -> None:
    """Raise unless a request that names a segment can be done on ``current``, which is meant."""
    if view.active.segment(current) is not None:
        return
    what = f"scale of {view.stream}: segment {segment_text(named)}"
    now = f"epoch {view.active.number} has {epochs.few(view.active.segments)}"
    if view.has_segment(current):
        raise ScaleConflict(
            f"{what} was sealed by epoch {view.segment(current).sealed_epoch}, so another scale "
            f"came first; {now}: look at them, and decide anew.",
            stream=view.stream,
            segment_id=current,
            epoch=view.active.number,
        )
    if segment_number(named) >= view.record.next_segment_number or (
        segment_epoch(named) >= view.oldest_epoch  # else it may be one that was truncated away
    ):
        raise NoSuchSegment(f"{what} does not exist; {now}.", stream=view.stream, segment_id=named)
    raise ScaleConflict(
        f"{what} is not current any more; {now}: look at them, and decide anew.",
        stream=view.stream,
        segment_id=current,
        epoch=view.active.number,
    )


def segment_named(view: StreamView, name: int | str) -> int:
    """Return the id of a segment given by id, by text (``"3#1"``), or by an active one's number."""
    if isinstance(name, str):
        return parse_segment(name)
    if isinstance(name, bool) or not isinstance(name, int) or name < 0:
        raise InvalidInput(f"a segment is named by its id, its number, or as '3#1'; got {name!r}.")
    if segment_epoch(name) == 0 and not view.has_segment(name):
        for segment in view.active.segments:
            if segment.number == name:
                return segment.segment_id
    return name


def key_range(given: KeyRange | tuple[float, float]) -> KeyRange:
    """Return a range given as (low, high); raise InvalidInput if it is none within [0, 1]."""
    if isinstance(given, KeyRange):
        return given
    try:
        low, high = given
        return KeyRange(low + 0.0, high + 0.0)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a key range is (low, high) with 0 <= low < high <= 1, got {given!r}."
        ) from error


def check_scale(view: StreamView, epoch: int) -> bool:
    """Tell whether a scale of that epoch is done: a later one is active (Pravega's checkScale).

    A scale is one commit, so none is ever under way. Raises InvalidInput for an epoch to come.
    """
    if not isinstance(epoch, int) or not 0 <= epoch <= view.active.number:
        raise InvalidInput(
            f"stream {view.stream} has no epoch {epoch!r} yet; the active one is "
            f"{view.active.number}."
        )
    return epoch < view.active.number
