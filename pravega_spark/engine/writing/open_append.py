"""A batch whose owner waits for its commit, with the outcome once it is known."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pravega_spark.engine.writing.append_draft import AppendResult, StagedBatch
from pravega_spark.engine.writing.offer_name import offered_at


class OpenAppend:
    """A batch whose owner waits."""

    __slots__ = ("batch", "error", "lost", "missed", "result", "waits_from", "wake")

    def __init__(self, batch: StagedBatch, now: float) -> None:
        """Begin to wait."""
        self.batch = batch
        self.waits_from = now
        self.missed = 0
        """Commits of other processes since, without this batch."""
        self.lost = 0
        """Lost races of commits that hold it."""
        self.result: AppendResult | None = None
        self.error: BaseException | None = None
        self.wake = threading.Event()
        """Set when the outcome is known, or when the owner must lead."""

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self.result is not None or self.error is not None

    def outcome(self) -> AppendResult:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


def oldest_offer(waiting: Sequence[OpenAppend]) -> int | None:
    """Return the version at which the oldest of the batches was offered; None without offers."""
    offers = [one.batch for one in waiting if one.batch.is_offered]
    return min((offered_at(batch.chunks[0].path) for batch in offers), default=None)
