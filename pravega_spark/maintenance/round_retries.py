"""When a process that keeps running tries a round again that could not be done at all."""

from __future__ import annotations

from typing import Final

FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 60.0
"""The longest pause between two attempts, if no interval is longer."""


class RoundRetries:
    """The attempts in a row that an error ended, such as that of a root that is unmounted."""

    def __init__(self) -> None:
        """Start without a failed attempt."""
        self.attempts = 0
        self._reason = ""

    def is_new(self, error: Exception) -> bool:
        """Count a failed attempt; return whether its cause is another than that of the last one."""
        reason, before = f"{type(error).__name__}: {error}", self._reason
        self.attempts, self._reason = self.attempts + 1, reason
        return reason != before

    def end(self) -> None:
        """Forget the failed attempts: a round was done."""
        self.attempts, self._reason = 0, ""

    def pause_seconds(self, interval: float | None) -> float:
        """Return the seconds until the next attempt: twice as long each time, up to an interval."""
        last = LAST_RETRY_SECONDS if interval is None else interval
        return min(FIRST_RETRY_SECONDS * 2.0 ** min(self.attempts - 1, 16), last)
