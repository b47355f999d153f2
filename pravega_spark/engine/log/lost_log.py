"""Tells a table that was never created from one that has lost its log."""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.store.base import Entry
from pravega_spark.errors import CorruptLog


def check_not_lost(
    log: Log,
    folder: str,
    what: str,
    advice: str,
    *,
    counts: Callable[[Entry], bool] = lambda entry: True,
    stream: str | None = None,
) -> None:
    """Raise CorruptLog if a table without a log has other objects: it had a log before.

    ``folder`` belongs to the table alone. ``counts`` excludes objects that a creation puts before
    its first commit. A file in place of the folder counts. The listing is for a table that was
    found without a log; it costs too much on any other path.
    """
    left = [entry.key for entry in log.store.list(folder) if counts(entry)]
    is_hidden = folder.rpartition("/")[2].startswith(".")  # no object has such a name
    if not is_hidden and log.store.exists(folder):
        left.append(folder)
    if not left or log.refresh() is not None:  # created while we listed
        return
    where = log.reader.where
    raise CorruptLog(
        f"{where}: {what} has lost its log: {left[0]} exists, and no commit does. Nothing was "
        f"changed. {advice}",
        stream=stream,
        path=where,
        version=0,
    )
