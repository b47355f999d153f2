"""Whatever crashes when, nobody ever finds a log, a chunk or a file damaged or gone."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if somebody found something damaged, or gone that is still retained."""
    for call in of(calls, "find_damage"):
        raise Violation("nothing is damaged", f"{call}")
    for call in of(calls, "keep_version"):
        if call.ok and call.value:
            raise Violation("a retained version keeps its files", f"{call}")
