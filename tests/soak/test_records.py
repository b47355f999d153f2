"""The first table of docs/reliability.md is that of the records."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.sim.__main__ import record_of as of_seeds
from tests.sim.power.__main__ import record_of as of_power_cuts
from tests.sim.running import Result
from tests.soak import records
from tests.soak.__main__ import record_of
from tests.soak.records import BEGIN, END, PAGE, Record, load, thinned, written
from tests.soak.running import Outcome


def test_page_has_the_kept_records() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, load()) == page, "run python -m tests.soak.records"
    assert page.index(BEGIN) < page.index("| promise |")


def test_runs_of_a_kind_are_one_row_with_their_sums() -> None:
    one = Record("a", "2026-01-01", "c1", 0.5, {"calls": 1_000}, {"kill": 2})
    used = {"p.threads": [9.0, 4.0, 5.0, 6.0], "files": [1.0]}
    other = Record("a", "2026-01-02", "c2", 1.0, {"calls": 500}, {"pause": 1}, ["x: y"], used)
    page = written(f"above\n{BEGIN}old\n{END}below\n", [one, other])
    assert "| a | 1.5 | calls: 1,500 | kill: 2, pause: 1 | x: y | p.threads: 4, then 6 | " in page
    assert "| 2026-01-02, c2 |" in page
    assert page.startswith("above\n")
    assert page.endswith(f"{END}below\n")
    assert "old" not in page


def test_record_of_a_run_has_the_promises_that_it_broke() -> None:
    outcome = Outcome("s3", 1, minutes=30.0, calls=7, series={"files": [1.0, 2.0]})
    outcome.broken = ["/x/round-1.jsonl: order: of k\nagain: command /x/round-1.jsonl"]
    record = record_of(outcome, "c1", Path("/x"))
    assert (record.what, record.hours) == ("processes on S3", 0.5)
    assert record.broken == ["round-1.jsonl: order: of k"]
    assert record.used == {"files": [1.0, 2.0]}


def test_series_of_a_night_is_kept_in_sixteen_means() -> None:
    assert thinned([float(n) for n in range(32)]) == [2 * n + 0.5 for n in range(16)]
    assert thinned([1.0, 2.0]) == [1.0, 2.0]


def test_record_of_seeds_counts_their_calls_and_faults() -> None:
    covered = {"outcome write ok": 3, "outcome read fail": 2, "fault kill": 1, "pair a & b": 9}
    results = [Result(seed, calls=10, simulated_seconds=1_800, coverage=covered) for seed in (1, 2)]
    record = of_seeds(results, ["seed 1: once: twice\nagain"], "c1")
    assert (record.what, record.hours) == ("simulator (its own hours)", 1.0)
    assert record.done == {"seeds": 2, "calls": 10, "storage calls": 20}
    assert record.faults == {"kill": 2}
    assert record.broken == ["seed 1: once: twice"]


def test_record_of_power_cuts_counts_disks_and_names_what_one_lost() -> None:
    done = {"disks of ext4": 2, "disks of xfs": 1, "acknowledged calls before a cut": 99}
    record = of_power_cuts(5, done, 0.5, ["once: of k"], "c1")
    assert record.done == {"recorded runs": 5, **done}
    assert (record.faults, record.broken) == ({"power cut": 4}, ["once: of k"])


def test_run_of_a_tree_with_changes_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        named = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        subprocess.run(["git", *named, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "kept").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    monkeypatch.setattr(records, "REPOSITORY", tmp_path)
    monkeypatch.setattr(records, "KEPT", tmp_path / "records.json")
    monkeypatch.setattr(records, "PAGE", tmp_path / "page.md")
    (tmp_path / "records.json").write_text("[]")  # of the run before this one
    assert len(records.clean_commit()) == 8
    (tmp_path / "kept").write_text("2")
    with pytest.raises(records.NotKept, match="differs from its commit: kept"):
        records.clean_commit()
