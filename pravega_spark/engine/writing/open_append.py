"""A batch whose owner waits for its commit, with the outcome once it is known."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pravega_spark.engine.writing.append_draft import AppendResult, StagedBatch
from pravega_spark.engine.writing.batch_staging import failure_of
from pravega_spark.engine.writing.offer_name import offered_at


class OfferFirst(Exception):
    """The batch lost races to other processes: stage it again, as an offer."""


class OpenAppend:
    """A batch whose owner waits."""

    __slots__ = ("batch", "error", "lost", "missed", "random", "result", "waits_from", "wake")

    def __init__(self, batch: StagedBatch, now: float, random: float) -> None:
        """Begin to wait; ``random`` is in [0, 1)."""
        self.batch = batch
        self.lost = 0
        """Lost races of commits that hold it."""
        self.result: AppendResult | None = None
        self.error: BaseException | None = None
        self.wake = threading.Event()
        """Set when the outcome is known, or when the owner must lead."""
        self.wait(0, now, random)

    def wait(self, missed: int, now: float, random: float) -> None:
        """Begin to wait for others, as if so many of their commits had passed already."""
        self.waits_from = now
        self.missed = missed
        """Commits of other processes since, without this batch."""
        self.random = random
        """Drawn once a wait: of a draw at each look, only the least would count."""

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self.result is not None or self.error is not None

    def complete(self, result: AppendResult) -> None:
        """Hand the owner its result, unless the outcome is known."""
        if not self.is_done:
            self.result = result
            self.wake.set()

    def refuse(self, error: BaseException) -> None:
        """Hand the owner an error that says that the batch is in no commit."""
        if not self.is_done:
            self.error = error
            self.wake.set()

    def fail(self, error: BaseException, stream: str) -> None:
        """Hand the owner an error that says nothing about this batch of the stream."""
        self.refuse(failure_of(self.batch, error, stream))

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
