"""Extends the lease of a reader whose application is busy, for a bounded time."""

from __future__ import annotations

import threading
import weakref

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.errors import ObjectClosed, ReinitializationRequired
from pravega_spark.reader_groups.reader_membership import ReaderMembership

logger = own_logger(__name__)

_RETRY_SECONDS = 1.0
"""Shortest pause of the thread."""


class LeaseExtender:
    """A thread that extends a reader's lease between two calls of its application.

    It extends the lease when a heartbeat is due that no call has written, until the last call is
    longer ago than the maximum. Then the reader expires, as one that hangs. The thread ends when
    the reader leaves, is evicted or is collected, and with the process: it is a daemon, and does
    not survive a fork.
    """

    def __init__(self, membership: ReaderMembership, max_poll_seconds: float) -> None:
        """Start the thread."""
        self._stopped = stopped = threading.Event()
        reader = weakref.ref(membership, lambda _: stopped.set())
        self.thread = threading.Thread(
            target=_extend_until_stopped,
            args=(reader, stopped, max_poll_seconds),
            name="pravega-lease",
            daemon=True,
        )
        self.thread.start()

    def stop(self) -> None:
        """End the thread; it writes no heartbeat after the reader has left."""
        self._stopped.set()


def _extend_until_stopped(
    reader: weakref.ref[ReaderMembership], stopped: threading.Event, max_poll_seconds: float
) -> None:
    is_busy, pause = True, 0.0
    while not stopped.wait(pause):
        membership = reader()
        if membership is None or membership.lease.is_lost:
            return
        was_busy, is_busy = is_busy, membership.idle_seconds <= max_poll_seconds
        try:
            if is_busy:
                membership.extend_if_due()
        except (ReinitializationRequired, ObjectClosed):
            return
        except Exception as error:
            logger.warning(
                "failed to extend the lease of %s: %s",
                membership,
                error,
                extra=log_fields("extend lease", group=membership.state.group),
            )
        if was_busy and not is_busy:
            logger.warning(
                "%s has made no call for %g s, its max_poll_interval; its lease is no longer "
                "extended",
                membership,
                max_poll_seconds,
                extra=log_fields("extend lease", group=membership.state.group),
            )
        pause = max(membership.lease.seconds_to_heartbeat(), _RETRY_SECONDS)
        del membership
