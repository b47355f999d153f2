"""Runs tests with other versions of Spark, of Python and of libraries, and keeps what passed.

A run in which every test passes makes a dated record in ``records.json``, from which the tables of
docs/compatibility.md are made: of the contract part of the tests on Spark for each Spark, of those
that need no Spark for the lowest versions of libraries and for other Pythons.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from xml.etree import ElementTree

from tests.harness import spark_environments
from tests.harness.arguments import at_least_one
from tests.harness.jvm import clean_environment
from tests.harness.spark_environments import LOWEST, OLDER, REPOSITORY, SPARKS, Spark, run_quietly
from tests.versions.records import KEPT, PAGE, Record, take

LIGHT = "quick or versions or (contract and not (s3 or slow))"
"""Tests that need no Spark: of pure code and the memory store, and the contracts of libraries."""
_IN_CONTRACT = re.compile(r"mark\.versions\b")
_NAMES = ("pyspark", "pyarrow", "numpy", "pandas", "fsspec", "click")
_VERSIONS = f"""
import json, platform
from importlib.metadata import version

print(json.dumps({{"python": platform.python_version(), **{{n: version(n) for n in {_NAMES}}}}}))
"""


@dataclass(frozen=True)
class Part:
    """Tests by the marks that choose them, and the files to look in."""

    name: str
    marks: str
    files: tuple[str, ...]
    may_skip: bool = False


def contract(spark: Spark, *, short: bool = False) -> Part:
    """Return the contract part of the tests on Spark, as far as a Spark has what they need.

    A test that needs no data source, which Spark 3.5 lacks, says ``versions(since="3.5")``, one
    of pushed filters, which 4.0 tells no source, ``versions(since="4.1")``, and one that needs
    Delta ``versions(needs="delta")``. Only their files are imported.
    """
    marks = "versions(short=True)" if short else "versions"
    if spark.minor == "3.5":
        marks = 'versions(since="3.5")'
    elif spark.minor == "4.0":
        marks = f'{marks} and not versions(since="4.1")'
    marks = marks if spark.delta else f'{marks} and not versions(needs="delta")'
    since = re.compile(r'mark\.versions\(.*since="3\.5"') if spark.minor == "3.5" else _IN_CONTRACT
    found = sorted(
        path
        for folder in ("jobs", "spark")
        for path in (REPOSITORY / "tests" / folder).glob("test_*.py")
        if since.search(path.read_text(encoding="utf-8"))
    )
    return Part("spark", marks, tuple(str(path.relative_to(REPOSITORY)) for path in found))


def light() -> Part:
    """Return the tests that need no Spark, except those of the benchmarks."""
    files = ("tests/unit", "tests/contract", "--ignore=tests/unit/bench")
    return Part("light", LIGHT, files, may_skip=True)


def run(python: Path, variables: dict[str, str], part: Part, workers: int) -> dict[str, int]:
    """Run a part with an interpreter; return how many tests passed by area, or exit."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--numprocesses", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        command += [f"--junit-xml={report}", "-m", part.marks, *part.files]
        code = subprocess.call(command, cwd=REPOSITORY, env=variables)
        if code:
            sys.exit(code)
        passed, skipped = outcome(report.read_text(encoding="utf-8"))
    if skipped and not part.may_skip:
        sys.exit(f"what a Spark lacks is no reason to skip a test of the contract: {skipped}")
    return passed


def outcome(report: str) -> tuple[dict[str, int], list[str]]:
    """Return how many tests of a JUnit report passed by area, and which were skipped.

    The area of a test on Spark is its file, of another one its folder.
    """
    passed: Counter[str] = Counter()
    skipped = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        # A module that is skipped as a whole has no class, and its path as the name.
        _, folder, *rest = (case.get("classname") or case.get("name") or "").split(".")
        if case.find("skipped") is not None:
            skipped.append(f"{rest[-1]}::{case.get('name')}")
        elif folder == "spark":
            passed[rest[0].removeprefix("test_").replace("_", " ")] += 1
        else:
            passed[folder] += 1
    return dict(sorted(passed.items())), skipped


def record(
    name: str, python: Path, spark: Spark | None, part: Part, passed: dict[str, int]
) -> Record:
    """Return the record of a run, with the versions that its interpreter finds."""
    versions = json.loads(_output(str(python), "-c", _VERSIONS))
    if spark is not None:
        versions["delta"] = spark.delta.rpartition(":")[2]
        java = _output("java", "-XshowSettings:properties", "-version")
        (versions["java"],) = re.findall(r"java\.version = (.+)", java)
    # An earlier run's record makes no other code.
    kept = [f":(exclude){path.relative_to(REPOSITORY)}" for path in (KEPT, PAGE)]
    changed = _output("git", "status", "--porcelain", "--", ".", *kept)
    commit = _output("git", "rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    day = datetime.now(timezone.utc).date().isoformat()
    return Record(name, part.name, day, commit, versions, passed)


def _output(*command: str) -> str:
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def python_environment(name: str) -> Path:
    """Make an environment of its own for another Python, unless it is there."""
    folder = Path(sys.prefix) / "spark" / name
    python, made = folder / "bin/python", folder / "made"
    if not made.exists():
        print(f"making {folder}: 900 MB, once", flush=True)
        found = shutil.which(name) or sys.exit(f"no {name} on the path")
        run_quietly(found, "-m", "venv", "--clear", folder)
        install = (python, "-m", "pip", "install", "--quiet")
        pins = REPOSITORY / "constraints.txt"
        run_quietly(*install, "--constraint", pins, "pip")
        extras = f"{REPOSITORY}[connect,jobs,metrics,otel,registry,s3,serve,spark,test]"
        pinned = ("--constraint", pins, "--build-constraint", pins)
        run_quietly(*install, *pinned, "--editable", extras)
        made.touch()
    return python


def run_all(names: Sequence[str], workers: int, *, keep: bool) -> None:
    """Run the parts of environments, one after the other; keep the record of each that passes."""
    for name in names:
        spark = {**SPARKS, "lowest": LOWEST}.get(name)
        if spark is None:
            python = python_environment(name)
            runs = {light(): clean_environment(PYTHONPATH=str(REPOSITORY))}
        else:
            spark_environments.make(spark)
            python = spark.python
            parts = [contract(spark)] if spark is not LOWEST else [light(), contract(spark)]
            runs = {part: spark.environment() for part in parts}
        for part, variables in runs.items():
            print(f"{name}: {part.name}", flush=True)
            passed = run(python, variables, part, workers)
            if keep:
                take(record(name, python, spark, part, passed))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the arguments choose; exit with pytest's code where a test fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    every = (*SPARKS, "lowest")
    parser.add_argument(
        "names",
        nargs="*",
        default=every,
        help=f"{', '.join(every)} (the default), or a Python such as python3.13",
    )
    parser.add_argument("--workers", type=at_least_one, default=2, help="processes (default: 2)")
    parser.add_argument("--no-record", action="store_true", help="keep no record")
    parser.add_argument("--short", action="store_true", help=f"a minute of {OLDER.minor} alone")
    options = parser.parse_args(arguments)
    if options.short:
        run(OLDER.python, OLDER.environment(), contract(OLDER, short=True), options.workers)
    else:
        run_all(options.names, options.workers, keep=not options.no_record)


if __name__ == "__main__":
    main()
