"""Checks of the stream and the table against the source.

Each check takes Arrow tables and returns a Finding, so that tests can pass it a stream with a lost,
repeated, changed or misplaced event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

EXAMPLES = 3
"""How many faulty events a finding names."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Finding:
    """The result of a check: whether it held, and a detail to print in either case."""

    name: str
    held: bool
    detail: str


def every_event_once(source: pa.Table, stream: pa.Table, *, closing: int = 0) -> Finding:
    """Check that the stream has each row of the source once, byte for byte, and no other event.

    ``source`` has the columns row, key and digest (of the event's bytes). ``stream`` has them, too;
    the ``closing`` events that end the stream have a null row.
    """
    found = stream.filter(pc.is_valid(stream["row"]))
    rows, times = np.unique(_numbers(found["row"]), return_counts=True)
    expected = _numbers(source["row"])
    assert len(np.unique(expected)) == len(expected), "the source has a row number twice"
    once = found.filter(pc.is_in(found["row"], value_set=pa.array(rows[times == 1])))
    faults = {
        "lost": np.setdiff1d(expected, rows),
        "more than once": rows[times > 1],
        "not in the source": np.setdiff1d(rows, expected),
        "changed": _changed(source, once),
    }
    others = stream.num_rows - found.num_rows
    details = [_count(what, at, "row") for what, at in faults.items() if len(at)]
    if others != closing:
        details.append(f"{others} events without a row, not {closing}")
    held = not details
    return Finding(
        "exactly_once", held, "; ".join(details) or f"{len(expected):,} events, each once"
    )


def every_key_in_order(stream: pa.Table) -> Finding:
    """Check that offsets have no gap and that the events of each key are in order.

    ``stream`` has the columns segment_id, offset, key and sequence. A key's segments follow each
    other in the order of their ids, since an id starts with the creation epoch.
    """
    order = [("segment_id", "ascending"), ("offset", "ascending")]
    stream = stream.take(pc.sort_indices(stream, order))
    details = []
    before, after = _steps(stream["segment_id"], stream["offset"])
    if gaps := np.count_nonzero(after != before + 1):
        details.append(f"{gaps:,} gaps or repeats among the offsets")
    counted = stream.filter(pc.is_valid(stream["sequence"]))
    before, after = _steps(counted["key"], counted["sequence"])
    if len(misplaced := after[after < before]):
        details.append(_count("after a later one of their key", misplaced, "number"))
    segments = len(stream["segment_id"].unique())
    keys = len(counted["key"].unique())
    return Finding(
        "in_order", not details, "; ".join(details) or f"{keys:,} keys in {segments} segments"
    )


def same_table(name: str, computed: pa.Table, expected: pa.Table) -> Finding:
    """Check that two tables have the same rows, each equally often, to the last digit."""
    assert computed.column_names == expected.column_names, "the tables have different columns"
    columns = expected.column_names
    sides = [
        table.append_column("copies", pa.array(np.full(table.num_rows, copies)))
        for table, copies in ((computed.cast(expected.schema), 1), (expected, -1))
    ]
    counts = pa.concat_tables(sides).group_by(columns).aggregate([("copies", "sum")])
    wrong = counts.filter(pc.not_equal(counts["copies_sum"], 0))
    if wrong.num_rows == 0:
        return Finding(name, True, f"{expected.num_rows:,} rows, each the same")
    more = pc.sum(pc.greater(wrong["copies_sum"], 0)).as_py()
    first = ", ".join(f"{column} {wrong[column][0].as_py()}" for column in columns)
    return Finding(
        name,
        False,
        f"{more:,} unexpected rows, {wrong.num_rows - more:,} missing, such as {first}",
    )


def exactly_unread_kept(
    before: pa.Table, after: pa.Table, unread: pa.ChunkedArray, reported: tuple[int, int]
) -> Finding:
    """Check that retention deleted what was consumed, moved nothing else, and counted correctly.

    ``before`` and ``after`` have the columns segment_id, offset, row and digest. ``unread`` are the
    rows that no subscriber has consumed. ``reported`` are retention's own counts of deleted and of
    kept events.
    """
    name, columns = "retention_exact", ["segment_id", "offset", "row", "digest"]
    expected = before.filter(pc.is_in(before["row"], value_set=unread)).select(columns)
    found = same_table(name, after.select(columns), expected)
    if not found.held:
        return found
    counts = before.num_rows - after.num_rows, after.num_rows
    detail = "{:,} consumed events deleted, {:,} unread ones kept".format(*counts)
    if counts != reported:
        detail += "; but retention reports {:,} and {:,}".format(*reported)
    return Finding(name, counts == reported, detail)


def _changed(source: pa.Table, once: pa.Table) -> Numbers:
    columns = ["row", "key", "digest"]
    both = once.select(columns).join(
        source.select(columns), "row", join_type="inner", right_suffix=" of source"
    )
    differs = pc.or_(
        pc.not_equal(both["digest"], both["digest of source"]),
        pc.not_equal(both["key"], both["key of source"]),
    )
    return _numbers(both.filter(pc.fill_null(differs, True))["row"])


def _steps(groups: pa.ChunkedArray, values: pa.ChunkedArray) -> tuple[Numbers, Numbers]:
    """Return pairs of neighbours: each value's predecessor in its group, and the value."""
    codes = pc.dictionary_encode(groups).combine_chunks().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    codes, numbers = codes[order], _numbers(values)[order]
    inside = codes[1:] == codes[:-1]
    return numbers[:-1][inside], numbers[1:][inside]


def _numbers(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _count(what: str, at: Iterable[int], unit: str) -> str:
    at = list(at)
    examples = ", ".join(str(number) for number in at[:EXAMPLES])
    return f"{len(at):,} {what} ({unit} {examples}{', ...' if len(at) > EXAMPLES else ''})"
