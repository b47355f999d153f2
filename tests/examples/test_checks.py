"""The demo's checks find every kind of fault."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from flights.checks import (
    Finding,
    every_event_once,
    every_key_in_order,
    exactly_unread_kept,
    same_table,
)

KEYS = ("UA", "AA")
EVENTS = 12
CLOSING: dict[str, object] = {
    "segment_id": 2, "offset": 0, "key": None, "row": None, "sequence": None, "digest": 99,
}  # fmt: skip
SCHEMA = pa.schema(
    {
        "segment_id": pa.int64(),
        "offset": pa.int64(),
        "key": pa.string(),
        "row": pa.int64(),
        "sequence": pa.int64(),
        "digest": pa.int64(),
    }
)

Row = dict[str, object]


def events() -> list[Row]:
    """Alternating events of two keys, each in its own segment."""
    return [
        {
            "segment_id": row % 2,
            "offset": row // 2,
            "key": KEYS[row % 2],
            "row": row + 1,
            "sequence": row // 2 + 1,
            "digest": 1_000 + row,
        }
        for row in range(EVENTS)
    ]


def source() -> pa.Table:
    return pa.Table.from_pylist(events(), SCHEMA).select(["row", "key", "digest"])


def stream(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def lose(rows: list[Row]) -> list[Row]:
    return rows[:-1]


def repeat(rows: list[Row]) -> list[Row]:
    return [*rows, {**rows[4], "offset": 6}]


def invent(rows: list[Row]) -> list[Row]:
    return [*rows, {**rows[4], "offset": 6, "row": 1_000}]


def change(rows: list[Row]) -> list[Row]:
    return [{**row, "digest": 1} if row["row"] == 5 else row for row in rows]


def change_key(rows: list[Row]) -> list[Row]:
    return [{**row, "key": "DL"} if row["row"] == 5 else row for row in rows]


def lose_one_repeat_one(rows: list[Row]) -> list[Row]:
    """Keep the number of events."""
    lost = dict(rows[6])
    return [{**rows[4], "offset": lost["offset"]} if row == lost else row for row in rows]


def swap(rows: list[Row]) -> list[Row]:
    """Swap two events of one key."""
    first, second = dict(rows[4]), dict(rows[6])
    first["offset"], second["offset"] = second["offset"], first["offset"]
    return [*rows[:4], first, rows[5], second, *rows[7:]]


def leave_gap(rows: list[Row]) -> list[Row]:
    return [{**row, "offset": 100} if row["row"] == EVENTS else row for row in rows]


def test_what_was_written_passes() -> None:
    found = stream([*events(), CLOSING])
    assert every_event_once(source(), found, closing=1).held
    assert every_key_in_order(found).held


def test_order_in_which_the_stream_is_read_does_not_matter() -> None:
    found = stream([CLOSING, *reversed(events())])
    assert every_event_once(source(), found, closing=1).held
    assert every_key_in_order(found).held


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (lose, "1 lost (row 12)"),
        (repeat, "1 more than once (row 5)"),
        (invent, "1 not in the source (row 1000)"),
        (change, "1 changed (row 5)"),
        (change_key, "1 changed (row 5)"),
        (lose_one_repeat_one, "1 lost (row 7); 1 more than once (row 5)"),
        (lambda rows: rows[:0], "12 lost (row 1, 2, 3, ...)"),
    ],
)
def test_fault_of_delivery_is_found(fault: Callable[[list[Row]], list[Row]], says: str) -> None:
    finding = every_event_once(source(), stream([*fault(events()), CLOSING]), closing=1)
    assert not finding.held
    assert finding.detail == says


@pytest.mark.parametrize("closing", [0, 2])
def test_wrong_number_of_closing_events_is_found(closing: int) -> None:
    found = stream([*events(), *[CLOSING] * closing])
    assert not every_event_once(source(), found, closing=1).held


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (swap, "1 after a later one of their key (number 3)"),
        (leave_gap, "1 gaps or repeats among the offsets"),
        (repeat, "1 after a later one of their key (number 3)"),
    ],
)
def test_fault_of_order_is_found(fault: Callable[[list[Row]], list[Row]], says: str) -> None:
    finding = every_key_in_order(stream(fault(events())))
    assert not finding.held
    assert finding.detail == says


def test_key_that_moves_to_a_successor_segment_stays_in_order() -> None:
    successor = 1 << 32 | 7
    moved = [
        {**row, "segment_id": successor, "offset": int(str(row["offset"])) - 3}
        if row["segment_id"] == 0 and int(str(row["offset"])) >= 3
        else row
        for row in events()
    ]
    assert every_key_in_order(stream(moved)).held


def retained(rows: list[Row], reported: tuple[int, int] = (9, 4)) -> Finding:
    """The finding if rows 9 to 12 are unread and these rows are left."""
    before = stream([*events()[:8], CLOSING, *events()[8:]])
    return exactly_unread_kept(before, stream(rows), pa.chunked_array([[9, 10, 11, 12]]), reported)


def test_stream_that_keeps_exactly_the_unread_events_passes() -> None:
    finding = retained(events()[8:])
    assert finding.held
    assert finding.detail == "9 consumed events deleted, 4 unread ones kept"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (events()[9:], "0 unexpected rows, 1 missing, such as segment_id 0, offset 4, "),
        (events()[7:], "1 unexpected rows, 0 missing, such as segment_id 1, offset 3, "),
        ([CLOSING, *events()[8:]], "1 unexpected rows, 0 missing"),
        (leave_gap(events())[8:], "1 unexpected rows, 1 missing"),
        ([], "0 unexpected rows, 4 missing"),
    ],
)
def test_deleted_unread_event_or_a_kept_consumed_one_is_found(rows: list[Row], says: str) -> None:
    finding = retained(rows)
    assert not finding.held
    assert finding.detail.startswith(says)


def test_wrong_counts_of_retention_are_found() -> None:
    finding = retained(events()[8:], reported=(8, 4))
    assert not finding.held
    assert "9 consumed events deleted" in finding.detail
    assert finding.detail.endswith("but retention reports 8 and 4")


def totals(*rows: tuple[str | None, int]) -> pa.Table:
    keys, counts = zip(*rows, strict=True)
    return pa.table({"key": pa.array(keys, pa.string()), "events": pa.array(counts, pa.int64())})


def test_equal_tables_match_in_any_order() -> None:
    expected = totals(("UA", 2), ("AA", 1))
    finding = same_table("aggregate_matches", totals(("AA", 1), ("UA", 2)), expected)
    assert finding.held
    assert finding.name == "aggregate_matches"


@pytest.mark.parametrize(
    ("computed", "says"),
    [
        (totals(("UA", 2)), "0 unexpected rows, 1 missing, such as key AA, events 1"),
        (
            totals(("UA", 2), ("AA", 1), ("AA", 1)),
            "1 unexpected rows, 0 missing, such as key AA, events 1",
        ),
        (
            totals(("UA", 2), ("AA", 1), (None, 1)),
            "1 unexpected rows, 0 missing, such as key None, events 1",
        ),
        (totals(("UA", 3), ("AA", 1)), None),
    ],
)
def test_missing_repeated_unexpected_or_wrong_row_is_found(
    computed: pa.Table, says: str | None
) -> None:
    finding = same_table("aggregate_matches", computed, totals(("UA", 2), ("AA", 1)))
    assert not finding.held
    assert says in (None, finding.detail)
