"""A byte stream is one sequence: whoever reads a byte finds the same there, and none is lost.

What is written are tokens that end with ``;``, each of which is written once; only a writer with
an id writes one again, after an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of

_END = ";"


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a byte changes, or a token is lost, doubled, refused or out of order."""
    for stream in sorted({call.arguments["stream"] for call in of(calls, "read_bytes")}):
        mine = [call for call in calls if call.arguments.get("stream") == stream]
        reads = [call for call in of(mine, "read_bytes") if call.ok]
        made = [(c, c.arguments["before"]) for c in of(mine, "truncate_bytes") if c.ok]
        heads = [*made, *((read, read.value["from"]) for read in reads)]
        _check(of(mine, "write_bytes"), reads, heads)
        for read in reads:
            _begins(read, of(mine, "truncate_bytes"))


def _begins(read: Recorded, truncations: Sequence[Recorded]) -> None:
    """A read of all begins at the furthest byte that somebody made the head."""
    assert read.ended is not None
    start = read.value["from"]
    may = [c for c in truncations if c.may_have_happened and c.began < read.ended]
    if start and start not in [c.arguments["before"] for c in may]:
        raise Violation("the head moves only for a reason", f"nobody made byte {start} it: {read}")
    for call in truncations:
        if call.ok and call.before(read) and call.arguments["before"] > start:
            raise Violation("the head never moves back", f"{call}; then {read}")


def _check(
    writes: Sequence[Recorded], reads: Sequence[Recorded], heads: Sequence[tuple[Recorded, int]]
) -> None:
    tried: dict[str, list[Recorded]] = {}
    for write in writes:
        for token in _tokens(write.arguments["text"]):
            tried.setdefault(token, []).append(write)
    numbers = {token: number for number, token in enumerate(tried)}
    known: dict[int, str] = {}
    places: dict[str, int] = {}
    for read in reads:
        _agrees(read, known)
        _of_tokens(read, tried, numbers, places)
    for read in reads:
        _ends_a_token(read, tried, places)
        _lacks_nothing(read, heads, tried, places)
        _as_many(read, tried)
        for other in reads:
            if read.before(other) and other.value["from"] < read.value["from"]:
                raise Violation("the head never moves back", f"{read}; then {other}")


def _tokens(text: str) -> list[str]:
    return [f"{token}{_END}" for token in text.split(_END)[:-1]]


def _agrees(read: Recorded, known: dict[int, str]) -> None:
    for at, byte in enumerate(read.value["text"], read.value["from"]):
        if known.setdefault(at, byte) != byte:
            raise Violation(
                "a place has one byte", f"byte {at} is {byte!r}, and was {known[at]!r}: {read}"
            )


def _of_tokens(
    read: Recorded,
    tried: dict[str, list[Recorded]],
    numbers: dict[str, int],
    places: dict[str, int],
) -> None:
    text, at = read.value["text"], read.value["from"]
    if text and not text.endswith(_END):
        raise Violation("no part of a write is visible", f"{text[-40:]!r} ends {read}")
    if at:  # a truncation may lie within a token
        rest, text = _cut(text)
        at += len(rest)
    last: dict[str, str] = {}
    found: set[str] = set()
    for token in _tokens(text):
        calls = tried.get(token, [])
        if not _may_be_in(read, calls):
            raise Violation("nothing from nowhere", f"nobody wrote {token!r} by then: {read}")
        if token in found or places.setdefault(token, at) != at:
            raise Violation("exists exactly once", f"{token!r} is at two places: {read}")
        found.add(token)
        writer = calls[0].arguments["writer"]
        if writer in last and numbers[last[writer]] > numbers[token]:
            raise Violation(
                "bytes of a writer are in order", f"{last[writer]!r} before {token!r}: {read}"
            )
        last[writer] = token
        at += len(token)


def _may_be_in(read: Recorded, calls: Sequence[Recorded]) -> bool:
    """Return whether one of the calls that wrote a token may have done so by a read's end."""
    assert read.ended is not None
    return any(call.may_have_happened and call.began < read.ended for call in calls)


def _cut(text: str) -> tuple[str, str]:
    """Return the first token of a text, and what follows it."""
    first, end, rest = text.partition(_END)
    return first + end, rest


def _ends_a_token(read: Recorded, tried: dict[str, list[Recorded]], places: dict[str, int]) -> None:
    """What a read begins with is the end of a token, which may lie there."""
    rest, _ = _cut(read.value["text"])
    end = read.value["from"] + len(rest)
    for token, calls in tried.items() if rest else ():
        at = end - len(token)
        is_there = token.endswith(rest) and at >= 0 and places.get(token, at) == at
        if is_there and _may_be_in(read, calls):
            return
    if rest:
        raise Violation(
            "nothing from nowhere", f"no token that ends with {rest!r} is there: {read}"
        )


def _as_many(read: Recorded, tried: dict[str, list[Recorded]]) -> None:
    """Behind all that was acknowledged before a read, and not behind more than was tried, it ends:
    a byte that is lost or doubled, also before the head, moves the end."""
    end = read.value["from"] + len(read.value["text"])
    least = sum(len(t) for t, calls in tried.items() if any(c.ok and c.before(read) for c in calls))
    most = sum(len(t) for t, calls in tried.items() if _may_be_in(read, calls))
    if not least <= end <= most:
        raise Violation(
            "the end lies behind all bytes", f"it is {end}, of {least} to {most} bytes: {read}"
        )


def _lacks_nothing(
    read: Recorded,
    heads: Sequence[tuple[Recorded, int]],
    tried: dict[str, list[Recorded]],
    places: dict[str, int],
) -> None:
    """A token that nobody ever saw is behind the head if nothing was before that, if the head was
    seen before the token was written, or if an earlier token of its writer is behind it. The first
    one of a read may be the end of another."""
    start, end = read.value["from"], read.value["from"] + len(read.value["text"])
    first = _cut(read.value["text"])[0] if start else ""
    behind: set[str] = set()
    for token, calls in tried.items():
        at, writer = places.get(token), calls[0].arguments["writer"]
        is_behind = (
            not start
            or writer in behind
            or any(
                head == start and all(told.before(call) for call in calls) for told, head in heads
            )
        )
        if at is not None and at >= start:
            behind.add(writer)
        if token == first or not any(call.ok and call.before(read) for call in calls):
            continue
        if is_behind if at is None else at >= end:
            raise Violation("acknowledged is there", f"{token!r} at {at} is not in {read}")
