"""The recent history of a stream: the commits of its log, appends in a row as one."""

from __future__ import annotations

import json
from typing import Any, Final

from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.serve.api_models import CommitRow, HistoryPage

SCANNED_COMMITS: Final = 256
"""An answer reads at most so many commits."""
_MERGED: Final = frozenset({"APPEND"})
_SHOWN_TEXT: Final = 2_000


def commit_history(log: StreamLog, view: StreamView, before: int | None, limit: int) -> HistoryPage:
    """Return up to ``limit`` rows of commits below the version ``before``, the newest first.

    Only commits that the log still has; ``next`` is None at the oldest one.
    """
    last = view.version if before is None else min(before - 1, view.version)
    oldest = view.snapshot.commit_deletion_mark
    first = max(oldest, last - SCANNED_COMMITS + 1)
    if last < first:
        return HistoryPage(commits=[], next=None)
    found = list(log.log.reader.span(first - 1, last, light=True))
    rows: list[CommitRow] = []
    for commit in reversed(found):
        row = _row(commit)
        if rows and row.operation in _MERGED and rows[-1].operation == row.operation:
            rows[-1] = _merged(rows[-1], row)
        elif len(rows) == limit:
            break
        else:
            rows.append(row)
    reached = rows[-1].first_version
    return HistoryPage(commits=rows, next=reached if reached > oldest else None)


def _row(commit: Commit) -> CommitRow:
    info = commit.info
    metrics = info.get("operationMetrics") or {}
    parameters = info.get("operationParameters") or {}
    return CommitRow(
        version=commit.version,
        first_version=commit.version,
        time_ms=commit.timestamp_ms,
        operation=commit.operation,
        commits=1,
        events=_whole(metrics.get("numOutputRows")),
        size_bytes=_whole(metrics.get("numOutputBytes")),
        parameters={name: _value(value) for name, value in parameters.items()},
        user=info.get("userName"),
    )


def _merged(newer: CommitRow, older: CommitRow) -> CommitRow:
    """Return two rows as one; of their parameters only equal ones stay."""
    same = {n: v for n, v in newer.parameters.items() if older.parameters.get(n) == v}
    return newer.model_copy(
        update={
            "first_version": older.first_version,
            "commits": newer.commits + older.commits,
            "events": newer.events + older.events,
            "size_bytes": newer.size_bytes + older.size_bytes,
            "parameters": same,
        }
    )


def _value(text: Any) -> Any:
    """Return a parameter, which Delta keeps as JSON in a text."""
    if not isinstance(text, str):
        return text
    if len(text) > _SHOWN_TEXT:
        return f"{text[:_SHOWN_TEXT]}..."
    try:
        return json.loads(text)
    except ValueError:
        return text


def _whole(text: Any) -> int:
    return int(text) if isinstance(text, (int, str)) and str(text).isdigit() else 0
