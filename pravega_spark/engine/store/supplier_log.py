"""What botocore logs when a supplier of credentials fails: a traceback a call, beside our errors.

The records of its logger are taken only where this package itself asks a supplier, in that thread;
other users of botocore in the process see theirs. No handler and no level is touched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger

logger = own_logger(__name__)


class _Taken(threading.local):
    """The messages that were taken in this thread; None outside of :func:`taken_failures`."""

    messages: list[str] | None = None


_taken = _Taken()


def _take(record: logging.LogRecord) -> bool:
    """Return whether botocore's logger may handle a record; a taken one is a line at DEBUG."""
    if _taken.messages is None or record.levelno < logging.WARNING:
        return True
    cause = record.exc_info[1] if record.exc_info else None
    _taken.messages.append(record.getMessage() if cause is None else f"{cause!r}")
    fields = log_fields("credentials")
    logger.debug("%s", record.getMessage(), exc_info=record.exc_info, extra=fields)
    return False


logging.getLogger("botocore.credentials").addFilter(_take)


@contextmanager
def taken_failures() -> Iterator[list[str]]:
    """Collect what botocore warns of in this thread, instead of its lines."""
    before, _taken.messages = _taken.messages, []
    try:
        yield _taken.messages
    finally:
        _taken.messages = before
