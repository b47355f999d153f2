"""Versions of a key-value table: each is of one change, and nobody's knowledge goes back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


@dataclass(frozen=True)
class Entry:
    """A key as some call had it: value and version, which are None where there is no entry."""

    key: str
    value: str | None
    version: tuple[int, int] | None


Known = Mapping[str, Sequence[tuple[Recorded, Entry]]]
"""Of each key what calls wrote to it and read of it, in the order in which the calls began."""


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation for a version of nothing, one that goes back, or a part of an update."""
    for table in sorted({c.arguments["table"] for c in of(calls, "update", "get", "scan")}):
        mine = [c for c in of(calls, "update", "get", "scan") if c.arguments["table"] == table]
        _is_whole(mine)
        _versions_are_of_changes(mine)
        _no_refused_value(mine)
        known: dict[str, list[tuple[Recorded, Entry]]] = {}
        for call in mine:
            for entry in (*written_by(call), *read_by(call)):
                if entry.version is not None:
                    known.setdefault(entry.key, []).append((call, entry))
        _never_back(mine, known)
        _versions_rise(mine, known)
        _no_part(mine, known)


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


def _shown_by(call: Recorded, keys: Iterable[str]) -> dict[str, Entry]:
    """Return what a call tells of keys: a scan lacks those that have no entry."""
    found = {entry.key: entry for entry in read_by(call)}
    if call.operation == "scan" and call.ok:
        return {key: Entry(key, None, None) for key in keys} | found
    return found


def _is_whole(calls: Sequence[Recorded]) -> None:
    """What the log of changes has lost, the folded table has: no call comes to a gap between."""
    for call in calls:
        if call.error == "TruncatedData":
            raise Violation("a table has each change, folded or not", f"{call}")


def _versions_are_of_changes(calls: Sequence[Recorded]) -> None:
    """A version is the place of one change in the log of changes."""
    changes: dict[tuple[int, int], tuple[Entry, Recorded]] = {}
    for call in calls:
        for entry in (*written_by(call), *read_by(call)):
            if entry.version is None:
                continue
            first, by = changes.setdefault(entry.version, (entry, call))
            if first != entry:
                promise = "of one value" if first.key == entry.key else "of one key"
                raise Violation(f"a version is {promise}", f"{entry.key!r}: {by}; {call}")


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


def _never_back(calls: Sequence[Recorded], known: Known) -> None:
    """A call sees what its process knows; a scan, and a fresh get, all that was acknowledged.

    It is of one version: who shows a change shows what was there before that change began.
    """
    updates = {
        (change["key"], change["value"]): update
        for update in of(calls, "update")
        for change in update.arguments["changes"]
        if update.may_have_happened and change["value"] is not None
    }
    for call in calls:
        shown = _shown_by(call, known)
        by = [update for e in shown.values() if (update := updates.get((e.key, e.value or "")))]
        newest = max((update.began for update in by), default=0)
        is_fresh = call.operation == "scan" or call.arguments.get("fresh", False)
        for key, entry in shown.items():
            for other, before in known.get(key, ()):
                if not other.before(call) or before.version is None:
                    continue
                is_below = other.ended is not None and other.ended < newest
                if not (is_fresh or is_below or other.process == call.process):
                    continue
                if entry.version is None:
                    if before.value is not None and not _may_be_removed(calls, call, before):
                        raise Violation("a get never goes back", f"{other}; then {call}")
                elif entry.version < before.version:
                    raise Violation("a get never goes back", f"{other}; then {call}")


def _versions_rise(calls: Sequence[Recorded], known: Known) -> None:
    """An update gives a key a version above all that anybody knew before it began."""
    for update in of(calls, "update"):
        for entry in written_by(update):
            for other, before in known.get(entry.key, ()):
                is_older = other.before(update)
                if is_older and (entry.version or (0, 0)) <= (before.version or (0, 0)):
                    raise Violation("versions of a key rise", f"{other}; then {update}")


def _may_be_removed(calls: Sequence[Recorded], by: Recorded, entry: Entry) -> bool:
    """Return whether a call may miss an entry since it, or what replaced it, was removed."""
    assert by.ended is not None
    return any(
        one.may_have_happened and one.began < by.ended and not _is_older(one, number, entry)
        for one in of(calls, "update")
        for number, change in enumerate(one.arguments["changes"])
        if change["key"] == entry.key and change["value"] is None
    )


def _is_older(update: Recorded, number: int, entry: Entry) -> bool:
    """Return whether a change of a key certainly came before an entry of it."""
    if entry.version is None:
        return False
    if update.ok:
        version = written_by(update)[number].version
        return version is not None and version < entry.version
    expected = update.arguments["changes"][number].get("expected")
    if not isinstance(expected, list):
        return False
    return (int(expected[0]), int(expected[1])) < entry.version


def _no_part(calls: Sequence[Recorded], known: Known) -> None:
    """A call that shows one change of an update shows no older entry of its other keys.

    So it is of an update of unknown outcome, too: what is written once is known by its value.
    """
    versions = {(e.key, e.value): e.version for of_one in known.values() for _, e in of_one}
    for update in of(calls, "update"):
        if not update.may_have_happened or len(update.arguments["changes"]) < 2:
            continue
        tried = [
            Entry(key, value, None if value is None else versions.get((key, value)))
            for key, value in ((c["key"], c["value"]) for c in update.arguments["changes"])
        ]
        written = written_by(update) or tried
        for call in calls:
            found = _shown_by(call, [entry.key for entry in written])
            for one, other in _pairs(written):
                shown, beside = found.get(one.key), found.get(other.key)
                if shown is None or beside is None:
                    continue
                if shown.value is None or shown.value != one.value:
                    continue
                older = beside.version is not None and beside.version < (other.version or (0, 0))
                lacks = beside.version is None and other.value is not None
                if older or (lacks and not _may_be_removed(calls, call, other)):
                    raise Violation("no reader sees a part of an update", f"{update}; {call}")


def _pairs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    for one in entries:
        for other in entries:
            if one.key != other.key:
                yield one, other
