"""What ``make test`` says last of skipped tests, and what ``.ci/run`` does for missing packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.medium
SOME = """
import pytest
@pytest.mark.skipif(True, reason="strace is not installed (apt install strace)")
def test_traced(): pass
@pytest.mark.parametrize("number", range(5))
def test_long(number): pytest.skip("make long runs it")
@pytest.mark.xfail(strict=True)
def test_known(): assert False
def test_whole(): pass
"""
WHOLE = """
import pytest
nothing = pytest.importorskip("nothing_of_this_name", reason="no nothing (apt install nothing)")
"""


def _report(folder: Path, name: str, source: str) -> Path:
    """Let pytest run a file, and return its report."""
    file, report = folder / f"test_{name}.py", folder / f"{name}.xml"
    file.write_text(source)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-n1",
        "-c",
        os.devnull,
        "--rootdir",
        folder,
        file,
    ]
    subprocess.run([*command, f"--junitxml={report}"], stdout=subprocess.DEVNULL, check=False)
    return report


def _say(*reports: Path, needed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.harness.skipped_tests", *reports],
        cwd=ROOT,
        env={**os.environ, "PRAVEGA_SPARK_NEEDED_PACKAGES": needed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_skipped_tests_of_all_runs_are_told_by_reason_and_a_needed_package_fails(
    tmp_path: Path,
) -> None:
    reports = [_report(tmp_path, "some", SOME), _report(tmp_path, "whole", WHOLE)]
    done = _say(*reports)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "skipped tests: 7",
        "  5: make long runs it",
        "      test_some::test_long[0], test_some::test_long[1], test_some::test_long[2], "
        "and 2 more",
        "  1: no nothing (apt install nothing)",
        "      test_whole",
        "  1: strace is not installed (apt install strace)",
        "      test_some::test_traced",
    ]
    assert _say(*reports, needed="chromium").returncode == 0
    failed = _say(*reports, needed="chromium strace nothing")
    assert (failed.returncode, failed.stdout) == (1, done.stdout)
    assert "(apt install strace nothing)" in failed.stderr


def test_a_run_that_skips_nothing_says_so(tmp_path: Path) -> None:
    done = _say(_report(tmp_path, "one", "def test_whole(): pass"), needed="chromium strace")
    assert (done.returncode, done.stdout) == (0, "no test was skipped\n")


def _program(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


_MADE = [f"make {goal} for chromium strace" for goal in ("test", "extended", "coverage")]


def _ci_run(folder: Path, *present: str, apt: str | None) -> list[str]:
    """Return what ``.ci/run`` does on a machine with these programs: calls of apt-get and make."""
    programs, log = folder / "programs", folder / "log"
    programs.mkdir()
    for name in ("bash", "dirname", "env", "timeout"):
        (programs / name).symlink_to(shutil.which(name) or "")
    _program(programs, "id", "echo 0")
    _program(programs, "make", f'echo "make $* for $PRAVEGA_SPARK_NEEDED_PACKAGES" >> {log}')
    if apt is not None:
        _program(programs, "apt-get", f'echo "apt-get $*" >> {log}; {apt}')
    for name in present:
        _program(programs, name, "")
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    subprocess.run([folder / ".ci/run"], env={"PATH": str(programs)}, check=True, timeout=300)
    return log.read_text().splitlines()


def test_ci_installs_what_is_missing_and_runs_the_tests(tmp_path: Path) -> None:
    update, install, *made = _ci_run(tmp_path, "chromium", apt="true")
    assert update.startswith("apt-get ")
    assert update.endswith(" update")
    assert install.endswith(" install -y --no-install-recommends strace")
    assert made == _MADE


@pytest.mark.parametrize("apt", ["exit 100", None], ids=["fails", "absent"])
def test_ci_that_can_install_nothing_runs_the_tests_and_fails_if_one_is_skipped(
    tmp_path: Path, apt: str | None
) -> None:
    assert _ci_run(tmp_path, apt=apt)[-3:] == _MADE


def test_ci_with_all_programs_installs_nothing(tmp_path: Path) -> None:
    assert _ci_run(tmp_path, "chromium", "strace", apt="true") == _MADE
