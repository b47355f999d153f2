"""Readers of a group: each event at least once and in order, and again only after a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.sim.checkers.resets import Reset, resets_of
from tests.sim.checkers.streams import Position, StreamHistory, placed, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


@dataclass
class Handed:
    """An event that a reader got, in one of its times in the group."""

    call: Recorded
    stream: str
    position: Position
    event: str
    session: Session


@dataclass
class Session:
    """A reader from its ``join`` to its end."""

    reader: str
    joined: Recorded
    left: Recorded | None = None
    """A ``leave`` or ``expire``; without one its process was killed, or it reads to the end."""
    rejoined: Recorded | None = None
    """A ``join`` of another process by the same id, which it can make once this one has expired."""
    changes: list[Recorded] = field(default_factory=list)
    """Of its group, or resets, since then or when it joined, which end the group's readers: they
    learn so a little later, and the id is free at once."""
    asked: Recorded | None = None
    """Its last call for the next event."""
    gone: list[Recorded] = field(default_factory=list)
    """Its calls that told it that a stream was deleted."""
    handed: list[Handed] = field(default_factory=list)
    markers: dict[str, int] = field(default_factory=dict)
    """How many events it had got before each marker."""
    shown: dict[str, int] = field(default_factory=dict)
    """The line on which each marker came."""
    asked_on: dict[str, int] = field(default_factory=dict)
    """The line on which the call began by which it answered a marker, if it reached the group."""

    @property
    def may_be_out(self) -> bool:
        """Whether a change of the group may have ended it."""
        return bool(self.changes)

    @property
    def ended_well(self) -> bool:
        return self.left is not None and self.left.operation == "leave" and self.left.ok

    def buffered(self, line: int | None = None) -> list[Handed]:
        """Return what it got and no marker has followed, by a line of the history or at its end.

        Where checkpoints acknowledge, that is what no answer of it can have acknowledged.
        """
        if self.left is not None and self.left.operation == "leave":
            return []
        marked = [n for name, n in self.markers.items() if line is None or self.shown[name] < line]
        return self.handed[max(marked, default=0) :]


@dataclass
class Group:
    """A group between two resets."""

    name: str
    acknowledge: str = "next"
    start: dict[str, dict[str, int]] = field(default_factory=dict)
    """Where it began in each stream, if the history shows it."""
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """Where it ends in each stream that goes on for it no further."""
    sessions: list[Session] = field(default_factory=list)
    checkpoints: list[Recorded] = field(default_factory=list)
    cuts: list[Recorded] = field(default_factory=list)
    """Calls for the readers' positions, without markers."""
    commits: list[Recorded] = field(default_factory=list)
    drains: list[Recorded] = field(default_factory=list)
    """Calls that read until nothing more came."""
    strangers: list[Recorded] = field(default_factory=list)
    """Calls for the next event by who was not in the group."""
    is_told_apart: bool = True
    """Whether it is known which readers and checkpoints are of this generation: none joined or was
    asked for while the group was reset."""

    @property
    def handed(self) -> list[Handed]:
        every = [one for session in self.sessions for one in session.handed]
        return sorted(every, key=lambda one: one.call.ended or 0)


def groups_of(calls: Sequence[Recorded]) -> list[Group]:
    """Return the groups of a history, each generation by itself."""
    groups: dict[str, Group] = {}
    found: list[Group] = []
    open_sessions: dict[tuple[str, str], dict[str, Session]] = {}
    gone: dict[tuple[str, str, str], Recorded | None] = {}
    """The last end of all that ever joined, by group, reader and process."""
    changes: dict[str, list[Recorded]] = {}
    """Of each group, by its name."""
    names = {name for call in calls if (name := call.arguments.get("group")) is not None}
    resets = {one.call.number: one for name in sorted(names) for one in resets_of(calls, name)}
    begun: dict[int, Reset] = {}
    """By the place of a generation in ``found`` the reset that began it."""

    def order(call: Recorded) -> tuple[int, int]:
        reset = resets.get(call.number)
        if reset is not None:
            return reset.since, reset.generation or 0
        return call.ended if call.operation == "next" and call.ended else call.began, 0

    for call in sorted(calls, key=order):
        name = call.arguments.get("group")
        if name is None:
            continue
        group = groups.get(name)
        if group is None or (call.operation == "reset" and call.may_have_happened):
            former, group = group, Group(name)
            groups[name] = group
            if call.number in resets:
                begun[len(found)] = resets[call.number]
            found.append(group)
            if former is not None:
                group.acknowledge = former.acknowledge
                group.start = dict(call.arguments.get("to") or {})
                group.ends = former.ends
        if call.operation in ("update_group", "reset") and call.may_have_happened:
            changes.setdefault(name, []).append(call)
            for (of_group, _), known in open_sessions.items():
                for session in known.values() if of_group == name else ():
                    session.changes.append(call)
        if call.operation == "create_group":
            group.start = dict(call.arguments["streams"])
            group.ends = (
                dict(call.arguments.get("ends") or {}) if call.may_have_happened else group.ends
            )
        reader = call.arguments.get("reader", "")
        mine = open_sessions.setdefault((name, reader), {})
        """By process: an id that expired may join again elsewhere before the first one knows."""
        if call.operation == "join" and call.may_have_happened:
            group.acknowledge = call.arguments.get("acknowledge", "next")
            gone[name, reader, call.process] = None
            for other in mine.values() if call.ok else ():
                is_first = other.rejoined is None and other.joined.before(call)
                if is_first and not other.may_be_out:
                    other.rejoined = call
            since = [change for change in changes.get(name, ()) if not change.before(call)]
            mine[call.process] = Session(reader, call, changes=since)
            group.sessions.append(mine[call.process])
        elif call.operation in ("leave", "expire") and call.may_have_happened:
            is_its_own = (name, reader, call.process) in gone
            for process in mine.keys() & {call.process} if is_its_own else list(mine):
                mine.pop(process).left = gone[name, reader, process] = call
        elif call.operation == "drain":
            group.drains.append(call)
        elif call.operation == "checkpoint":
            group.checkpoints.append(call)
        elif call.operation == "stream_cuts":
            group.cuts.append(call)
        elif call.operation == "next" and call.process in mine:
            _note(call, mine[call.process])
        elif call.operation == "next" and call.ok and call.value:
            end = gone.get((name, reader, call.process))
            group.strangers += [call] if end is None or end.before(call) else []
    for call in of(calls, "commit"):
        for group in found:
            group.commits += [call] if call.arguments.get("reads") else []
    asked = of([c for c in calls if c.ok], "join", "checkpoint", "stream_cuts", "drain")
    for number, reset in begun.items():
        group = found[number]
        if any(c.arguments["group"] == group.name and reset.may_be_amid(c) for c in asked):
            before = [one for one in found[:number] if one.name == group.name]
            after = [one for one in found[number + 1 :] if one.name == group.name]
            for one in (*before[-1:], group, *(after if reset.by is None else ())):
                one.is_told_apart = False  # a reset of unknown outcome may come at any later time
    return found


def _note(call: Recorded, session: Session) -> None:
    if session.asked is None or session.asked.began < call.began:
        session.asked = call
    for name in session.markers:
        session.asked_on.setdefault(name, call.began)
    session.gone += [call] if call.error == "NoSuchStream" else []
    if not call.ok or not call.value:
        return
    if "checkpoint" in call.value:
        session.markers[call.value["checkpoint"]] = len(session.handed)
        session.shown[call.value["checkpoint"]] = call.began
    else:
        got = call.value
        session.handed.append(
            Handed(call, got["stream"], placed(got["position"]), got["event"], session)
        )


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if readers of a group skip, disorder or repeat events without a reason."""
    streams = streams_of(calls)
    for group in groups_of(calls):
        for stranger in group.strangers:
            raise Violation("only who is in a group is handed anything", f"{stranger}")
        if not group.is_told_apart:
            continue
        _in_session(group)
        _not_expired(group)
        _nothing_skipped(group, streams)
        _nothing_behind_its_end(group, streams)
        _by_key(group, streams)
        _again(group, streams)
        _told_once(group)
        _all_of_it(group, streams)
        if group.acknowledge == "checkpoint":
            _buffered_comes_again(group, streams)
            _acknowledged_in_order(group, streams)
        _asked_for(group, calls)
        if group.acknowledge == "next":
            _in_hand_comes_again(group, streams)
    _what_was_got(calls)
    _one_output(calls, streams)


def _what_was_got(calls: Sequence[Recorded]) -> None:
    """A transaction acknowledges what a reader got before its commit."""
    got: dict[tuple[str, str], Recorded] = {}
    for call in of(calls, "next"):
        if call.ok and call.value and "event" in call.value:
            pair = call.value["stream"], call.value["event"]
            got[pair] = min(got.get(pair, call), call, key=lambda one: one.ended or 0)
    for commit in of(calls, "commit"):
        for stream, event in commit.arguments.get("reads") or () if commit.ok else ():
            first = got.get((stream, event))
            if first is None or not first.before(commit):
                raise Violation(
                    "a transaction acknowledges what a reader got",
                    f"nobody got {event!r} of {stream} before {commit}",
                )


def _one_output(calls: Sequence[Recorded], streams: dict[str, StreamHistory]) -> None:
    """Of the transactions that acknowledge an event, one is committed.

    ``reads`` name no group, so it is asked where one group's transactions acknowledge, and none
    of its events came again by a reset.
    """
    joins = [c for c in of(calls, "join") if c.arguments.get("acknowledge") == "transaction"]
    groups = {join.arguments["group"] for join in joins}
    if len(groups) != 1 or any(c.arguments["group"] in groups for c in of(calls, "reset")):
        return
    seen = {(name, one.event) for name, stream in streams.items() for one in stream.seen()}
    visible = {
        stage.arguments["transaction"]
        for stage in of(calls, "stage")
        for name, events in stage.arguments["streams"].items()
        for _, event in events
        if (name, event) in seen
    }
    outputs: dict[tuple[str, str], Recorded] = {}
    for call in of(calls, "commit"):
        transaction = call.arguments["transaction"]
        if not call.ok and transaction not in visible:
            continue
        for stream, event in call.arguments.get("reads") or ():
            first = outputs.setdefault((stream, event), call)
            if first.arguments["transaction"] != transaction:
                raise Violation(
                    "each input event has its output once", f"{event!r}: {first}; {call}"
                )


def _all_of_it(group: Group, streams: dict[str, StreamHistory]) -> None:
    """Once nothing more comes, each event was handed out that was there when the drain began."""
    for drain in group.drains:
        if not drain.ok or drain.ended is None:
            continue
        handed = _handled(group, streams, drain.ended)
        names = {name for session in group.sessions for name in session.joined.arguments["streams"]}
        for name in sorted(names & streams.keys()):
            stream, start = streams[name], group.start.get(name, {})
            places = stream.places()
            for event, tried in stream.tried.items():
                since, place = tried.acknowledged(), places.get(event)
                if since is None or since > drain.began or place is None:
                    continue
                if stream.layout.before(place, start) or stream.is_truncated(place):
                    continue
                end = group.ends.get(name, {})
                is_unknown = end and place[0] not in (*end, *stream.layout.segments)
                if is_unknown or stream.layout.behind(place, end):
                    continue
                if (name, event) not in handed:
                    raise Violation(
                        "each event is read at least once",
                        f"{event!r} at {place} reached no reader of {group.name} by {drain}",
                    )


def _handled(group: Group, streams: dict[str, StreamHistory], line: int) -> set[tuple[str, str]]:
    """Return the stream and event of all that readers got; where transactions acknowledge, of all
    that was in one that may be committed."""
    if group.acknowledge != "transaction":
        return {(one.stream, one.event) for one in group.handed if one.call.began < line}
    commits = (c for c in group.commits if c.began < line and _came_through(c, streams))
    return {(name, event) for call in commits for name, event in call.arguments["reads"]}


def _came_through(commit: Recorded, streams: dict[str, StreamHistory]) -> bool:
    """Whether a transaction may be committed: of unknown outcome it is if its events are seen."""
    if commit.ok or not commit.may_have_happened:
        return commit.ok
    name = commit.arguments["transaction"]
    for stream in streams.values():
        its = {event for event, tried in stream.tried.items() if tried.transaction == name}
        whole = any(read.to_the_tail and read.is_whole(stream.layout) for read in stream.reads)
        if its and (not whole or any(seen.event in its for seen in stream.seen())):
            return True
    return False


def _told_once(group: Group) -> None:
    """A reader learns once that a stream was deleted, and again for each reader that had to learn
    it, too, and has ended."""
    for session in group.sessions:
        ended = [
            other
            for other in group.sessions
            if session.gone and (other.left is None or other.left.began < session.gone[-1].began)
        ]
        if len(session.gone) > 1 + len([one for one in ended if one is not session]):
            raise Violation(
                "a reader goes on after a deletion",
                f"{session.reader} of {group.name} is told again and again: {session.gone[-1]}",
            )


def _buffered_comes_again(group: Group, streams: dict[str, StreamHistory]) -> None:
    """What a reader got after its last marker is handed out again once it is gone."""
    for drain in group.drains:
        if not drain.ok or drain.ended is None:
            continue
        for session in group.sessions:
            is_asked = session.asked is not None and session.asked.began > drain.began
            drains = is_asked and session.reader == drain.arguments.get("reader")
            is_gone = session.joined.before(drain) and not drains
            for one in session.buffered() if is_gone else ():
                if not _came_again(group, streams, one):
                    raise Violation(
                        "what no checkpoint acknowledged is read again",
                        f"{session.reader} got {one.event!r} after its last marker: {one.call}; "
                        f"nobody got it again by {drain}",
                    )


def _came_again(group: Group, streams: dict[str, StreamHistory], one: Handed) -> bool:
    """Whether another reader may have got an event after this one, if it was not truncated.

    A call that ends late may have its event from before the group changed, and so has a reader that
    a change has ended: one that joined since then may have had it earlier.
    """
    return streams[one.stream].is_truncated(one.position) or any(
        other.session is not one.session
        and (other.stream, other.event) == (one.stream, one.event)
        and not (other.call.before(one.call) and _joined_before(other.session, one.session.changes))
        for other in group.handed
    )


def _joined_before(session: Session, changes: Sequence[Recorded]) -> bool:
    return all(session.joined.before(change) for change in changes)


def _in_hand_comes_again(group: Group, streams: dict[str, StreamHistory]) -> None:
    """What a reader got last before it was killed, and did not ask for another one, comes again."""
    for drain in group.drains:
        if not drain.ok or drain.ended is None:
            continue
        for session in group.sessions:
            last = session.handed[-1] if session.handed else None
            is_killed = session.left is None and session.joined.before(drain)
            if last is None or not is_killed or session.asked is not last.call:
                continue
            if not _came_again(group, streams, last):
                raise Violation(
                    "what no next call acknowledged is read again",
                    f"{session.reader} got {last.event!r} last: {last.call}; nobody got it again "
                    f"by {drain}",
                )


def _asked_for(group: Group, calls: Sequence[Recorded]) -> None:
    """Checkpoints of somebody have markers, and where checkpoints acknowledge the group's own, too;
    where transactions do, none has."""
    asked = {
        call.arguments["name"]
        for call in of(calls, "checkpoint")
        if call.arguments["group"] == group.name
    }
    for session in group.sessions:
        for name in session.markers:
            is_own = group.acknowledge == "checkpoint" and name.startswith("automatic-")
            is_asked = group.acknowledge != "transaction" and name in asked
            if not (is_own or is_asked):
                raise Violation(
                    "a reader is shown the markers that somebody asked for",
                    f"{session.reader} of {group.name} was shown {name!r}",
                )


def _in_session(group: Group) -> None:
    """While a reader is in the group, the offsets that it gets of a segment rise."""
    for session in group.sessions:
        last: dict[tuple[str, str], Handed] = {}
        for one in session.handed:
            lane = (one.stream, one.position[0])
            before = last.get(lane)
            back = before is not None and before.position[1] >= one.position[1]
            if before is not None and back and not _went_back(group, before, one):
                raise Violation(
                    "a reader reads a segment in order",
                    f"{before.position}, then {one.position} in {one.call}",
                )
            last[lane] = one


def _not_expired(group: Group) -> None:
    """A reader is handed nothing any more once its id has joined again elsewhere."""
    for session in group.sessions:
        for one in session.handed if session.rejoined is not None else ():
            if session.rejoined is not None and session.rejoined.before(one.call):
                raise Violation(
                    "only who is in a group is handed anything",
                    f"{session.rejoined}; then {one.call}",
                )


def _nothing_skipped(group: Group, streams: dict[str, StreamHistory]) -> None:
    """A group begins where it was told, and passes over nothing but what was truncated."""
    furthest: dict[tuple[str, str], int] = {}
    for one in group.handed:
        segment, offset = one.position
        lane, start = (one.stream, segment), group.start.get(one.stream)
        stream = streams.get(one.stream, StreamHistory(one.stream))
        if start is not None and stream.layout.before(one.position, start):
            raise Violation(
                "a group begins where it was told", f"{one.position} is before {start}: {one.call}"
            )
        due = furthest.get(lane, -1) + 1
        if lane not in furthest:
            due = offset if start is None else start.get(segment, 0)
        if offset > due and not stream.is_truncated((segment, offset - 1)):
            raise Violation(
                "each event is read at least once",
                f"group {group.name} passed over {due}..{offset - 1} of {lane}: {one.call}",
            )
        furthest[lane] = max(offset, furthest.get(lane, offset))


def _nothing_behind_its_end(group: Group, streams: dict[str, StreamHistory]) -> None:
    """Nothing reaches a reader that lies at the group's end or behind it."""
    for one in group.handed:
        end = group.ends.get(one.stream)
        if end is not None and streams[one.stream].layout.behind(one.position, end):
            raise Violation(
                "a group ends where it was told", f"{one.position} is not before {end}: {one.call}"
            )


def _by_key(group: Group, streams: dict[str, StreamHistory]) -> None:
    """The first hand-outs of the events of a key come in the order that the stream has."""
    last: dict[tuple[str, str], Handed] = {}
    known: set[tuple[str, str]] = set()
    orders = {name: stream.order() for name, stream in streams.items()}
    for one in group.handed:
        stream, order = streams[one.stream], orders[one.stream]
        tried = stream.tried.get(one.event)
        if tried is None or tried.key is None or (one.stream, one.event) in known:
            continue
        known.add((one.stream, one.event))
        lane = (one.stream, tried.key)
        before = last.get(lane)
        if before is None or not _follows(stream, order, before, one):
            last[lane] = one
        elif before.call.before(one.call) and not _was_fetched(stream, one, before):
            raise Violation(
                "events of a key reach the readers in order",
                f"key {tried.key!r}: {before.event!r} before {one.event!r} in {one.call}",
            )


def _acknowledged_in_order(group: Group, streams: dict[str, StreamHistory]) -> None:
    """Where checkpoints acknowledge, a reader gets an event of a key only after another one, which
    is still in the group, has answered a marker that followed those that it got before it.

    Until then it has perhaps stored nothing, and the later event would be stored first.
    """
    orders = {name: stream.order() for name, stream in streams.items()}
    last: dict[tuple[str, str], dict[int, tuple[int, Handed]]] = {}
    """By key, for each session the event that it got last, and its number there."""
    numbers = dict.fromkeys(map(id, group.sessions), 0)
    for one in group.handed:
        stream, number = streams[one.stream], numbers[id(one.session)]
        numbers[id(one.session)] += 1
        tried = stream.tried.get(one.event)
        if tried is None or tried.key is None:
            continue
        others = last.setdefault((one.stream, tried.key), {})
        others[id(one.session)] = number, one
        for at, before in others.values():
            is_late = not before.call.before(one.call) or one.session.may_be_out
            if before.session is one.session or is_late:
                continue
            if not _follows(stream, orders[one.stream], one, before):
                continue
            if stream.is_truncated(before.position) or _has_answered(before.session, at, one):
                continue
            if _stays(before.session, one):
                raise Violation(
                    "where checkpoints acknowledge, events of a key are acknowledged in order",
                    f"{before.session.reader} has answered no marker since {before.event!r}: "
                    f"{before.call}; then {one.event!r} of key {tried.key!r}: {one.call}",
                )


def _has_answered(session: Session, number: int, later: Handed) -> bool:
    """Whether a reader may have answered a marker after its event of a number, or have left, before
    another one got an event."""
    until = later.call.ended
    assert until is not None
    if session.ended_well and session.left is not None and session.left.began < until:
        return True
    asked = (line for name, line in session.asked_on.items() if session.markers[name] > number)
    return any(line < until for line in asked)


def _stays(session: Session, later: Handed) -> bool:
    """Whether a reader is in its group when another one gets an event: it leaves in order, or reads
    on, later than that."""
    if session.ended_well:
        return True
    shown = [one.call for one in session.handed]
    return not session.may_be_out and any(later.call.before(call) for call in shown)


def _follows(stream: StreamHistory, order: dict[str, int], one: Handed, other: Handed) -> bool:
    """Whether an event comes after another one of its key, by a read or by their places."""
    if one.event in order and other.event in order:
        return order[one.event] > order[other.event]
    (segment, offset), (above, before) = one.position, other.position
    return offset > before if segment == above else above in stream.layout.ancestors(segment)


def _was_fetched(stream: StreamHistory, one: Handed, later: Handed) -> bool:
    """A reader may hand out what it fetched before a truncation gave the successors to another."""
    return one.session is not later.session and stream.is_truncated(one.position)


def _went_back(group: Group, first: Handed, second: Handed) -> bool:
    """A reader whose transaction was not committed is handed the same events again."""
    return group.acknowledge == "transaction" and not _is_committed(group, first, second)


def _is_committed(group: Group, first: Handed, second: Handed) -> bool:
    return any(
        call.ok
        and call.before(second.call)
        and not call.before(first.call)  # that was before a reset
        and [first.stream, first.event] in call.arguments["reads"]
        for call in group.commits
    )


def _again(group: Group, streams: dict[str, StreamHistory]) -> None:
    """An event comes again only if its first reader did not acknowledge it."""
    firsts: dict[tuple[str, str], list[Handed]] = {}
    for one in group.handed:
        for first in firsts.setdefault((one.stream, one.event), []):
            why = _acknowledged(group, first, one, streams)
            if why:
                raise Violation(
                    "an acknowledged event is not read again",
                    f"{one.event!r} of group {group.name} {why}; again in {one.call}",
                )
        firsts[one.stream, one.event].append(one)


def _acknowledged(
    group: Group, first: Handed, second: Handed, streams: dict[str, StreamHistory]
) -> str:
    """Return why a group must not hand an event out for a second time; empty if it may."""
    if group.acknowledge == "transaction":
        committed = _is_committed(group, first, second)
        return "was in a committed transaction" if committed else ""
    session, left = first.session, first.session.left
    if session.ended_well and left is not None and left.before(second.call):
        return f"was acknowledged by {left}"
    is_later = first.call.before(second.call) and not second.session.may_be_out
    is_its_own = group.acknowledge == "next" and session.ended_well
    if is_its_own and is_later and second.session is not session:
        return f"was got by {session.reader}, which was in the group until {left}"
    if second.session is session:
        return f"was got by the same reader in {first.call}"
    if left is None and group.acknowledge == "next" and _reads_on(session, second):
        return f"belongs to {session.reader}, which reads on"
    at = session.handed.index(first)
    for checkpoint in group.checkpoints:
        name = checkpoint.arguments["name"]
        completed = checkpoint.ok and checkpoint.before(second.session.joined)
        # Of who was lost before its answer came the checkpoint has less than was before its marker.
        cut = checkpoint.value.get(first.stream, {}) if completed else {}
        is_inside = streams[first.stream].layout.before(first.position, cut)
        if is_inside and session.markers.get(name, -1) > at:
            return f"was before the marker of {name!r}, which completed"
    return ""


def _reads_on(session: Session, second: Handed) -> bool:
    """Whether the first reader was handed something after the event came again."""
    return any(second.call.before(one.call) for one in session.handed)
