"""Settings, markers and the S3 server of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.harness import jvm
from tests.harness.s3_server import S3Server, start_s3
from tests.harness.tiers import IS_LONG, LONG_TIMEOUT_SECONDS, sized, use_memory_for_files

use_memory_for_files()
# By default Spark's workers run the first `python3` on the path.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
# A test is of what it names: only those of maintenance by the root's setting take this back.
os.environ["PRAVEGA_SPARK_MAINTAIN"] = "off"
for _name, _value in jvm.VARIABLES.items():
    os.environ.setdefault(_name, _value)

# What a shell, or nohup, starts in the background is deaf to Ctrl-C or to the end of its terminal,
# and so are its children: tests send these signals.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# pytest-timeout limits a test's time; no example fails because the machine is busy.
settings.register_profile(
    "pravega_spark",
    deadline=None,
    max_examples=sized(25, 500),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("pravega_spark")

_TESTS = Path(__file__).parent
_ON_FILES = {"tmp_path", "tmp_path_factory"}
_HEAVY = ("s3", "slow", "spark")
_NOT_QUICK = ("extended", "medium", *_HEAVY)
_EXTENDED = {"examples", "faults", "jobs", "openness"}
"""Folders of which what needs a JVM, or is slow, is extended."""
_COVERED = ("unit", "contract")
_NOT_MEASURED = {"bench", "jobs", "spark"}
"""Folders of the tests of what is not measured (pyproject.toml)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by folder and fixtures: those of ``make quick``, too. Long tests get more time.

    Their short form is slow, too, unless they say ``long(slow=False)``. Properties are long: they
    find more with more examples. With few they are quick.
    """
    for item in items:
        long = item.get_closest_marker("long")
        if "faults" in item.path.parent.parts or (long and long.kwargs.get("slow", True)):
            item.add_marker("slow")
        if is_hypothesis_test(getattr(item, "function", None)):
            item.add_marker("long")
        fixtures = set(getattr(item, "fixturenames", ()))
        for name in {"s3", "spark"} & fixtures:
            item.add_marker(name)
        is_heavy = any(map(item.get_closest_marker, _HEAVY))
        needs_server = "tab" in fixtures or item.get_closest_marker("s3")  # a browser's tab
        if needs_server or (is_heavy and _room(item.path) in _EXTENDED):
            item.add_marker("extended")
        if not (long or _ON_FILES & fixtures or any(map(item.get_closest_marker, _NOT_QUICK))):
            item.add_marker("quick")
        covers = item.get_closest_marker("quick") or _covers(item.path)
        medium = item.get_closest_marker("medium")
        # Others cover their lines, unless they say ``medium(covers=True)``; tracing doubles a cost.
        long = item.get_closest_marker("long")
        if not covers or long or (medium and not medium.kwargs.get("covers")):
            item.add_marker("no_cover")
        if IS_LONG and item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_SECONDS), append=False)


def _room(path: Path) -> str:
    return path.relative_to(_TESTS).parts[0]


def _covers(path: Path) -> bool:
    """Return whether tests on files, as the quick ones, may be the only ones of measured lines."""
    folder, *rooms = path.relative_to(_TESTS).parts
    return folder in _COVERED and not _NOT_MEASURED.intersection(rooms)


def pytest_collection_finish() -> None:
    """Let no collection of garbage, of which tests ask for many, look at all modules and tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Wait for no decision of a process that a test has killed in its own."""
    from pravega_spark.engine.writing import process_exit  # measured for coverage, so not before

    process_exit._owed.clear()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real S3 server with one bucket, ``s3.bucket``, shared by all tests of the session."""
    with start_s3() as server:
        yield server
