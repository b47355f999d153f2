"""The wheel and the sdist hold what they need, nothing else, and the same bytes each time."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling import build

import pravega_spark

ROOT = Path(__file__).parents[2]
PACKAGES = ("pravega_spark/", "pyspark_pravega/", "pyspark_pravega_kvt/")
NAME = f"pravega_spark-{pravega_spark.__version__}"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, the sdist, and the sdist's files."""
    folder = tmp_path_factory.mktemp("dist")
    for build_one in (build.build_sdist, build.build_wheel):
        _build(build_one, ROOT, folder)
    with tarfile.open(folder / f"{NAME}.tar.gz") as sdist:
        sdist.extractall(folder, filter="data")
    return folder


def _build(build_one: object, source: Path, target: Path) -> Path:
    assert callable(build_one)
    before = Path.cwd()
    os.chdir(source)  # where PEP 517 has a build's source
    try:
        return target / str(build_one(str(target)))
    finally:
        os.chdir(before)


def _source_files() -> set[str]:
    """The files of this checkout that git does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout knows which files are sources")
    command = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.mark.medium
def test_wheel_has_the_files_of_the_packages_and_nothing_else(dist: Path) -> None:
    with ZipFile(dist / f"{NAME}-py3-none-any.whl") as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = wheel.read(f"{NAME}.dist-info/METADATA").decode()
    assert "pravega_spark/py.typed" in found
    assert found == {name for name in _source_files() if name.startswith(PACKAGES)}
    assert "License-Expression: Apache-2.0" in metadata
    assert {"License-File: LICENSE", "License-File: NOTICE"} <= set(metadata.splitlines())
    assert "# pravega_spark" in metadata  # the README is its description


def test_trial_names_the_pythons_that_are_missing_and_what_the_owner_has_to_give(
    dist: Path,
) -> None:
    """``make dist`` runs it without a version: then it tries each Python that the package names."""
    command = (ROOT / ".ci/try-dist", dist, "3.98", "3.99")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "this machine lacks them: Python 3.98 3.99\n" in done.stderr
    assert "no Python was found to try the files with\n" in done.stderr
    project = (ROOT / "pyproject.toml").read_text()
    for field in ("maintainers", "urls"):
        (given,) = re.findall(rf"^{field} = (.+)$", project, re.MULTILINE)
        is_empty = given in ("[]", "{}")
        assert (f"pyproject.toml has no {field}" in done.stderr) is is_empty


def test_sdist_has_every_file_that_git_does_not_ignore(dist: Path) -> None:
    with tarfile.open(dist / f"{NAME}.tar.gz") as sdist:
        found = {name.removeprefix(f"{NAME}/") for name in sdist.getnames()}
    assert found == _source_files() | {"PKG-INFO"}


@pytest.mark.medium
def test_builds_of_other_copies_at_other_times_have_the_same_bytes(dist: Path) -> None:
    again = dist / "again"
    again.mkdir()
    (dist / NAME / "PKG-INFO").unlink()  # a checkout has none
    for path in (dist / NAME).rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    for build_one, name in (
        (build.build_wheel, f"{NAME}-py3-none-any.whl"),
        (build.build_sdist, f"{NAME}.tar.gz"),
    ):
        assert _build(build_one, dist / NAME, again).name == name
        assert (again / name).read_bytes() == (dist / name).read_bytes(), name
