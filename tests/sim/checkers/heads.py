"""The head moves for a reason and never back; retention takes nothing that is not released."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.readers import groups_of
from tests.sim.checkers.resets import resets_of
from tests.sim.checkers.streams import Cut, Seen, StreamHistory, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a later head is behind an earlier one, or beyond what is released.

    A subscriber holds from its ``subscribe`` on, until somebody begins to unsubscribe it; another
    ``subscribe`` until then changes nothing. A round of ``retain`` may go up to the furthest cut
    that it may have released by the round's end.
    """
    for call in of(calls, "retain"):
        if call.error == "HeldBySubscriber":
            raise Violation(
                "a round of retention decides again where somebody has subscribed", f"{call}"
            )
    for call in of(calls, "truncate"):
        if call.error == "HeldBySubscriber" and not _may_be_held(calls, call):
            raise Violation("a truncation is refused for a subscriber that holds", f"{call}")
    for name, stream in streams_of(calls).items():
        _never_back(stream)
        _releases(calls, stream)
        for call in of(calls, "retain"):
            if call.ok and call.arguments["stream"] == name:
                _held(calls, stream, call)
                _held_by_groups(calls, stream, call)
        _for_a_reason(calls, stream)
        _held_since_reset(calls, stream)
        _takes(stream)


def _never_back(stream: StreamHistory) -> None:
    for earlier, head in stream.heads:
        for later, other in stream.heads:
            if earlier.before(later) and (
                lost := stream.layout.beyond(head, [other], stream.places().values())
            ):
                raise Violation(
                    "the head never moves back",
                    f"{lost} was before the head by {earlier}, and is not by {later}",
                )


def _for_a_reason(calls: Sequence[Recorded], stream: StreamHistory) -> None:
    """An event goes only before a cut that somebody asked to truncate at, that a subscriber has
    released, or up to which a group that holds the stream has read; or by a policy that asks
    nobody."""
    mine = [c for c in calls if c.may_have_happened]
    policies = [c.began for c in mine if _asks_nobody(c, stream.name)]
    cuts = [(c.began, cut) for c in mine if (cut := _may_go(c, stream.name)) is not None]
    groups = _holding(mine, stream)
    got = [seen for seen in stream.handed if seen.call.arguments["group"] in groups]
    for call, head in stream.heads:
        assert call.ended is not None
        if policies and policies[0] < call.ended:
            continue
        gone = [cut for began, cut in cuts if began < call.ended]
        gone += _read_by(groups, [seen for seen in got if seen.call.began < call.ended])
        lost = stream.layout.beyond(head, gone, stream.places().values())
        if lost is not None:
            raise Violation(
                "the head moves only for a reason",
                f"nobody asked to truncate {lost}, or has released it: {call}",
            )


def _may_go(call: Recorded, name: str) -> Cut | None:
    """Return what lies before which may go as soon as a call has begun."""
    given = call.arguments
    if call.operation == "reset":
        return given["to"].get(name)
    if call.operation == "create_group":
        return given["streams"].get(name)
    is_cut = call.operation in ("truncate", "subscribe", "release") and given["stream"] == name
    return given.get("cut") if is_cut else None


def _read_by(groups: set[str], got: Sequence[Seen]) -> list[Cut]:
    """Return for each group a cut behind all that its readers got."""
    cuts: dict[str, dict[str, int]] = {group: {} for group in groups}
    for seen in got:
        cut, (segment, offset) = cuts[seen.call.arguments["group"]], seen.position
        cut[segment] = max(offset + 1, cut.get(segment, 0))
    return list(cuts.values())


def _asks_nobody(call: Recorded, name: str) -> bool:
    """Return whether a call may make a policy delete what somebody needs."""
    given = call.arguments
    if call.operation == "update_stream":
        return given["stream"] == name and "settings" not in given
    if call.operation == "update_table":
        return given["table"] == name
    is_round = call.operation == "retain" and given["stream"] == name
    return is_round and given.get("policy", "consumption") != "consumption"


def _takes(stream: StreamHistory) -> None:
    """A truncation that is acknowledged has taken all that lies before its cut."""
    for truncation in stream.truncations:
        cut = truncation.arguments["cut"]
        for call, head in stream.heads:
            if call is not truncation and not truncation.before(call):
                continue
            left = stream.layout.beyond(cut, [head], stream.places().values())
            if left is not None:
                raise Violation(
                    "a truncation takes what lies before its cut",
                    f"{left} is there by {call}, after {truncation}",
                )


def _releases(calls: Sequence[Recorded], stream: StreamHistory) -> None:
    """What a subscriber has released it does not need again, unless it subscribed anew."""
    releases = [c for c in of(calls, "release") if c.arguments["stream"] == stream.name and c.ok]
    for later in releases:
        for earlier in releases:
            who, cut = later.arguments["subscriber"], later.arguments["cut"]
            anew = any(
                call.arguments["stream"] == stream.name
                and call.arguments["subscriber"] == who
                and call.began < (later.ended or 0)
                for call in of(calls, "unsubscribe")
            )
            if earlier.arguments["subscriber"] != who or anew or not earlier.before(later):
                continue
            lost = stream.layout.beyond(earlier.arguments["cut"], [cut], stream.places().values())
            if lost is not None:
                raise Violation(
                    "a subscriber's position does not go back", f"{lost}: {earlier}; then {later}"
                )


def _held(calls: Sequence[Recorded], stream: StreamHistory, retain: Recorded) -> None:
    if retain.value is None or retain.arguments.get("policy", "consumption") != "consumption":
        return
    mine = [
        call
        for call in of(calls, "subscribe", "release", "unsubscribe")
        if call.arguments["stream"] == stream.name
    ]
    for subscriber in sorted({call.arguments["subscriber"] for call in mine}):
        its = [call for call in mine if call.arguments["subscriber"] == subscriber]
        if not any(c.operation == "subscribe" and c.ok and c.before(retain) for c in its):
            continue
        by_then = [c for c in its if retain.ended is not None and c.began < retain.ended]
        if any(c.operation == "unsubscribe" and c.may_have_happened for c in by_then):
            continue
        subscribed = [c for c in of(its, "subscribe") if c.ok]
        released = [
            c.arguments["cut"]
            for c in by_then
            if c.may_have_happened
            and c.arguments.get("cut") is not None
            and not (c.operation == "subscribe" and any(one.before(c) for one in subscribed))
        ]
        earlier = _head_before(calls, stream, its, retain)
        gone = [*released, *earlier]
        lost = stream.layout.beyond(retain.value, gone, stream.places().values())
        if lost is not None:
            raise Violation(
                "retention takes nothing that a subscriber holds",
                f"{subscriber!r} has released {released}; {retain} took {lost}",
            )


def _may_be_held(calls: Sequence[Recorded], truncation: Recorded) -> bool:
    """Whether a subscriber, or a group, may hold what a truncation would take."""
    name, cut = truncation.arguments["stream"], truncation.arguments["cut"]
    if any(name in c.arguments["streams"] for c in of(calls, "create_group", "join")):
        return True
    held: dict[str, list[Recorded]] = {}
    for call in of(calls, "subscribe", "release", "unsubscribe"):
        is_by_then = call.began < (truncation.ended or 0) and call.may_have_happened
        if is_by_then and call.arguments["stream"] == name:
            held.setdefault(call.arguments["subscriber"], []).append(call)
    return any(not _has_let_go(its, cut, truncation) for its in held.values())


def _has_let_go(its: Sequence[Recorded], cut: Cut, truncation: Recorded) -> bool:
    """Whether a subscriber has unsubscribed, or released all before a cut, and did not subscribe
    since then."""
    for last in of(its, "release", "unsubscribe"):
        released = last.arguments.get("cut", {})
        is_free = last.operation == "unsubscribe" or all(
            released.get(segment, -1) >= end for segment, end in cut.items()
        )
        others = (c for c in of(its, "subscribe", "unsubscribe") if c is not last)
        if last.ok and last.before(truncation) and is_free and all(c.before(last) for c in others):
            return True
    return not of(its, "subscribe")


def _held_by_groups(calls: Sequence[Recorded], stream: StreamHistory, retain: Recorded) -> None:
    """What a round takes, each group that holds the stream has handed to a reader by then, or was
    reset behind."""
    if retain.value is None or retain.ended is None:
        return
    holding = {
        join.arguments["group"]: join
        for join in reversed(of(calls, "join"))
        if join.ok
        and join.before(retain)
        and join.arguments.get("retention") == "automatic"
        and stream.name in join.arguments["streams"]
    }
    for group, join in holding.items():
        gone = [head for call, head in stream.heads if call.began < (join.ended or 0)]
        gone += [
            call.arguments["streams"].get(stream.name, {})
            for call in of(calls, "create_group")
            if call.arguments["group"] == group and call.may_have_happened
        ]
        gone += [
            call.arguments["cut"]
            for call in of(calls, "truncate")
            if call.arguments["stream"] == stream.name and call.may_have_happened
        ]
        gone += [
            one.call.arguments["to"].get(stream.name, {})
            for one in resets_of(calls, group)
            if one.call.began < retain.ended
        ]
        handed = {
            (call.value["stream"], call.value["event"])
            for call in of(calls, "next")
            if call.ok
            and call.value
            and "event" in call.value
            and call.arguments["group"] == group
            and call.began < retain.ended
        }
        handed -= _buffered(calls, group, retain.ended)
        for event, place in stream.places().items():
            taken = stream.layout.before(place, retain.value)
            is_known = any(stream.layout.before(place, cut) for cut in gone)
            if taken and not is_known and (stream.name, event) not in handed:
                raise Violation(
                    "retention takes nothing that a group holds",
                    f"{event!r} at {place} reached no reader of {group}, or is not acknowledged: "
                    f"{retain}",
                )


def _held_since_reset(calls: Sequence[Recorded], stream: StreamHistory) -> None:
    """What a group that holds the stream is to read again after its reset stays until it has: what
    somebody decided before the reset, and carries out after it, takes nothing.

    It counts what was there by a head that somebody saw after the reset. A later reset may pass it.
    """
    mine = [c for c in calls if c.may_have_happened]
    policies = [c for c in mine if _asks_nobody(c, stream.name)]
    truncations = [c for c in of(mine, "truncate") if c.arguments["stream"] == stream.name]
    for group in sorted(_holding(mine, stream)):
        got = [seen for seen in stream.handed if seen.call.arguments["group"] == group]
        resets = resets_of(calls, group)
        for reset in resets:
            to = reset.call.arguments["to"].get(stream.name)
            if not reset.call.ok or to is None:
                continue
            passing = [one.call for one in resets if one is not reset and not one.is_before(reset)]
            heads = [(call, head) for call, head in stream.heads if reset.call.before(call)]
            for call, head in heads:
                line = call.ended or 0
                if any(policy.began < line for policy in policies):
                    continue
                cuts = [c.arguments["cut"] for c in truncations if c.began < line]
                cuts += [c.arguments["to"].get(stream.name, {}) for c in passing if c.began < line]
                since = [s for s in got if (s.call.ended or 0) > reset.since]
                again = {s.event for s in since if s.call.began < line}
                for event, place in stream.places().items():
                    taken = stream.layout.before(place, head) and event not in again
                    if not taken or any(stream.layout.before(place, c) for c in (to, *cuts)):
                        continue
                    if any(not stream.layout.before(place, seen) for _, seen in heads):
                        raise Violation(
                            "a stream keeps what a group reads again after its reset",
                            f"{event!r} at {place} reached no reader since {reset.call}: {call}",
                        )


def _holding(calls: Sequence[Recorded], stream: StreamHistory) -> set[str]:
    """Return the groups that hold a stream, once they have readers."""
    return {
        join.arguments["group"]
        for join in of(calls, "join")
        if join.arguments.get("retention") == "automatic"
        and stream.name in join.arguments["streams"]
    }


def _buffered(calls: Sequence[Recorded], name: str, line: int) -> set[tuple[str, str]]:
    """Return what readers had got by a line and no checkpoint can have acknowledged."""
    groups = [g for g in groups_of(calls) if g.name == name and g.acknowledge == "checkpoint"]
    kept: set[tuple[str, str]] = set()
    buffered: set[tuple[str, str]] = set()
    for session in (session for group in groups for session in group.sessions):
        waiting = [one for one in session.buffered(line) if one.call.began < line]
        buffered |= {(one.stream, one.event) for one in waiting}
        kept |= {(one.stream, one.event) for one in session.handed if one not in waiting}
    return buffered - kept


def _head_before(
    calls: Sequence[Recorded], stream: StreamHistory, its: Sequence[Recorded], retain: Recorded
) -> list[Cut]:
    """Return heads that somebody else may have made: what was gone cannot be held."""
    assert retain.ended is not None
    return [
        call.value if call.ok and call.value is not None else call.arguments.get("cut") or {}
        for call in of(calls, "truncate", "retain")
        if call is not retain
        and call.arguments["stream"] == stream.name
        and call.may_have_happened
        and call.began < retain.ended
        and (
            call.operation == "truncate"
            or call.arguments.get("policy", "consumption") != "consumption"
            or any(call.before(s) for s in its)
        )
    ]
