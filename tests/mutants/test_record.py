"""The page says of each fault what the record says, and the record has each fault of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import record
from tests.mutants.faults import FAULTS, Fault
from tests.mutants.simulated import Shown


def test_page_has_what_the_record_says() -> None:
    page = record.PAGE.read_text(encoding="utf-8")
    assert record.written(page, record.kept()) == page


def test_record_has_only_faults_of_the_table() -> None:
    assert {*record.kept()} <= {fault.promise for fault in FAULTS}


def test_page_names_each_fault() -> None:
    page = record.PAGE.read_text(encoding="utf-8")
    assert [fault.promise for fault in FAULTS if f"| {fault.promise} |" not in page] == []


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of its own, which is empty."""
    monkeypatch.setattr(record, "KEPT", tmp_path / "record.json")


@pytest.mark.usefixtures("other")
def test_what_is_found_is_kept_one_fault_at_a_time() -> None:
    first, second = FAULTS[:2]
    shown = next(fault for fault in FAULTS if record.may_show(fault))
    record.keep_tests(second, "caught", "tests/b.py::test_b")
    record.keep_tests(first, "caught", "tests/a.py::test_a")
    record.keep_shown(Shown(shown, "caught", "", 7, "exists exactly once", 2, 9))
    rows = record.kept()
    assert {*rows} == {first.promise, second.promise, shown.promise}
    assert rows[shown.promise]["simulator"]["seed"] == 7
    absent = record.lacking(FAULTS, "simulator")
    assert shown not in absent
    assert len(absent) == sum(map(record.may_show, FAULTS)) - 1
    assert len(record.lacking(FAULTS, "tests")) == len(FAULTS) - 2


@pytest.mark.usefixtures("other")
def test_row_of_a_fault_that_is_gone_is_dropped() -> None:
    gone = Fault("a promise of the past", "__init__.py", "a", "b", ("test_a.py",))
    record.keep_tests(gone, "caught", "tests/a.py::test_a")
    assert record.kept() == {}
