"""The objects of a history, each call with what it does to the object's state.

A call of unknown outcome stays open to the end. A refusal by a condition is an answer, too: the
condition must have been false at some moment of the call. Other refused calls say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from tests.sim.checkers.layouts import ENDLESS
from tests.sim.checkers.search import Object, Operation, State, Step
from tests.sim.checkers.streams import StreamHistory, placed, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import BadHistory, Recorded, encode, of


def objects_of(calls: Sequence[Recorded]) -> Iterator[Object]:
    """Yield the objects of a history whose calls must have one order."""
    streams = streams_of(calls)
    yield from _tables(calls)
    yield from _fences(calls)
    yield from _states(calls)
    for stream in streams.values():
        yield from _segments(calls, stream)
        yield _lists(stream)
    yield from _joint(calls, streams)


def _operation(call: Recorded, step: Step) -> Operation:
    return Operation(call.began, call.ended, step, str(call))


# ----------------------------------------------------------- key-value tables: fresh gets and scans


def _tables(calls: Sequence[Recorded]) -> Iterator[Object]:
    """The state is each key's value; a value is written once to a key, so it has one version."""
    for table in sorted({c.arguments["table"] for c in of(calls, "update")}):
        mine = [c for c in of(calls, "update", "get", "scan") if c.arguments["table"] == table]
        versions = _versions(table, mine)
        operations = []
        for call in mine:
            step = _update(call, versions) if call.operation == "update" else _shown(call)
            if step is not None:
                operations.append(_operation(call, step))
        yield Object(f"table {table}", (), operations)


def _versions(table: str, calls: Sequence[Recorded]) -> dict[tuple[str, str], str]:
    """Return the version of each value of each key, where the history shows it."""
    written: set[tuple[str, str]] = set()
    versions: dict[tuple[str, str], str] = {}
    for call in calls:
        found: list[tuple[str, str | None, Any]] = []
        if call.operation == "update" and call.may_have_happened:
            for number, change in enumerate(call.arguments["changes"]):
                key, value = change["key"], change["value"]
                if value is not None and (key, value) in written:
                    raise BadHistory(f"{value!r} was written twice to {key!r} of table {table}")
                written.add((key, value))
                found.append((key, value, call.value[number] if call.ok else None))
        elif call.operation == "get" and call.ok:
            for key, entry in zip(call.arguments["keys"], call.value, strict=True):
                if entry is not None:
                    found.append((key, entry[0], entry[1]))
        elif call.operation == "scan" and call.ok:
            found += [(key, entry[0], entry[1]) for key, entry in call.value.items()]
        for key, value, version in found:
            if value is None or version is None:
                continue
            if versions.setdefault((key, value), encode(version)) != encode(version):
                raise Violation("a version is of one value", f"{value!r} of {key!r}: {call}")
    return versions


def _update(call: Recorded, versions: Mapping[tuple[str, str], str]) -> Step | None:
    changes = call.arguments["changes"]
    is_refusal = call.outcome == "fail"
    if is_refusal and call.error not in ("BadKeyVersion", "NoSuchKey"):
        return None

    def step(state: State) -> State | None:
        values: dict[str, str] = dict(state)  # type: ignore[call-overload]
        met = {_holds(values, change, versions) for change in changes}
        if is_refusal:
            return None if met == {True} else state
        if False in met:
            return None if call.ok else state
        for change in changes:
            if change["value"] is None:
                values.pop(change["key"], None)
            else:
                values[change["key"]] = change["value"]
        return tuple(sorted(values.items()))

    return step


def _holds(
    values: Mapping[str, str],
    change: Mapping[str, Any],
    versions: Mapping[tuple[str, str], str],
) -> bool | None:
    """Return whether a condition is met; None where the history does not show it.

    Nobody saw the version of a value whose update was unknown, except perhaps in a refusal.
    """
    key, expected = change["key"], change.get("expected")
    value = values.get(key)
    if expected is None:
        return True
    if expected == "absent":
        return value is None
    if value is not None and (key, value) not in versions:
        known = {version for (other, _), version in versions.items() if other == key}
        return False if encode(expected) in known else None
    return value is not None and versions[key, value] == encode(expected)


def _shown(call: Recorded) -> Step | None:
    """A fresh get shows its keys, and a scan all that there are."""
    if not call.ok:
        return None
    if call.operation == "scan":
        whole = tuple(sorted((key, entry[0]) for key, entry in call.value.items()))
        return lambda state: state if state == whole else None
    if not call.arguments.get("fresh"):
        return None
    found = {
        key: None if entry is None else entry[0]
        for key, entry in zip(call.arguments["keys"], call.value, strict=True)
    }

    def step(state: State) -> State | None:
        values: dict[str, str] = dict(state)  # type: ignore[call-overload]
        return state if all(values.get(key) == value for key, value in found.items()) else None

    return step


# ------------------------------------------------------------------------------ fences and states


def _fences(calls: Sequence[Recorded]) -> Iterator[Object]:
    """The state is the newest token, an empty one until somebody sets one."""
    operations: dict[str, list[Operation]] = {}
    for call in of(calls, "fence", "fencing_token", "write", "write_if"):
        step = _fence(call)
        if step is not None:
            operations.setdefault(call.arguments["stream"], []).append(_operation(call, step))
    for stream, mine in sorted(operations.items()):
        yield Object(f"fence {stream}", "", mine)


def _fence(call: Recorded) -> Step | None:
    token, expected = call.arguments.get("token"), call.arguments.get("expected")
    if call.operation == "fencing_token":
        return (lambda state: state if state == call.value else None) if call.ok else None
    if call.operation != "fence":
        if token is None:
            return None
        if call.ok:
            return lambda state: state if state == token else None
        if call.error == "FencingTokenMismatch":
            told = None if call.value is None else call.value["token"]
            return lambda state: None if state == token or told not in (None, state) else state
        return None
    if call.outcome == "fail":
        if call.error not in ("ConditionFailed", "FencingTokenMismatch") or expected is None:
            return None
        return lambda state: None if state == expected else state
    if call.ok:
        return lambda state: token if expected in (None, state) else None
    return lambda state: token if expected in (None, state) else state


def _states(calls: Sequence[Recorded]) -> Iterator[Object]:
    """The state is the list of updates.

    An update of unknown outcome that no answer shows need not have happened; another one came where
    the longest answer has it.
    """
    for name in sorted({c.arguments["state"] for c in of(calls, "update_state")}):
        every = of(calls, "update_state", "fetch_updates")
        mine = [call for call in every if call.arguments["state"] == name]
        longest = max((tuple(call.value) for call in mine if call.ok), key=len, default=())
        steps = [(call, _state(call, longest)) for call in mine]
        operations = [_operation(call, step) for call, step in steps if step is not None]
        yield Object(f"state {name}", (), operations)


def _state(call: Recorded, longest: tuple[str, ...]) -> Step | None:
    update = call.arguments.get("update")
    if call.ok:
        known = tuple(call.value)
        after = known if call.operation == "fetch_updates" else (*known, update)
    elif call.may_have_happened and update in longest:
        known = longest[: longest.index(update)]
        after = (*known, update)
    else:
        return None
    return lambda state: after if state == known else None


# ------------------------------------------------------------------- segments: conditional appends


def _segments(calls: Sequence[Recorded], stream: StreamHistory) -> Iterator[Object]:
    """The state is the segment's next offset, and how many unseen events came.

    An event that may be there and that nobody saw may be in any segment: it may come at any time.
    All of them do the same, so they come in the order of their calls, and where no seen event is:
    of N there are N cases to search and not 2 to the power of N.
    """
    conditional = [c for c in of(calls, "write_if") if c.arguments["stream"] == stream.name]
    if not conditional:
        return
    segments = {place[0] for place in stream.places().values()}
    for call in conditional:
        expected = call.arguments["expected"]
        segments |= {placed(expected["position"])[0]} if "position" in expected else set()
        segments |= set(expected.get("cut", ()))
    for segment in sorted(segments):
        operations = [*_appends(stream, segment)]
        keys = _keys_of(calls, stream, segment)
        operations += [o for c in conditional if (o := _refusal(c, segment, keys)) is not None]
        operations += [o for r in stream.reads if (o := _tail(r.call, segment)) is not None]
        yield Object(f"segment {stream.name}/{segment}", (0, 0), operations)


def _appends(stream: StreamHistory, segment: str) -> Iterator[Operation]:
    places = stream.places()
    groups: dict[tuple[int, bool], list[tuple[Recorded, int | None]]] = {}
    for tried in stream.tried.values():
        calls = [call for call in tried.calls if call.may_have_happened]
        if not calls:
            continue
        place = places.get(tried.event)
        if place is not None and place[0] != segment:
            continue
        call = calls[0]
        if len(calls) > 1:
            began, ends = min(c.began for c in calls), [c.ended for c in calls if c.ok]
            call = Recorded(
                *(call.number, call.process, "write", call.arguments, began),
                *((max(e for e in ends if e) if ends else None), "ok" if ends else "info"),
            )
        offset = None if place is None else place[1]
        groups.setdefault((tried.batch, place is None), []).append((call, offset))
    unseen = [call for (_, is_unseen), of_one in groups.items() if is_unseen for call, _ in of_one]
    taken = {place[1] for place in places.values() if place[0] == segment}
    for number, call in enumerate(sorted(unseen, key=lambda one: one.began)):
        yield Operation(call.began, None, _unseen(number, taken), str(call))
    for (_, is_unseen), events in groups.items():
        if is_unseen:
            continue
        call = events[0][0]
        offsets = sorted(offset for _, offset in events if offset is not None)
        if any(second != first + 1 for first, second in pairwise(offsets)):
            raise Violation(
                "all or none", f"{offsets} of segment {segment} are not together: {call}"
            )
        is_there = call.arguments.get("wait", True)  # else it was decided, and comes later
        ended = call.ended if is_there else None
        yield Operation(call.began, ended, _append(call, segment, offsets), str(call))


def _unseen(number: int, taken: Set[int]) -> Step:
    def step(state: Any) -> State | None:
        offset, came = state
        return (offset + 1, number + 1) if came == number and offset not in taken else None

    return step


def _append(call: Recorded, segment: str, offsets: Sequence[int]) -> Step:
    first, after = offsets[0], offsets[-1] + 1
    expected = call.arguments.get("expected", {}) if call.operation == "write_if" else {}
    wanted = expected.get("cut", {}).get(segment, first)
    if "position" in expected and placed(expected["position"])[0] == segment:
        wanted = placed(expected["position"])[1]
    return lambda state: (after, state[1]) if state[0] == first == wanted else None  # type: ignore[index]


def _is(call: Recorded, offset: int) -> Operation:
    return _operation(call, lambda state: state if state[0] == offset else None)  # type: ignore[index]


def _keys_of(calls: Sequence[Recorded], stream: StreamHistory, segment: str) -> set[str | None]:
    """Return the keys that are in a segment all the time, as far as the history shows it."""
    for call in of(calls, "scale", "autoscale", "maintain"):
        if call.arguments.get("stream", stream.name) == stream.name and call.may_have_happened:
            return set()
    places = stream.places()
    return {t.key for t in stream.tried.values() if places.get(t.event, ("",))[0] == segment}


def _refusal(call: Recorded, segment: str, keys: Set[str | None]) -> Operation | None:
    if call.error != "ConditionFailed":
        return None
    if call.value is None:
        expected = call.arguments["expected"].get("position")
        named, offset = placed(expected) if expected is not None else ("", 0)
        if named != segment or not {key for key, _ in call.arguments["events"]} <= keys - {None}:
            return None
        return _operation(call, lambda state: state if state[0] != offset else None)  # type: ignore[index]
    if "position" in call.value and placed(call.value["position"])[0] == segment:
        actual = placed(call.value["position"])[1]
        wanted = call.arguments["expected"].get("position")
        was = placed(wanted) if wanted is not None else None
        if was == (segment, actual):
            return _operation(call, lambda _: None)
        return _is(call, actual)
    end = call.value.get("cut", {}).get(segment, ENDLESS)
    return None if end == ENDLESS else _is(call, end)


def _tail(call: Recorded, segment: str) -> Operation | None:
    end = call.value["to"].get(segment, ENDLESS)
    return None if call.arguments.get("to") is not None or end == ENDLESS else _is(call, end)


# ----------------------------------------------- streams: transactions of several keys, with reads


def _lists(stream: StreamHistory) -> Object:
    """Each key of a stream is a list; a call appends to several at once, and a read shows all.

    Every read of a key is a beginning of the longest one, or there is no order; so the state is
    the length of each list. An event that no read shows comes after those that some read shows.
    """
    whole = [r for r in stream.reads if r.to_the_tail and r.is_whole(stream.layout)]
    known: dict[str, list[str]] = {}
    lengths: dict[int, dict[str, int]] = {}
    for read in whole:
        lists: dict[str, list[str]] = {}
        for seen in read.seen:
            lists.setdefault(_lane(seen.key, seen.position[0]), []).append(seen.event)
        for lane, events in lists.items():
            shorter, longer = sorted((known.get(lane, []), events), key=len)
            if longer[: len(shorter)] != shorter:
                raise Violation("events of a key have one order", f"{shorter} in {read.call}")
            known[lane] = longer
        lengths[read.call.number] = {lane: len(events) for lane, events in lists.items()}
    place = {event: (lane, n) for lane, events in known.items() for n, event in enumerate(events)}
    operations = []
    units: dict[int, list[tuple[str, int]]] = {}
    made: dict[int, Recorded] = {}
    for tried in stream.tried.values():
        calls_of_it = [call for call in tried.calls if call.may_have_happened]
        if not calls_of_it or (tried.event not in place and tried.key is None):
            continue
        first = min(calls_of_it, key=lambda call: call.began)
        acknowledged = tried.acknowledged()
        made[tried.batch] = Recorded(
            *(first.number, first.process, first.operation, first.arguments, first.began),
            *(acknowledged, "ok" if acknowledged is not None else "info"),
        )
        lane, number = place.get(tried.event, (_lane(tried.key, ""), -1))
        units.setdefault(tried.batch, []).append((lane, number))
    for batch, appended in units.items():
        operations.append(_operation(made[batch], _extend(appended, known)))
    for read in whole:
        operations.append(_operation(read.call, _shows(lengths[read.call.number])))
    return Object(f"stream {stream.name}", (), operations)


def _lane(key: str | None, segment: str) -> str:
    """Events without a key have an order in their segment alone."""
    return f"segment {segment}" if key is None else f"key {key}"


def _extend(appended: Sequence[tuple[str, int]], known: Mapping[str, Sequence[str]]) -> Step:
    def step(state: State) -> State | None:
        lengths: dict[str, int] = dict(state)  # type: ignore[call-overload]
        for lane, number in sorted(appended, key=lambda one: (one[1] < 0, one[1])):
            length = lengths.get(lane, 0)
            due = length if number >= 0 else max(length, len(known.get(lane, ())))
            if length != (number if number >= 0 else due):
                return None
            lengths[lane] = length + 1
        return tuple(sorted(lengths.items()))

    return step


def _shows(lengths: Mapping[str, int]) -> Step:
    shown = tuple(sorted(lengths.items()))
    return lambda state: state if state == shown else None


# ------------------------------------------------------------------------------ joint transactions


def _joint(calls: Sequence[Recorded], streams: Mapping[str, StreamHistory]) -> Iterator[Object]:
    """A joint transaction is decided, then applied in each of its streams, in the decisions' order.

    The state is the order of the decisions, and for each stream how many of its own it shows.
    """
    parts = {
        call.arguments["transaction"]: tuple(sorted(call.arguments["streams"]))
        for call in of(calls, "stage")
        if len(call.arguments["streams"]) > 1
    }
    shown: dict[int, tuple[str, frozenset[str]]] = {}
    for name, stream in streams.items():
        for read in stream.reads:
            if read.to_the_tail and read.is_whole(stream.layout):
                found = (stream.tried.get(seen.event) for seen in read.seen)
                those = frozenset(t.transaction for t in found if t and t.transaction in parts)
                shown[read.call.number] = (name, those)  # type: ignore[assignment]
    earlier = _earlier(list(shown.values()))
    for stream in streams.values():
        _by_offsets(stream, parts, earlier)
    seen = set[str | None]()
    for stream in streams.values():
        places = stream.places()
        seen |= {t.transaction for t in stream.tried.values() if t.event in places}
    """Those of which somebody saw a part, if only by a group or a part of a stream."""
    operations = []
    done: set[str] = set()
    for call in of(calls, "commit"):
        transaction = call.arguments["transaction"]
        if transaction not in parts or not call.may_have_happened or transaction in done:
            continue
        done.add(transaction)
        if not call.ok and transaction not in seen:
            continue  # it never happened, or after everything else
        visible = call.ended if call.arguments.get("wait", True) else None
        operations.append(_operation(call, _decide(transaction, earlier.get(transaction, set()))))
        for name in parts[transaction]:
            step = _apply(transaction, name, parts)
            operations.append(Operation(call.began, visible, step, f"{name}: {call}"))
    if not operations:
        return
    for call in of(calls, "read"):
        if call.number in shown:
            name, those = shown[call.number]
            operations.append(_operation(call, _reads(name, those, parts)))
    yield Object("joint transactions", ((), ()), operations)


def _earlier(shown: Sequence[tuple[str, frozenset[str]]]) -> dict[str, set[str]]:
    """Return those that must be decided before a transaction, as one stream shows it later."""
    earlier: dict[str, set[str]] = {}
    for name, some in shown:
        for other, more in shown:
            if name == other and some < more:
                for transaction in more - some:
                    earlier.setdefault(transaction, set()).update(some)
    return earlier


def _by_offsets(
    stream: StreamHistory, parts: Mapping[str, object], earlier: dict[str, set[str]]
) -> None:
    """Add those that lie before a transaction in a segment."""
    places = stream.places()
    rows = sorted(
        (*places[tried.event], tried.transaction)
        for tried in stream.tried.values()
        if tried.event in places and tried.transaction in parts
    )
    for (segment, _, before), (other, _, transaction) in pairwise(rows):
        if segment == other and before != transaction:
            earlier.setdefault(str(transaction), set()).add(str(before))


def _decide(transaction: str, earlier: set[str]) -> Step:
    def step(state: Any) -> State | None:
        return ((*state[0], transaction), state[1]) if earlier <= set(state[0]) else None

    return step


def _touching(state: Any, name: str, parts: Mapping[str, Sequence[str]]) -> list[str]:
    return [transaction for transaction in state[0] if name in parts[transaction]]


def _apply(transaction: str, name: str, parts: Mapping[str, Sequence[str]]) -> Step:
    def step(state: Any) -> State | None:
        applied = dict(state[1])
        number = applied.get(name, 0)
        if _touching(state, name, parts)[number : number + 1] != [transaction]:
            return None
        applied[name] = number + 1
        return state[0], tuple(sorted(applied.items()))

    return step


def _reads(name: str, shown: frozenset[str], parts: Mapping[str, Sequence[str]]) -> Step:
    def step(state: Any) -> State | None:
        number = dict(state[1]).get(name, 0)
        return state if set(_touching(state, name, parts)[:number]) == shown else None

    return step
