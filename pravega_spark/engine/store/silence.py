"""Notice that a call gets no answer long before its time-out, in the thread that waits for it.

A server that accepts connections and hangs shows nothing else than silence. The wait costs one poll
of the socket a call, and no thread. A slow call of a server that answers others is no silence.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from urllib3.util import wait_for_read

SILENCE_SECONDS = 5.0
"""A server that has answered no call for so long, although one waits, is warned of: longer than a
call to a busy server takes."""


class Silence:
    """The answers of one server to all calls of a client. Thread-safe."""

    def __init__(self, report: Callable[[float], object] | None) -> None:
        """Take what is told of a silence, by its length in seconds; None tells nobody."""
        self._report = report
        self._answered = time.monotonic()

    def note_answer(self) -> None:
        """Note that some call has been answered."""
        self._answered = time.monotonic()

    def await_answer(self, connection: Any, timeout: float | None) -> None:
        """Wait until an answer begins on a socket; TimeoutError after ``timeout`` seconds.

        While it waits, each SILENCE_SECONDS without an answer to any call of the client are
        reported.
        """
        if self._report is None or timeout is None or _has_bytes(connection):
            return
        began = time.monotonic()
        left = timeout
        while left > 0:
            if wait_for_read(connection, min(SILENCE_SECONDS, left)):
                return
            now = time.monotonic()
            left = began + timeout - now
            silent = now - max(began, self._answered)
            if left > 0 and silent >= SILENCE_SECONDS:
                self._report(silent)
        raise TimeoutError("timed out")


def _has_bytes(connection: socket.socket) -> bool:
    """Return whether bytes of a TLS connection were read already, of which no poll knows."""
    pending = getattr(connection, "pending", None)
    return pending is not None and pending() > 0
