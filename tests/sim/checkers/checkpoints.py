"""A checkpoint of a group is a cut of all its streams, which lies where its markers were."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.layouts import ENDLESS, Layout
from tests.sim.checkers.readers import Group, Session, groups_of
from tests.sim.checkers.streams import StreamHistory, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a cut lies elsewhere, or an event before it reached no reader."""
    streams = streams_of(calls)
    for group in groups_of(calls):
        if not group.is_told_apart:
            continue
        for checkpoint in group.checkpoints:
            if checkpoint.ok:
                _at_its_markers(group, checkpoint, streams)
                _all_before_it(group, checkpoint, streams)
                if group.acknowledge != "transaction":
                    _shown(group, checkpoint)
                _covers(checkpoint, streams)
        for cuts in group.cuts:
            if cuts.ok:
                _all_before_it(group, cuts, streams)


def _at_its_markers(group: Group, checkpoint: Recorded, streams: dict[str, StreamHistory]) -> None:
    name = checkpoint.arguments["name"]
    for session in group.sessions:
        for number, one in enumerate(session.handed):
            stream = streams.get(one.stream, StreamHistory(one.stream))
            if stream.is_deleted:
                continue  # and perhaps no stream of the group any more
            cut = checkpoint.value.get(one.stream)
            if cut is None:
                raise Violation(
                    "a checkpoint has a cut of each stream",
                    f"{checkpoint} has none of {one.stream}",
                )
            inside = stream.layout.before(one.position, cut)
            marked = session.markers.get(name)
            if marked is None:
                continue
            is_gone = stream.is_truncated(one.position)  # a reader answers without its segment
            if number < marked and not (inside or is_gone or _was_lost_amid(session, checkpoint)):
                raise Violation(
                    "a checkpoint lies where its markers were",
                    f"{one.event!r} came before the marker {name!r}, and lies after its cut {cut}",
                )
            if number >= marked and inside and _first(group, one.event) is one:
                raise Violation(
                    "a checkpoint lies where its markers were",
                    f"{one.event!r} came after the marker {name!r}, and lies before its cut {cut}",
                )


def _covers(checkpoint: Recorded, streams: dict[str, StreamHistory]) -> None:
    """Each segment that the stream ever had is in the cut, or before or after one that is; none is
    in it that comes after another one which it is amid."""
    for name, cut in checkpoint.value.items():
        layout = streams[name].layout if name in streams else Layout()
        for segment in layout.segments:
            after = layout.ancestors(segment) & cut.keys()
            if segment not in cut and not after and not layout.before((segment, 0), cut):
                raise Violation(
                    "a checkpoint covers all keys", f"segment {segment} of {name}: {checkpoint}"
                )
        for segment, offset in cut.items():
            above = sorted(layout.ancestors(segment) & cut.keys())
            for other in above:
                is_read = cut[other] == ENDLESS or streams[name].is_truncated((other, cut[other]))
                if not is_read:
                    raise Violation(
                        "a checkpoint has each key once",
                        f"segments {other} of {name}, and {segment} after it, which is at "
                        f"{offset}: {checkpoint}",
                    )


def _shown(group: Group, checkpoint: Recorded) -> None:
    """Who was in the group from before it began, and reads on after it, was shown its marker.

    A group whose transactions acknowledge shows none.
    """
    name = checkpoint.arguments["name"]
    assert checkpoint.ended is not None
    for session in group.sessions:
        is_there = session.joined.ok and session.joined.before(checkpoint)
        if is_there and _reads_on(session, checkpoint) and name not in session.markers:
            raise Violation(
                "a checkpoint is shown to every reader",
                f"{session.reader} reads on after {checkpoint}, and was shown no marker",
            )


def _was_lost_amid(session: Session, checkpoint: Recorded) -> bool:
    """Whether a reader may have been lost before its answer came through: nothing shows that it was
    in the group when the checkpoint was complete.

    It counts with its last recorded position: what it got behind that is handed out again. A reader
    that cannot reach the group reads on, so what it got before then shows nothing.
    """
    return not session.ended_well and not _reads_on(session, checkpoint)


def _reads_on(session: Session, checkpoint: Recorded) -> bool:
    """Whether a reader was still in the group when a checkpoint was complete, by what it got."""
    assert checkpoint.ended is not None
    if any(change.began < checkpoint.ended for change in session.changes):
        return False
    return any(checkpoint.before(one.call) for one in session.handed)


def _first(group: Group, event: str) -> object:
    return next(one for one in group.handed if one.event == event)


def _all_before_it(group: Group, checkpoint: Recorded, streams: dict[str, StreamHistory]) -> None:
    """What lies between the group's start and the cut was handed out, or truncated."""
    handed = {
        (one.stream, one.event)
        for one in group.handed
        if checkpoint.ended is not None and one.call.began < checkpoint.ended
    }
    for name, start in group.start.items():
        stream, cut = streams.get(name), checkpoint.value.get(name)
        if stream is None or cut is None:
            continue
        for event, place in stream.places().items():
            owed = stream.layout.before(place, cut) and not stream.layout.before(place, start)
            if owed and (name, event) not in handed and not stream.is_truncated(place):
                raise Violation(
                    "each event is read at least once",
                    f"{event!r} at {place} lies before the cut of {checkpoint}, and nobody got it",
                )
