"""How the rows of a state table are distributed over files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.state.state_table import Rows, differences, rearrange
from pravega_spark.values.limits import STATE_TABLE_FILE_ROWS

LIMIT = 4


def rows(*names: str, value: int = 0) -> dict[str, Mapping[str, Any]]:
    return {name: {"name": name, "value": value} for name in names}


def after(
    files: Mapping[int, Rows], wanted: Rows, limit: int = LIMIT
) -> tuple[dict[int, Rows], dict[int, Rows]]:
    """The files after a change, and those of them that were written."""
    before = {key: row for part in files.values() for key, row in part.items()}
    written = rearrange(files, differences(before, wanted), limit)
    found = {n: part for n, part in {**files, **written}.items() if part}
    assert {key: row for part in found.values() for key, row in part.items()} == wanted
    assert sum(map(len, found.values())) == len(wanted), "each row is in one file"
    assert max(map(len, found.values()), default=0) <= limit
    return found, written


def test_small_table_stays_one_file() -> None:
    files, _ = after({}, rows("a"))
    files, written = after(files, rows("a", "b"))
    assert files == written == {0: rows("a", "b")}
    assert after(files, {}) == ({}, {0: {}})


def test_changed_row_is_written_with_few_others_and_a_file_that_is_too_long_is_split() -> None:
    old = {0: rows(*(f"n{i:05d}" for i in range(10 * STATE_TABLE_FILE_ROWS)))}
    files, _ = after(old, {**old[0], **rows("x")}, STATE_TABLE_FILE_ROWS)
    assert len(files) == 11
    held = {key: row for part in files.values() for key, row in part.items()}
    for change in ({**held, **rows("y")}, {**held, **rows("n00007", value=1)}):
        _, written = after(files, change, STATE_TABLE_FILE_ROWS)
        assert sum(map(len, written.values())) <= STATE_TABLE_FILE_ROWS
    fewer = {key: row for key, row in held.items() if key != "n00007"}
    _, written = after(files, fewer, STATE_TABLE_FILE_ROWS)
    assert sum(map(len, written.values())) <= 2 * STATE_TABLE_FILE_ROWS


@given(st.lists(st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.integers(-1, 2)))))
def test_no_row_is_lost_and_files_stay_few(
    steps: list[list[tuple[str, int]]],
) -> None:
    files: dict[int, Rows] = {}
    wanted: dict[str, Mapping[str, Any]] = {}
    for changes in steps:
        for name, value in changes:
            wanted.pop(name, None)
            if value >= 0:
                wanted.update(rows(name, value=value))
        files, _ = after(files, dict(wanted))
        assert len(files) <= max(1, 2 * len(wanted) // LIMIT + 2)
