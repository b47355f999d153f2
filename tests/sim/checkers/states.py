"""Updates of a shared state have one order everywhere, each once, and none is lost."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if two processes know different beginnings, or one lacks an update."""
    for state in sorted({c.arguments["state"] for c in of(calls, "update_state", "fetch_updates")}):
        mine = [
            c for c in of(calls, "update_state", "fetch_updates") if c.arguments["state"] == state
        ]
        known = [(call, _known(call)) for call in mine if call.ok]
        longest: list[str] = []
        for call, updates in known:
            shorter, longer = sorted((longest, updates), key=len)
            if longer[: len(shorter)] != shorter:
                raise Violation("updates have one order", f"{longest} and {updates} in {call}")
            longest = longer
            if len(set(updates)) != len(updates):
                raise Violation("an update is applied once", f"{call}")
        _complete(mine, known, longest)


def _known(call: Recorded) -> list[str]:
    own = [call.arguments["update"]] if call.operation == "update_state" else []
    return [*call.value, *own]


def _complete(
    calls: Sequence[Recorded], known: Sequence[tuple[Recorded, list[str]]], longest: Sequence[str]
) -> None:
    for other, before in known:
        for call, updates in known:
            waits = call.operation == "update_state" or other.process == call.process
            waits = waits or call.operation == "fetch_updates"
            if other.before(call) and waits and len(updates) < len(before):
                raise Violation("fetch_updates has all that was acknowledged", f"{other}; {call}")
    tried = {c.arguments["update"]: c for c in of(calls, "update_state")}
    for update in longest:
        if update not in tried or not tried[update].may_have_happened:
            raise Violation("refused never appears", f"{update!r}: {tried.get(update)}")
