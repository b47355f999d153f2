"""How the rows of a state table are shared out over files, so that a change rewrites few. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
Rows = Mapping[str, Row]

FILE_ROWS = 512
"""A table of no more rows is one file. A change costs what this many rows cost, at most twice."""


def rearrange(
    files: Mapping[int, Rows], before: Rows, rows: Rows, limit: int = FILE_ROWS
) -> dict[int, Rows]:
    """Return the files that must be written for a table to hold these rows; an empty one is gone.

    ``before`` are the present rows, ``files`` those of each file. A new row fills up the file with
    the fewest rows; of files that are less than half full, two become one.
    """
    changed = _changed(files, before, rows, limit)
    fresh = sorted(rows.keys() - before.keys())
    counts = {number: len(changed.get(number, old)) for number, old in files.items()}
    while fresh:
        number = min(counts, key=lambda n: (counts[n], n), default=0)
        if counts.get(number, 0) >= limit:
            number = _unused(counts)
        room = limit - counts.get(number, 0)
        taken, fresh = fresh[:room], fresh[room:]
        into = changed.setdefault(number, dict(files.get(number, {})))
        into.update((key, rows[key]) for key in taken)
        counts[number] = len(into)
    _split(changed, counts, limit)
    _merge(changed, counts, files, limit)
    return dict(changed)


def _changed(
    files: Mapping[int, Rows], before: Rows, rows: Rows, limit: int
) -> dict[int, dict[str, Row]]:
    """Return the files that are too long or of which rows changed, with the rows that are left."""
    changed: dict[int, dict[str, Row]] = {}
    for number, old in files.items():
        if len(old) > limit:  # the only file of a table from before there were several
            changed[number] = dict(old)
    other = [k for k, r in before.items() if (now := rows.get(k)) is not r and now != r]
    for key in other:
        number = next(number for number, old in files.items() if key in old)
        left = changed.setdefault(number, dict(files[number]))
        if key in rows:
            left[key] = rows[key]
        else:
            del left[key]
    return changed


def _split(changed: dict[int, dict[str, Row]], counts: dict[int, int], limit: int) -> None:
    """Cut files that are too long into several."""
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
