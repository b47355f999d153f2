"""No event enters what is sealed, and a scale leaves no keys without a segment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.sim.checkers.layouts import ENDLESS
from tests.sim.checkers.streams import StreamHistory, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of

_CHANGES = ("scale", "autoscale", "update_stream", "maintain")
"""What may scale a stream."""


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a write lands behind a seal, or a scale makes no whole layout."""
    streams = streams_of(calls)
    for seal in of(calls, "seal"):
        stream = streams.get(seal.arguments["stream"])
        landed = _landed(stream, transactions=True) if seal.ok and stream is not None else ()
        if seal.ok and stream is not None:
            _no_commit(stream, seal)
            _ends(stream, seal)
        for event, began, _ in landed:
            if seal.ended is not None and seal.ended < began:
                raise Violation(
                    "no event enters what is sealed", f"{event!r} of line {began}, after {seal}"
                )
    scales = [call for call in of(calls, "scale") if call.ok and "seal" in call.arguments]
    for scale in scales:
        _whole(scale)
        _same_epoch(scale, scales, of(calls, "scale"))
    for stream in streams.values():
        _stay_sealed(calls, stream)
    for scale in of(calls, "scale"):
        _repeated(scale, scales, calls)
    for name in sorted({call.arguments["stream"] for call in of(calls, "segments")}):
        _only_scales(calls, name)
    for call in of(calls, "autoscale"):
        if call.ok and call.value is not None and call.value < call.arguments["minimum"]:
            raise Violation("automatic scaling leaves the minimum of segments", f"{call}")


def _stay_sealed(calls: Sequence[Recorded], stream: StreamHistory) -> None:
    """Nothing enters a segment that was sealed, as a scale, a read or a layout shows it."""
    sealed: dict[str, Recorded] = {}
    for segment, call in _sealed(calls, stream):
        sealed[segment] = min(sealed.get(segment, call), call, key=lambda one: one.ended or 0)
    for event, began, segment in _landed(stream):
        told = sealed.get(segment)
        if told is not None and (told.ended or 0) < began:
            raise Violation(
                "no event enters what is sealed",
                f"{event!r} of line {began} is in segment {segment}, after {told}",
            )


def _sealed(calls: Sequence[Recorded], stream: StreamHistory) -> Iterator[tuple[str, Recorded]]:
    """Yield segments, each with a call that has sealed it, has read it to its end, or was told of a
    successor."""
    mine = [call for call in calls if call.ok and call.arguments.get("stream") == stream.name]
    for scale in of(mine, "scale"):
        for segment in scale.arguments.get("seal", ()):
            yield segment, scale
    if stream.is_deleted:
        return
    for read in stream.reads:
        for segment, end in read.end.items():
            if end == ENDLESS and read.to_the_tail:
                yield segment, read.call
    for layout in of(mine, "layout"):
        for above in layout.value.values():
            for segment in above:
                yield str(segment), layout


def _no_commit(stream: StreamHistory, seal: Recorded) -> None:
    """No commit is acknowledged that nobody had begun before the seal."""
    for tried in stream.tried.values():
        began = tried.began
        if began is None or tried.transaction is None or (seal.ended or began) >= began:
            continue
        for call in tried.calls:
            if call.ok:
                raise Violation(
                    "no transaction is committed to what is sealed", f"{seal}; then {call}"
                )


def _ends(stream: StreamHistory, seal: Recorded) -> None:
    """The tail that a read has found after the seal is the last one."""
    for read in stream.reads:
        if not read.to_the_tail or not seal.before(read.call):
            continue
        for event, place in stream.places().items():
            if not stream.layout.before(place, read.end):
                raise Violation(
                    "no event enters what is sealed", f"{event!r} at {place}; {seal}; {read.call}"
                )


def _only_scales(calls: Sequence[Recorded], name: str) -> None:
    """Nothing but a scale changes the ranges of a stream's segments."""
    mine = [call for call in calls if call.arguments.get("stream") == name]
    scales = [c for c in of(mine, *_CHANGES) if c.may_have_happened]
    known = [call for call in of(mine, "segments") if call.ok]
    sealed = [c.began for c in of(mine, "seal") if c.may_have_happened]
    for call in known:
        is_sealed = not call.value and sealed and sealed[0] < (call.ended or 0)
        if not is_sealed and _joined(call.value) != [[0.0, 1.0]]:
            raise Violation("segments have each key once", f"{call}")
        for scale in of(mine, "scale"):
            _shown(scale, call, scales)
    for first, second in pairwise(known):
        may = (c.began < (second.ended or 0) and not c.before(first) for c in scales)
        if first.before(second) and first.value != second.value and not any(may):
            raise Violation("only a scale changes the ranges of segments", f"{first}; {second}")


def _shown(scale: Recorded, call: Recorded, scales: Sequence[Recorded]) -> None:
    """Whoever asks for the segments after a scale, and no other one, is told the new ones."""
    if not scale.ok or not scale.before(call) or "seal" not in scale.arguments or not call.value:
        return
    same = [c for c in scales if c.operation == "scale" and c.arguments == scale.arguments]
    began = min(one.began for one in same)  # whoever repeats a scale is told what the first one did
    for other in scales:
        amid = other.ended is None or other.ended > began
        if other not in same and amid and other.began < (call.ended or 0):
            return
    told = [tuple(one) for one in call.value]
    new = [tuple(one) for one in scale.arguments["ranges"]]
    old = [one for one in map(tuple, scale.arguments["sealed"]) if one not in new]
    if any(one not in told for one in new) or any(one in told for one in old):
        raise Violation("segments are those of the last scale", f"{scale}; then {call}")


def _landed(stream: StreamHistory, *, transactions: bool = False) -> Iterator[tuple[str, int, str]]:
    """Yield events that are in a stream: the line of the first call that may have put it there.

    Those of transactions may enter segments that a scale has sealed, by an epoch of their own.
    """
    places = stream.places()
    for event, tried in stream.tried.items():
        began = tried.began
        if event in places and began is not None and (transactions or tried.transaction is None):
            yield event, began, places[event][0]


def _whole(scale: Recorded) -> None:
    """The new segments have exactly the keys of those that they replace."""
    old, new = (_joined(scale.arguments[name]) for name in ("sealed", "ranges"))
    if old != new:
        raise Violation("a scale leaves no keys without a segment", f"{old} becomes {new}: {scale}")


def _joined(ranges: Sequence[Sequence[float]]) -> list[list[float]]:
    found: list[list[float]] = []
    for low, high in sorted(tuple(one) for one in ranges):
        if found and found[-1][1] == low:
            found[-1][1] = high
        else:
            found.append([low, high])
    return found


def _same_epoch(scale: Recorded, others: Sequence[Recorded], tried: Sequence[Recorded]) -> None:
    """Who repeats a scale gets the epoch that the first one has made."""
    for other in others:
        same = all(
            scale.arguments[name] == other.arguments[name] for name in ("stream", "seal", "ranges")
        )
        same_epoch = scale.value == other.value
        if same_epoch and scale.arguments["stream"] == other.arguments["stream"] and not same:
            raise Violation("two scales make two epochs", f"{scale}; {other}")
        is_later = scale.before(other) and scale.arguments["stream"] == other.arguments["stream"]
        if is_later and other.value <= scale.value and not _is_repeated(other, tried):
            raise Violation("two scales make two epochs", f"{scale}; {other}")
        if same and scale.value != other.value:
            raise Violation("a scale that is repeated makes no second epoch", f"{scale}; {other}")


def _is_repeated(scale: Recorded, tried: Sequence[Recorded]) -> bool:
    """Whether somebody had asked for the same scale before."""
    return any(one.arguments == scale.arguments and one.began < scale.began for one in tried)


def _repeated(again: Recorded, scales: Sequence[Recorded], calls: Sequence[Recorded]) -> None:
    """Who repeats a scale at once is not refused because of it."""
    if again.error not in ("ScaleConflict", "NoSuchSegment") or "seal" not in again.arguments:
        return
    for scale in scales:
        same = all(
            scale.arguments[name] == again.arguments[name] for name in ("stream", "seal", "ranges")
        )
        between = (
            call
            for call in of(calls, *_CHANGES)
            if call is not scale
            and call.arguments.get("stream", again.arguments["stream"]) == again.arguments["stream"]
            and call.may_have_happened
            and not call.before(scale)
            and call.began < (again.ended or 0)
        )
        if same and scale.before(again) and not any(between):
            raise Violation("a scale that is repeated finds its own epoch", f"{scale}; {again}")
