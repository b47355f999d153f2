"""Merges sorted rows, a few megabytes at a time: a base with its changes, and runs of changes.

Keys are compared as ``folded_rows`` orders them. Rows of one input have different keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.key_value.folded_rows import (
    SortKey,
    first_key,
    joined_rows,
    keys_of,
    last_key,
    position,
)

_FEW: Final = 8
"""A merge with so many times fewer changes looks up their places; otherwise it sorts all rows."""


class RowCursor:
    """Sorted rows that are taken from the front, up to a key."""

    def __init__(self, parts: Iterable[pa.Table]) -> None:
        """Take the parts in order; they are read when they are needed."""
        self._parts = iter(parts)
        self._rest: pa.Table | None = None

    def _fill(self) -> pa.Table | None:
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(self._parts, None)
            if self._rest is None:
                return None
        return self._rest

    def first(self) -> SortKey | None:
        """Return the key of the first row; None at the end."""
        rows = self._fill()
        return None if rows is None else first_key(rows)

    def last_at_hand(self) -> SortKey | None:
        """Return the last key of the part at hand; None at the end."""
        rows = self._fill()
        return None if rows is None else last_key(rows)

    def take(self, key: SortKey, *, through: bool) -> pa.Table | None:
        """Take the rows of the part at hand below a key, or ``through`` it; None for no rows."""
        rows = self._fill()
        if rows is None:
            return None
        last = last_key(rows)
        if last < key or (through and last == key):
            self._rest = None
            return rows
        count = position(keys_of(rows), key, after=through)
        if not count:
            return None
        self._rest = rows.slice(count)
        return rows.slice(0, count)

    def until(self, key: SortKey | None, *, through: bool = False) -> Iterator[pa.Table]:
        """Take all rows below a key, or ``through`` it, part by part; None: to the end."""
        while True:
            if key is None:
                rows, self._rest = self._fill(), None
            else:
                rows = self.take(key, through=through)
            if rows is None:
                return
            yield rows


def with_changes(base: Iterable[pa.Table], changes: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of a base after changes: a change replaces its key's row, or removes it."""
    left, right = RowCursor(base), RowCursor(changes)
    while True:
        first, second = left.last_at_hand(), right.last_at_hand()
        if first is None:
            yield from (present(rows) for rows in right.until(None))
            return
        if second is None:
            yield from left.until(None)
            return
        bound = min(first, second)
        rows, changed = left.take(bound, through=True), right.take(bound, through=True)
        if rows is None or changed is None:
            yield present(changed) if changed is not None else rows
        else:
            yield _changed(rows, changed)


def present(changes: pa.Table) -> pa.Table:
    """Return the changes that set a value."""
    if not changes.column("value").null_count:
        return changes
    return changes.filter(changes.column("value").is_valid())


def newest(rows: pa.Table) -> pa.Table:
    """Return the newest change of each key, sorted by key."""
    rows = rows.combine_chunks()
    order = [("k", "ascending"), ("segment_id", "ascending"), ("offset", "ascending")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()
    return rows.filter(mask(_is_last(keys_of(rows))))


def merged_runs(runs: Sequence[Iterable[pa.Table]]) -> Iterator[pa.Table]:
    """Yield the newest change of each key of several runs, in which it may be more than once."""
    cursors = [RowCursor(run) for run in runs]
    while True:
        lasts = [last for cursor in cursors if (last := cursor.last_at_hand()) is not None]
        if not lasts:
            return
        bound = min(lasts)
        taken = (cursor.take(bound, through=True) for cursor in cursors)
        yield newest(pa.concat_tables([rows for rows in taken if rows is not None]))


def _changed(base: pa.Table, changes: pa.Table) -> pa.Table:
    """Return sorted rows after sorted changes of the same range of keys."""
    together = joined_rows([base, changes])
    keys, own = keys_of(base), keys_of(changes)
    if len(own) * _FEW < len(keys):
        order, is_kept = _placed(keys, own)
    else:
        order = numbers(pc.sort_indices(keys_of(together))).astype(np.int64)  # it is stable
        is_kept = _is_last(keys_of(together).take(pa.array(order)))
    valid = np.ones(len(order), np.bool_)
    values = changes.column("value")
    if values.null_count:
        removed = ~np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        is_change = order >= len(keys)
        valid[is_change] = ~removed[order[is_change] - len(keys)]
    return together.take(pa.array(order[is_kept & valid]))


def _placed(keys: pa.Array, own: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the order of both, the few keys of ``own`` in their places, and which rows stay."""
    from bisect import bisect_left

    if pa.types.is_integer(keys.type):
        base, few = numbers(keys), numbers(own)
        places = np.searchsorted(base, few)
        equal = base[np.minimum(places, len(base) - 1)] == few
    else:
        known, wanted = keys.to_pylist(), own.to_pylist()
        places = np.fromiter((bisect_left(known, key) for key in wanted), np.int64, len(wanted))
        found = zip(places.tolist(), wanted, strict=True)
        equal = np.fromiter(
            (at < len(known) and known[at] == key for at, key in found), np.bool_, len(wanted)
        )
    order = np.insert(np.arange(len(keys)), places, len(keys) + np.arange(len(own)))
    is_kept = np.ones(len(order), np.bool_)
    is_replaced = np.zeros(len(keys) + 1, np.bool_)
    is_replaced[places[equal]] = True
    is_base = order < len(keys)
    is_kept[is_base] = ~is_replaced[order[is_base]]
    return order, is_kept


def _is_last(keys: pa.Array) -> NDArray[np.bool_]:
    """Return for each of sorted keys whether the next one differs."""
    found = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        differs: Any = pc.not_equal(keys[:-1], keys[1:])
        found[:-1] = np.asarray(differs.to_numpy(zero_copy_only=False), np.bool_)
    return found
