"""Calls to a table, segment, fence, state or stream behave as if one came at a time."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.objects import objects_of
from tests.sim.checkers.search import is_linearizable
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if the calls to an object have no order that explains their answers."""
    for one in objects_of(calls):
        if not is_linearizable(one):
            shown = "\n  ".join(operation.shown for operation in one.operations)
            raise Violation("calls have one order", f"those of {one.name} have none:\n  {shown}")
