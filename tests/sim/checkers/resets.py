"""When the resets of a group took effect, as far as a history shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.sim.recorded import Recorded, of


@dataclass(frozen=True)
class Reset:
    """A reset that took effect between two lines; without ``by``, perhaps at any later one."""

    call: Recorded
    since: int
    by: int | None

    def is_before(self, other: Reset) -> bool:
        """Return whether it certainly took effect before another one."""
        if self.generation is not None and other.generation is not None:
            return self.generation < other.generation
        return self.by is not None and self.by < other.since

    @property
    def generation(self) -> int | None:
        """The number of the generation that it began, if it told that."""
        value = self.call.value if self.call.ok else None
        return value if isinstance(value, int) else None

    def may_be_amid(self, call: Recorded) -> bool:
        """Return whether it may have taken effect while a call was open."""
        is_later = call.ended is not None and call.ended < self.since
        return not is_later and (self.by is None or self.by > call.began)


def resets_of(calls: Sequence[Recorded], group: str) -> list[Reset]:
    """Return the resets of a group that may have happened, in their order.

    Generations are numbered in the order in which they began. So one that tells its number took
    effect after all those below it began, and before any of those above it has ended.
    """
    mine = [
        call
        for call in of(calls, "reset")
        if call.arguments["group"] == group and call.may_have_happened
    ]
    told = [(one.value, one) for one in mine if one.ok and isinstance(one.value, int)]
    found = []
    for call in mine:
        since, by = call.began, call.ended
        for number, other in told if (call.value, call) in told else ():
            if number < call.value:
                since = max(since, other.began)
            elif by is not None and other.ended is not None:
                by = min(by, other.ended)
        found.append(Reset(call, since, by))
    return sorted(found, key=lambda one: (one.since, one.generation or 0))
