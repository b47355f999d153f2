from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark.engine.runtime import failpoints
from pravega_spark.manager import StreamManager
from tests.harness.failpoints import KILL_VARIABLE, PROJECT, at_failpoint, register, variables

COUNT = "3"
WRITE = """
import sys
from pravega_spark.manager import StreamManager

with StreamManager(sys.argv[1]).create_writer("s/t", "w") as writer:
    for number in range(int(sys.argv[2])):
        writer.write_event(str(number))
        writer.flush()
"""


@pytest.fixture
def root(tmp_path: Path) -> str:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    return str(tmp_path)


def write(root: str, **environment: str) -> int:
    """Write the events in another process; return its exit code."""
    command = [sys.executable, "-c", WRITE, root, COUNT]
    found = {**os.environ, "PYTHONPATH": str(PROJECT), **environment}
    return subprocess.run(command, env=found, timeout=60, check=False).returncode


def texts(root: str) -> list[str]:
    return [event.data.decode() for event in StreamManager(root).read("s/t")]


@pytest.mark.medium
@pytest.mark.parametrize("variable", [KILL_VARIABLE, "PRAVEGA_SPARK_CRASH_AT"])
def test_no_environment_variable_kills_a_process_of_the_package(root: str, variable: str) -> None:
    assert write(root, **{variable: "commit.applied"}) == 0
    assert texts(root) == ["0", "1", "2"]


def test_only_the_store_of_the_engine_the_principal_and_the_kms_are_environment_variables() -> None:
    engine = PROJECT / "pravega_spark" / "engine"
    readers = {p for p in engine.rglob("*.py") if re.search("environ|getenv", p.read_text())}
    assert {path.parent.name for path in readers} <= {"store", "engine", "runtime"}
    outside = {path.name for path in readers if path.parent.name != "store"}
    assert outside <= {"principal.py", "key_management.py"}


@pytest.mark.medium
def test_child_process_of_a_test_is_killed_at_the_visit_that_the_test_names(root: str) -> None:
    assert write(root, **variables("append.staged:2")) == -signal.SIGKILL
    assert texts(root) == ["0"]
    assert write(root, **variables("")) == 0


def test_failpoints_do_nothing_before_and_after_a_test_acts_at_one() -> None:
    visits: list[str] = []
    failpoints.failpoint("a")
    with at_failpoint("a", lambda: visits.append("first")) as action:
        register("b", lambda: visits.append("b"))
        for name in ("a", "b", "a", "c"):
            failpoints.failpoint(name)
    register("b", None)
    failpoints.failpoint("a")
    assert visits == ["first", "b"]
    assert action.hits == 2
    assert failpoints._hooks == []
