"""``--help`` of every job teaches: what, when, examples that work, exit status, and what never."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.harness.launch_lines import JOBS, REPOSITORY, SCHEDULED, entry_points, job_of

SECTIONS = [
    "What it does:",
    "When to run it:",
    "Examples:",
    "What it never does:",
    "Options:",
    "Exit status:",
]


def shown(job: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        JOBS[job].parse(["--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("job", JOBS)
def test_help_has_every_section_in_order(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(job, capsys).splitlines()
    assert [line for line in lines if line in SECTIONS] == SECTIONS
    assert max(len(line) for line in lines) <= 100
    never = lines.index("What it never does:")
    assert lines[never + 1].startswith("  It never ")


@pytest.mark.parametrize("job", JOBS)
def test_every_example_of_the_help_is_accepted(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = re.sub(r" \\\n +", " ", shown(job, capsys))
    lines = [shlex.split(line) for line in re.findall(r"^  (python -m .*)$", text, re.MULTILINE)]
    found = [job_of(words) for words in lines]
    assert len(found) >= 3
    assert {name for name, _ in found} == {"maintenance" if job in SCHEDULED else job}
    assert found[0][1].dry_run, "the first example changes nothing"


@pytest.mark.parametrize("job", JOBS)
def test_exit_statuses_of_the_help_are_those_of_the_page(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (REPOSITORY / "docs/scaling.md").read_text().partition("### How a job ends")[2]
    documented = re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)
    told = re.findall(r"^  (\d+)  ", shown(job, capsys).partition("Exit status:")[2], re.MULTILINE)
    assert told == documented == ["0", "1", "2", "130"]


@pytest.mark.parametrize("job", JOBS)
def test_pages_that_the_help_names_exist(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    pages = set(re.findall(r"docs/[\w-]+\.md", shown(job, capsys)))
    assert len(pages) >= 2
    assert all((REPOSITORY / page).is_file() for page in pages)


@pytest.mark.parametrize("way", ["module", "file", "command"])
@pytest.mark.parametrize("job", JOBS)
def test_each_way_to_a_job_shows_the_same_help_and_its_own_name(
    job: str,
    way: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = f"pravega-spark-{job.replace('_', '-')}"
    (tmp_path / command).write_text(
        f"from pravega_spark.jobs.entry_points import {job}\n{job}()\n"  # as pip writes it
    )
    file, name = {
        "module": (None, f"python -m pravega_spark.jobs.{job}"),
        "file": (REPOSITORY / "jobs" / f"{job}.py", f"{job}.py"),
        "command": (tmp_path / command, command),
    }[way]

    def run(*words: str) -> int | str | None:
        monkeypatch.setattr(sys, "argv", [str(file), *words])
        start = partial(runpy.run_path, str(file))
        if file is None:
            monkeypatch.delitem(sys.modules, f"pravega_spark.jobs.{job}", raising=False)
            start = partial(runpy.run_module, f"pravega_spark.jobs.{job}", alter_sys=True)
        with pytest.raises(SystemExit) as end:
            start(run_name="__main__")
        return end.value.code

    assert run("--help") == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first.startswith(f"Usage: {name} [OPTIONS]")
    assert rest == shown(job, capsys).partition("\n")[2]
    assert run() == 2
    assert f"Try '{name} --help' for help." in capsys.readouterr().err


def test_every_job_has_a_file_and_an_entry_point() -> None:
    files = {path.stem for path in Path(REPOSITORY, "jobs").glob("*.py")}
    assert files == set(JOBS)
    assert {name for name in entry_points() if name.startswith("pravega-spark-")} == {
        f"pravega-spark-{job.replace('_', '-')}" for job in JOBS
    }
