"""What a checker says of a history in which a promise is broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise that a history breaks: ``promise`` is its short name, the message has the calls."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
