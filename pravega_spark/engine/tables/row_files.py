"""Distribute the rows of a state table over files, so that a change rewrites few. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pravega_spark.limits import STATE_TABLE_FILE_ROWS

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
Changes = Mapping[str, Row | None]
"""Rows to put by key; None for a row to remove."""


def differences(before: Rows, rows: Rows) -> Changes:
    """Return the rows that turn ``before`` into ``rows``."""
    changes: dict[str, Row | None] = dict.fromkeys(before.keys() - rows.keys())
    for key, row in rows.items():
        known = before.get(key)
        if known is not row and known != row:
            changes[key] = row
    return changes


def rearrange(
    files: Mapping[int, Rows], changes: Changes, limit: int = STATE_TABLE_FILE_ROWS
) -> dict[int, Rows]:
    """Return the files to write so that the table has the changes; delete those that are empty.

    ``files`` holds the present rows of each file. New rows fill the file with the fewest rows.
    Files that are less than half full are merged.
    """
    changed = _changed(files, changes, limit)
    held = {key for old in files.values() for key in changes.keys() & old.keys()}
    fresh = {key: row for key, row in sorted(changes.items()) if row and key not in held}
    counts = {number: len(changed.get(number, old)) for number, old in files.items()}
    while fresh:
        number = min(counts, key=lambda n: (counts[n], n), default=0)
        if counts.get(number, 0) >= limit:
            number = _unused(counts)
        room = limit - counts.get(number, 0)
        taken = [(key, fresh.pop(key)) for key in list(fresh)[:room]]
        into = changed.setdefault(number, dict(files.get(number, {})))
        into.update(taken)
        counts[number] = len(into)
    _split(changed, counts, limit)
    _merge(changed, counts, files, limit)
    return dict(changed)


def _changed(files: Mapping[int, Rows], changes: Changes, limit: int) -> dict[int, dict[str, Row]]:
    """Return the files that are too long or have changed rows, with their remaining rows."""
    changed: dict[int, dict[str, Row]] = {}
    for number, old in files.items():
        if len(old) > limit:  # the only file of a table of an older format
            changed[number] = dict(old)
    for key, row in changes.items():
        holder = next((number for number, old in files.items() if key in old), None)
        if holder is None:
            continue
        remaining = changed.setdefault(holder, dict(files[holder]))
        if row is None:
            del remaining[key]
        else:
            remaining[key] = row
    return changed


def _split(changed: dict[int, dict[str, Row]], counts: dict[int, int], limit: int) -> None:
    """Split files that are too long."""
    for number, rows in list(changed.items()):
        keys = sorted(rows)
        for first in range(limit, len(keys), limit):
            part = _unused(counts)
            changed[part] = {key: rows.pop(key) for key in keys[first : first + limit]}
            counts[part] = len(changed[part])
        counts[number] = len(rows)


def _merge(
    changed: dict[int, dict[str, Row]],
    counts: dict[int, int],
    files: Mapping[int, Rows],
    limit: int,
) -> None:
    """Merge a changed file that is less than half full into the file with the fewest rows."""
    for number in sorted(changed, reverse=True):
        fewest = min((n for n in counts if n != number), key=lambda n: (counts[n], n), default=None)
        if not 0 < counts[number] < limit // 2 or fewest is None or counts[fewest] == 0:
            continue
        if counts[number] + counts[fewest] <= limit:
            into, out = sorted((number, fewest))
            both = {n: changed.get(n, dict(files.get(n, {}))) for n in (into, out)}
            changed[into], changed[out] = {**both[into], **both[out]}, {}
            counts[into], counts[out] = len(changed[into]), 0


def _unused(counts: Mapping[int, int]) -> int:
    return next(number for number in range(len(counts) + 1) if number not in counts)
