"""Scaling: one commit seals segments, opens others over the same keys, and makes a new epoch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pravega_spark.engine.layout import epoch_changes, epochs
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.layout_rows import note_layout
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.errors import InvalidInput, NoSuchSegment, ScaleConflict
from pravega_spark.values.checks import check_whole, is_whole, shown
from pravega_spark.values.segments import (
    Epoch,
    KeyRange,
    Segment,
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
    """Replace the segments ``seal`` by new segments of the ranges; return the new epoch.

    One commit makes any number of disjoint splits and merges (Pravega's scaleStream). A request
    whose outcome is unknown can be repeated: it finds its own epoch and makes no second one. Then
    the rows of the new epoch are added to the stream's history (see ``layout_rows``). The
    old id of a segment that a rolling transaction duplicated names the duplicate, too, unless the
    request is ``automatic``: a decision on another layout is refused. ``life`` is the life that
    the request is meant for, by default the present one.

    Raises InvalidConfiguration for ranges that do not tile the sealed ones or leave fewer
    segments than the policy's minimum, NoSuchSegment, StreamSealed, and ScaleConflict if another
    scale came first.
    """

    def decide(view: StreamView) -> Proposal[Epoch]:
        sealed = [s if automatic else _newest_duplicate(view, s) for s in seal]
        existing = _existing_epoch(view, sealed, ranges)
        if existing is not None:
            return None, existing
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        for named, segment_id in zip(seal, sealed, strict=True):
            _check_current(view, named, segment_id)
        now_ms = stream.now_ms()
        draft = CommitBuilder(view, now_ms)
        number = view.record.next_segment_number
        minimum = view.record.configuration.scaling.minimum
        epoch = epoch_changes.scale(draft, sealed, ranges, now_ms, number, minimum=minimum)
        draft.switch(epoch)
        parameters = _scale_parameters(view.active, epoch, automatic=automatic)
        return draft.body("SCALE STREAM", parameters), epoch

    done = stream.commit(decide, life=stream.life_of(life))
    note_layout(stream, stream.view_of(done.snapshot))
    return done.value


def _scale_parameters(before: Epoch, after: Epoch, *, automatic: bool) -> dict[str, object]:
    """Return the parameters of a scale's commit, which the table's history shows."""
    old, new = set(before.segment_ids), set(after.segment_ids)
    return {
        "epoch": after.number,
        "sealed": [str(s) for s in before.segments if s.segment_id not in new],
        "opened": [
            f"{s}=[{s.key_range.low}, {s.key_range.high})"
            for s in after.segments
            if s.segment_id not in old
        ],
        "automatic": automatic,
    }


def _newest_duplicate(view: StreamView, segment_id: int) -> int:
    """Return the newest segment that duplicates one, if only rolling transactions sealed it."""
    while view.has_segment(segment_id):
        sealed = view.segment(segment_id).sealed_epoch
        if sealed is None or sealed <= view.oldest_epoch or not _is_duplicate(view.epoch(sealed)):
            break
        reference = view.epoch(sealed - 1).reference
        later = (view.epoch(number) for number in range(sealed, view.active.number + 1))
        duplicate = next((epoch for epoch in later if epoch.reference == reference), None)
        if duplicate is None:
            break
        number = segment_number(segment_id)
        segment_id = next(s.segment_id for s in duplicate.segments if s.number == number)
    return segment_id


def _is_duplicate(epoch: Epoch) -> bool:
    """Return whether a rolling transaction made the epoch as a copy of an earlier one."""
    return epoch.reference != epoch.number


def _existing_epoch(
    view: StreamView, seal: Collection[int], ranges: Sequence[KeyRange]
) -> Epoch | None:
    """Return the epoch that an earlier attempt of the same request made, if any."""
    if not seal or not all(view.has_segment(segment_id) for segment_id in seal):
        return None
    sealed = {view.segment(segment_id).sealed_epoch for segment_id in seal}
    number = sealed.pop()
    if sealed or number is None or not view.oldest_epoch < number <= view.active.number:
        return None
    epoch, before = view.epoch(number), view.epoch(number - 1)
    replaced = set(before.segment_ids) - set(epoch.segment_ids)
    opened = sorted(s.key_range for s in epoch.segments if s.epoch == number)
    is_same = replaced == set(seal) and opened == sorted(ranges)
    return epoch if is_same and not _is_duplicate(epoch) else None


def _check_current(view: StreamView, named: int, segment_id: int) -> None:
    """Raise unless a segment is active; ``named`` is the id by which the request named it."""
    if view.active.segment(segment_id) is not None:
        return
    what = f"scale of {view.stream}: segment {segment_text(named)}"
    active = f"epoch {view.active.number} has {epochs.short_list(view.active.segments)}"
    if view.has_segment(segment_id):
        raise ScaleConflict(
            f"{what} was sealed by epoch {view.segment(segment_id).sealed_epoch}, so another scale "
            f"came first; {active}: decide again on these segments.",
            stream=view.stream,
            segment_id=segment_id,
            epoch=view.active.number,
        )
    if segment_number(named) >= view.record.next_segment_number or (
        segment_epoch(named) >= view.oldest_epoch  # an older one may have been truncated
    ):
        raise NoSuchSegment(
            f"{what} does not exist; {active}.", stream=view.stream, segment_id=named
        )
    raise ScaleConflict(
        f"{what} is no longer active; {active}: decide again on these segments.",
        stream=view.stream,
        segment_id=segment_id,
        epoch=view.active.number,
    )


def resolve_segment_id(view: StreamView, name: Segment | int | str) -> int:
    """Return the id of a segment given as such, as id, as text, or as an active one's number."""
    if isinstance(name, Segment):
        return name.segment_id
    if isinstance(name, str):
        return parse_segment(name)
    if not is_whole(name) or name < 0:
        raise InvalidInput(
            "a segment is given as a Segment, its id, its number, or text like '3#1'; got "
            f"{shown(name)}."
        )
    if segment_epoch(name) == 0 and not view.has_segment(name):
        for segment in view.active.segments:
            if segment.number == name:
                return segment.segment_id
    return name


def to_key_range(given: KeyRange | Sequence[float]) -> KeyRange:
    """Return a range given as (low, high); raise InvalidInput unless it is within [0, 1]."""
    if isinstance(given, KeyRange):
        return given
    try:
        low, high = given
        return KeyRange(low + 0.0, high + 0.0)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a key range is (low, high) with 0 <= low < high <= 1, got {shown(given)}."
        ) from error


def check_scale(view: StreamView, epoch: int) -> bool:
    """Return whether an epoch has been scaled: a later one is active (Pravega's checkScale).

    A scale is one commit, so it is never partly done. Raises InvalidInput for a future epoch.
    """
    if check_whole("an epoch", epoch) > view.active.number:
        raise InvalidInput(
            f"stream {view.stream} has no epoch {epoch} yet; the active one is "
            f"{view.active.number}."
        )
    return epoch < view.active.number
