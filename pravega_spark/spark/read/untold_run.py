"""A run of a query whose Spark tells the source neither its trigger nor where a batch begins.

These are Spark 4.0 and 4.1. A new query asks for the latest offset and for the initial one, and
plans the batch between them. A run that goes on plans an empty batch at the checkpoint's last
offset, and then asks for the latest one. But Trigger.AvailableNow asks first of all, in both cases,
for the end of its only batch; later it asks again for its progress reports alone.

So the first answer may be the end of all that a run reads, and has all that there is. It does not
know whether it ends the first batch of a query: it says where that would begin (``begun``), and is
checked once the checkpoint's offset is known, before Spark records it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(slots=True)
class UntoldRun:
    """What one run has been asked, and what that says of it."""

    answer: Record | None = None
    """What it answered before it knew where the query was."""
    reached: Record | None = None
    """The end of the last batch that was planned, in this run or before."""
    has_answered: bool = False
    is_new: bool = False
    """Whether the query is new."""
    is_available_now: bool = False
    is_finished: bool = False
    """Whether an AvailableNow run has reported its batch."""

    def planned(self, start: Record, end: Record, check: Callable[[], None]) -> None:
        """Note a batch; ``check`` raises if the answer cannot follow the checkpoint's offset."""
        if self.reached is None and self.answer is not None and start == end:
            self.is_available_now = True
            check()
        self.reached = end
