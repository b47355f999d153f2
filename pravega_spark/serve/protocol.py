"""Connections: how many there are, and how long the server waits for a client.

uvicorn waits for ever for a header's end, for a body, and for a client to read its answer. Here
each of these waits has a limit, which bytes that trickle in do not renew. An answer itself, such as
the updates of an open page, may last.
"""

from __future__ import annotations

import asyncio
import errno
import math
import resource
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.serve.serve_options import ConnectionLimits

logger = own_logger(__name__)

LEAST_READ_BYTES: Final = 64 * 1_024
"""What a client has to read of an answer in each ``unread_seconds``."""
_LAST_SECONDS: Final = 1.0
"""The wait for a client that reads nothing while the server ends."""
_RETRY_SECONDS: Final = 0.9
_WARNING_SECONDS: Final = 60.0
"""Between two lines of the log on connections that were closed."""


class Connections:
    """The open connections of one server, in the order in which they began to be idle."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Take the limits; half of the process's file descriptors stay for its storage."""
        self.limits = limits
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = descriptors == resource.RLIM_INFINITY
        self._most = limits.connections if unlimited else min(limits.connections, descriptors // 2)
        self._open: dict[Connection, None] = {}
        self._refused = self._warned = -math.inf
        self._is_ended = False

    def new(self, *given: Any, **named: Any) -> Connection:
        """Return the protocol of a connection, as uvicorn asks for it."""
        return Connection(self, *given, **named)

    def add(self, connection: Connection) -> None:
        """Count a connection; one too many ends the oldest that waits, be it the new one.

        One that was accepted just before the server ended ends at once: uvicorn forgets it.
        """
        if self._is_ended:
            connection.end()
            return
        self._open[connection] = None
        if len(self._open) > self._most:
            self._end_oldest(f"{self._most} connections are open, and no more are allowed")

    def moved(self, connection: Connection) -> None:
        """Take a connection as the one that became idle last."""
        if self._open.pop(connection, self) is None:
            self._open[connection] = None

    def remove(self, connection: Connection) -> None:
        """Forget a connection."""
        self._open.pop(connection, None)

    def end(self) -> None:
        """Know that the server accepts no more connections."""
        self._is_ended = True

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what the event loop reports, such as that no descriptor was left to accept with.

        Then the loop reports as many attempts as connections may wait, and tries again after a
        second: one connection ends for all of them.
        """
        error = context.get("exception")
        if self._is_ended and "_start_serving" in repr(context.get("handle")):
            return  # the loop tries to accept again, at a listener that is closed
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            if loop.time() - self._refused < _RETRY_SECONDS:
                return
            self._refused = loop.time()
            self._end_oldest(f"no connection can be accepted ({error.strerror}; see ulimit -n)")
        else:
            loop.default_exception_handler(context)

    def _end_oldest(self, cause: str) -> None:
        waiting = next((found for found in self._open if found.is_waiting), None)
        if waiting is not None:
            self.remove(waiting)
            waiting.end()
        now = asyncio.get_running_loop().time()
        if now - self._warned >= _WARNING_SECONDS:
            self._warned = now
            logger.warning(
                "%s: those that wait for their clients are closed, the oldest first.",
                cause,
                extra=log_fields("accept"),
            )


class Connection(H11Protocol):
    """uvicorn's protocol with limits; of one event loop."""

    def __init__(self, connections: Connections, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._all = connections
        self._limits = connections.limits
        self._unread_seconds = connections.limits.unread_seconds
        self._needed: tuple[object, object] | None = None
        self._request_due: asyncio.TimerHandle | None = None
        self._unread_due: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its client: to end a header or a body, or to read."""
        return self._request_due is not None or self._unread_due is not None

    def end(self) -> None:
        """Close the connection, and do not wait for a client that reads nothing."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a header."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # to know whenever something is not read yet
        self._wait_for_request()
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        self._wait_for_request()

    def on_response_complete(self) -> None:
        """Begin to wait for the next header, or go on waiting for the rest of a body."""
        super().on_response_complete()
        self._all.moved(self)
        self._wait_for_request()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._wait_for_reading()

    def resume_writing(self) -> None:
        """End that wait: the client has read all."""
        super().resume_writing()
        self._unread_due = _ended(self._unread_due)

    def connection_lost(self, exc: Exception | None) -> None:
        """End all waits."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._request_due = _ended(self._request_due)
        self._unread_due = _ended(self._unread_due)
        self._all.remove(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, by an answer unless one has begun."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # its application has nobody to answer any more
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.end()

    def shutdown(self) -> None:
        """End the connection; one that answers ends with its answer, or soon if nobody reads it."""
        if self.cycle is None or self.cycle.response_complete:
            self.end()
        else:
            self.cycle.keep_alive = False
            self._unread_seconds = min(self._unread_seconds, _LAST_SECONDS)
            if self._unread_due is not None:
                self._unread_due.cancel()
                self._wait_for_reading()

    def _wait_for_request(self) -> None:
        """Limit the wait for a header or a body, from where it began: more bytes renew nothing."""
        needed = self.cycle, self.conn.their_state
        if needed == self._needed:
            return
        self._needed = needed
        self._request_due = _ended(self._request_due)
        if self.conn.their_state is h11.IDLE:
            self._request_due = self.loop.call_later(self._limits.header_seconds, self.end)
        elif self.conn.their_state is h11.SEND_BODY:
            self._request_due = self.loop.call_later(self._limits.body_seconds, self.end)

    def _wait_for_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread_due = self.loop.call_later(self._unread_seconds, self._look_at_reading, unread)

    def _look_at_reading(self, before: int) -> None:
        """Go on waiting for a client that is slow, and end one that does not read."""
        if before - self.transport.get_write_buffer_size() < LEAST_READ_BYTES:
            self.transport.abort()
        else:
            self._wait_for_reading()


def _ended(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
