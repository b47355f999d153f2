"""Processes of earlier releases, from the wheels in ``tests/fixtures/releases``.

A release runs in this environment's Python with the wheel's own code before the checkout's, so that
both use one root at the same time: ``run_release("0.1.0", SCRIPT, root)``.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "fixtures/releases"


@cache
def _unpacked(version: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix=f"pravega-spark-{version}-")
    (wheel,) = FOLDER.glob(f"pravega_spark-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder.name)
    return folder


def environment(version: str, *more: Path) -> dict[str, str]:
    """Return the variables with which Python, and what it starts, imports that release.

    ``more`` are folders of other modules, such as that of the tests.
    """
    path = os.pathsep.join((_unpacked(version).name, *map(str, more)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def sources(version: str) -> str:
    """Return the text of all modules of that release."""
    modules = sorted(Path(_unpacked(version).name).rglob("*.py"))
    return "".join(module.read_text(encoding="utf-8") for module in modules)


def start_release(
    version: str, script: str, *arguments: object, more: tuple[Path, ...] = ()
) -> subprocess.Popen[str]:
    """Start a script under that release, with its output piped; the caller ends it.

    ``more`` is as in :func:`environment`.
    """
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_unpacked(version).name,
        env=environment(version, *more),
    )


_SERVER = """
import gc, json, os, sys
from pravega_spark import *
import pandas, pyarrow.compute, pyarrow.parquet
def begin():
    for line in sys.stdin:
        given = json.loads(line)
        child = os.fork()
        if not child:
            return given
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)
gc.freeze()
_given = begin()
if _given is None:
    sys.exit()
for _end, _path in enumerate((os.devnull, *_given["files"])):
    os.dup2(os.open(_path, os.O_WRONLY if _end else os.O_RDONLY), _end)
os.environ.clear()
os.environ.update(_given["environment"])
sys.path[1:1] = _given["more"]
sys.argv = ["-c", *_given["arguments"]]
exec(compile(_given["script"], "<string>", "exec"), {"__name__": "__main__"})
"""
"""Forks a process for each line that it reads: to import the release takes a second.

Its garbage collector leaves alone what all processes share, which would become a copy of each.
"""
_one_at_a_time = threading.Lock()


@cache
def _server(version: str) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_unpacked(version).name,
        env=environment(version),
    )
    atexit.register(server.communicate)
    return server


def run_release(version: str, script: str, *arguments: object, more: tuple[Path, ...] = ()) -> str:
    """Run a script under that release, in a process that has imported it; return what it printed.

    Fails with its standard error.
    """
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as errors:
        given = {
            "script": script,
            "arguments": [str(argument) for argument in arguments],
            "more": [str(folder) for folder in more],
            "environment": environment(version, *more),
            "files": [out.name, errors.name],
        }
        with _one_at_a_time:
            server = _server(version)
            assert server.stdin is not None
            assert server.stdout is not None
            print(json.dumps(given), file=server.stdin, flush=True)
            status = int(server.stdout.readline())
        assert status == 0, f"{version} ended with {status}:\n{errors.read()}"
        return out.read()
