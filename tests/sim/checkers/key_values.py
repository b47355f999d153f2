"""Versions of a key-value table: each is of one change, and nobody's knowledge goes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


@dataclass(frozen=True)
class Entry:
    """A key as some call had it: value and version, which are None where there is no entry."""

    key: str
    value: str | None
    version: tuple[int, int] | None


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation for a version of nothing, one that goes back, or a part of an update."""
    for table in sorted({c.arguments["table"] for c in of(calls, "update", "get", "scan")}):
        mine = [c for c in of(calls, "update", "get", "scan") if c.arguments["table"] == table]
        _versions_are_of_changes(mine)
        _no_refused_value(mine)
        _never_back(mine)
        _versions_rise(mine)
        _no_part(mine)


def read_by(call: Recorded) -> list[Entry]:
    """Return what a call read."""
    if not call.ok:
        return []
    if call.operation == "get":
        pairs = zip(call.arguments["keys"], call.value, strict=True)
        return [_entry(key, found) for key, found in pairs]
    return [_entry(k, found) for k, found in call.value.items()] if call.operation == "scan" else []


def written_by(call: Recorded) -> list[Entry]:
    """Return what an acknowledged update wrote."""
    if not call.ok or call.operation != "update":
        return []
    pairs = zip(call.arguments["changes"], call.value, strict=True)
    return [
        Entry(change["key"], change["value"], version and (int(version[0]), int(version[1])))
        for change, version in pairs
    ]


def _entry(key: str, found: Sequence[object] | None) -> Entry:
    if found is None:
        return Entry(key, None, None)
    value, version = found
    return Entry(key, str(value), (int(version[0]), int(version[1])))  # type: ignore[index]


def _versions_are_of_changes(calls: Sequence[Recorded]) -> None:
    values: dict[tuple[str, tuple[int, int]], tuple[str | None, Recorded]] = {}
    for call in calls:
        for entry in (*written_by(call), *read_by(call)):
            if entry.version is None:
                continue
            value, first = values.setdefault((entry.key, entry.version), (entry.value, call))
            if value != entry.value:
                raise Violation("a version is of one value", f"{entry.key!r}: {first}; {call}")


def _no_refused_value(calls: Sequence[Recorded]) -> None:
    tried: dict[tuple[str, str | None], list[Recorded]] = {}
    for call in of(calls, "update"):
        for change in call.arguments["changes"]:
            tried.setdefault((change["key"], change["value"]), []).append(call)
    for call in calls:
        for entry in read_by(call):
            if entry.value is None:
                continue
            by = tried.get((entry.key, entry.value), ())
            assert call.ended is not None
            if not any(one.may_have_happened and one.began < call.ended for one in by):
                raise Violation(
                    "refused never appears", f"{entry.key!r} has {entry.value!r} in {call}: {by}"
                )


def _never_back(calls: Sequence[Recorded]) -> None:
    """A get sees what its process knows, and with ``fresh`` all that was acknowledged."""
    known: list[tuple[Recorded, Entry]] = []
    for call in calls:
        known += [(call, entry) for entry in (*written_by(call), *read_by(call)) if entry.version]
    for call in calls:
        is_fresh = call.operation == "get" and call.arguments.get("fresh", False)
        for entry in read_by(call):
            for other, before in known:
                if before.key != entry.key or not other.before(call) or before.version is None:
                    continue
                if not is_fresh and other.process != call.process:
                    continue
                if entry.version is None:
                    if before.value is not None and not _may_be_removed(calls, call, entry.key):
                        raise Violation("a get never goes back", f"{other}; then {call}")
                elif entry.version < before.version:
                    raise Violation("a get never goes back", f"{other}; then {call}")


def _versions_rise(calls: Sequence[Recorded]) -> None:
    """An update gives a key a version above all that anybody knew before it began."""
    known = [
        (call, entry)
        for call in calls
        for entry in (*written_by(call), *read_by(call))
        if entry.version is not None
    ]
    for update in of(calls, "update"):
        for entry in written_by(update):
            for other, before in known:
                is_older = before.key == entry.key and other.before(update)
                if is_older and (entry.version or (0, 0)) <= (before.version or (0, 0)):
                    raise Violation("versions of a key rise", f"{other}; then {update}")


def _may_be_removed(calls: Sequence[Recorded], by: Recorded, key: str) -> bool:
    assert by.ended is not None
    return any(
        one.may_have_happened and one.began < by.ended and change["value"] is None
        for one in of(calls, "update")
        for change in one.arguments["changes"]
        if change["key"] == key
    )


def _no_part(calls: Sequence[Recorded]) -> None:
    """A call that shows one change of an update shows no older entry of its other keys."""
    for update in calls:
        written = [e for e in written_by(update) if e.version is not None]
        if len(written) < 2:
            continue
        for call in calls:
            found = {entry.key: entry for entry in read_by(call)}
            for one, other in _pairs(written):
                shown, beside = found.get(one.key), found.get(other.key)
                if shown is None or beside is None or shown.version != one.version:
                    continue
                older = beside.version is not None and beside.version < (other.version or (0, 0))
                lacks = beside.version is None and other.value is not None
                if older or (lacks and not _may_be_removed(calls, call, other.key)):
                    raise Violation("no reader sees a part of an update", f"{update}; {call}")


def _pairs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    for one in entries:
        for other in entries:
            if one.key != other.key:
                yield one, other
