"""Spark in processes on this machine: applications, and a cluster of a master and two workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from tests.harness import jvm, warm_workers

PROJECT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
_APPLICATIONS = Path(__file__).parent


def environment() -> dict[str, str]:
    """Return the environment of a new Spark: this interpreter, loopback, no inherited settings."""
    return jvm.clean_environment(
        SPARK_HOME=str(SPARK_HOME),
        **warm_workers.variables(),
        PYTHONPATH=str(PROJECT),
    )


def attempt(app: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an application until it exits, with any code."""
    return subprocess.run(
        [sys.executable, str(_APPLICATIONS / app), *arguments],
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def run(app: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run an application that must succeed; return the JSON in its last line."""
    done = attempt(app, *arguments, **variables)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True)
class Cluster:
    """The master's URL, and the process of each worker."""

    url: str
    workers: tuple[subprocess.Popen[bytes], ...]


@contextmanager
def cluster(folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """Start a master and two workers from the installed package."""
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:
        log = folder / "master.log"
        kind = "org.apache.spark.deploy.master.Master"
        stack.enter_context(_server(log, variables, kind, *local, "--port", "0"))
        url = _wait_for(log, r"Starting Spark master at (spark://\S+)")[1]
        kind = "org.apache.spark.deploy.worker.Worker"
        workers = []
        for name in ("worker-1", "worker-2"):
            sizes = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name))
            log = folder / f"{name}.log"
            server = _server(log, variables, kind, *local, *sizes, url)
            workers.append(stack.enter_context(server))
            _wait_for(log, "Successfully registered with master")
        yield Cluster(url, tuple(workers))


@contextmanager
def _server(
    log: Path, variables: Mapping[str, str] | None, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of Spark's servers, and terminate its process at the end."""
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin/spark-class"), *arguments],
            env={**environment(), "SPARK_DAEMON_MEMORY": "256m", **(variables or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(log: Path, pattern: str) -> re.Match[str]:
    """Wait until a server's log matches a pattern."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text())
        if found is not None:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{log} never matched {pattern!r}: {log.read_text()[-2000:]}")
