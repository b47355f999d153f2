"""Decide which small files of a stream's history become one file. Pure.

Files of one kind of record lie in the order in which they were appended. Their tier is the number
of hexadecimal digits of their rows. Neighbours of a tier, and smaller files between them, are
merged when there are 16 of them and the result is of a higher tier. So a row is written once more
for each tier, and the number of files grows with the logarithm of the rows, until files are large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.file_index import rows_of
from pravega_spark.engine.staging_folder import staged_version
from pravega_spark.limits import HISTORY_FILE_BYTES, HISTORY_MERGE_FILES

ORDER_TAG = "staged"
"""Tag of a merged file: the version at which the newest of its files was staged."""

_TIER_BITS = 4
_TIERS = 16


@dataclass(frozen=True, slots=True)
class _Unit:
    """Neighbouring files that are one file after the merge."""

    files: tuple[Add, ...]
    rows: int
    size: int

    @property
    def tier(self) -> int:
        return (self.rows.bit_length() - 1) // _TIER_BITS

    @property
    def is_full(self) -> bool:
        return 2 * self.size >= HISTORY_FILE_BYTES


def order_of(add: Add) -> int:
    """Return the position of a file among those of its kind: what was appended later is higher."""
    tag = (add.tags or {}).get(ORDER_TAG)
    return int(tag) if tag is not None else staged_version(add.path) or 0


def in_order(adds: Iterable[Add]) -> list[Add]:
    """Return files in the order in which their rows were appended.

    Only the two oldest files may have the same version, which their times then order.
    """
    return sorted(adds, key=lambda add: (order_of(add), add.modified_ms))


def plan_merges(adds: Sequence[Add]) -> list[tuple[Add, ...]]:
    """Return the groups of neighbours that each become one file; ``adds`` are in order."""
    units = [_Unit((add,), rows_of(add), add.size) for add in adds]
    for tier in range(_TIERS):
        units = list(_merged_up_to(tier, units))
    return [unit.files for unit in units if len(unit.files) > 1]


def _merged_up_to(tier: int, units: Iterable[_Unit]) -> Iterator[_Unit]:
    """Yield the units after merging those of a tier and below."""
    for is_low, run in groupby(units, lambda unit: unit.tier <= tier and not unit.is_full):
        if not is_low:
            yield from run
            continue
        piece: list[_Unit] = []
        rows = size = 0
        for unit in run:
            piece.append(unit)
            rows, size = rows + unit.rows, size + unit.size
            if size >= HISTORY_FILE_BYTES:
                yield _joined(piece, rows, size)
                piece, rows, size = [], 0, 0
        joined = _joined(piece, rows, size)
        if len(piece) >= HISTORY_MERGE_FILES and joined.tier > tier:
            yield joined
        else:
            yield from piece


def _joined(units: Iterable[_Unit], rows: int, size: int) -> _Unit:
    return _Unit(tuple(add for unit in units for add in unit.files), rows, size)
