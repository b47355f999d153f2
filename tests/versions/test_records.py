"""The tables of docs/compatibility.md are what the records of runs with other versions say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.spark_environments import LOWEST, SPARKS
from tests.versions import records
from tests.versions.__main__ import contract, outcome
from tests.versions.records import Record, load, take, written

RECORD = Record(
    name="4.9",
    part="spark",
    day="2026-01-02",
    commit="abc",
    versions={"pyspark": "4.9.1", "delta": "", "python": "3.11.7", "java": "17", "numpy": "2"},
    passed={"batch": 2, "jobs": 1},
)
ROW = "| 4.9.1 | none | 3.11.7 | 17 | none | 2 | 3 on 2026-01-02 (abc) |\n"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.spark.test_two_words" name="a"/>
<testcase classname="tests.unit.engine.test_x.TestY" name="b"/>
<testcase classname="tests.spark.test_two_words" name="c"><skipped/></testcase>
<testcase classname="" name="tests.unit.test_none"><skipped/></testcase>
</testsuite></testsuites>"""


def test_page_is_made_from_the_records() -> None:
    text = records.PAGE.read_text(encoding="utf-8")
    assert written(text, load()) == text


def test_every_spark_has_passed_the_contract() -> None:
    expected = {name: spark.pyspark for name, spark in {**SPARKS, "lowest": LOWEST}.items()}
    kept = {each.name: each for each in load() if each.part == "spark"}
    assert {name: each.versions["pyspark"] for name, each in kept.items()} == expected
    passed = {name: sum(each.passed.values()) for name, each in kept.items()}
    assert all(count >= 60 for name, count in passed.items() if name != "3.5"), passed
    assert passed["3.5"] >= 20


def test_lowest_versions_and_every_python_have_passed_the_light_tests() -> None:
    kept = {each.name: each for each in load() if each.part == "light"}
    assert kept.keys() == {"lowest", "python3.10", "python3.12", "python3.13"}
    assert all(sum(each.passed.values()) >= 5_000 for each in kept.values())


def test_no_record_is_of_changed_code() -> None:
    assert [each.name for each in load() if each.commit.endswith("-dirty")] == []


def test_record_replaces_that_of_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept, page = tmp_path / "records.json", tmp_path / "page.md"
    kept.write_text("[]\n")
    page.write_text(records.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(records, "KEPT", kept)
    monkeypatch.setattr(records, "PAGE", page)
    take(RECORD)
    take(Record(**{**vars(RECORD), "name": "4.10"}))
    take(Record(**{**vars(RECORD), "day": "2026-01-03"}))
    assert [(each.name, each.day) for each in load(kept)] == [
        ("4.9", "2026-01-03"),
        ("4.10", "2026-01-02"),
    ]
    assert page.read_text(encoding="utf-8").count(ROW) == 1


def test_areas_of_a_report_are_counted_without_what_was_skipped() -> None:
    assert outcome(REPORT) == (
        {"two words": 1, "unit": 1},
        ["test_two_words::c", "test_none::tests.unit.test_none"],
    )


def test_spark_has_the_tests_that_it_can_have() -> None:
    assert contract(SPARKS["4.0"]).marks == 'versions and not versions(since="4.1")'
    assert contract(SPARKS["4.1"]).marks == "versions"
    assert contract(SPARKS["4.3"]).marks == 'versions and not versions(needs="delta")'
    assert contract(SPARKS["3.5"]).marks == 'versions(since="3.5")'
