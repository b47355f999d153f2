"""The table of faults cannot rot unseen: each has its place, and tests that can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.faults import FAULTS, NOT_SHOWN, Fault

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.promise)
def test_text_of_a_fault_is_in_its_file_once_and_the_faulty_file_compiles(fault: Fault) -> None:
    source = fault.read(ROOT)
    faulty = fault.placed_in(source)
    assert faulty != source
    compile(faulty, str(fault.path), "exec")


def test_each_promise_is_named_once() -> None:
    promises = [fault.promise for fault in FAULTS]
    assert len(set(promises)) == len(promises)


def test_tests_of_all_faults_exist() -> None:
    named = {test for fault in FAULTS for test in fault.tests}
    for test in named:
        file, _, name = test.partition("::")
        assert name in (ROOT / "tests" / file).read_text(), test
    assert all(fault.tests for fault in FAULTS)


def test_faults_that_no_history_shows_are_in_the_table_and_have_one_reason() -> None:
    named = [promise for promises in NOT_SHOWN.values() for promise in promises]
    assert len(set(named)) == len(named)
    assert set(named) <= {fault.promise for fault in FAULTS}
