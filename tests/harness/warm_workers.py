"""Python workers of Spark that begin with everything imported: a server forks their daemons.

Spark starts a Python daemon for each kind of work (to plan a read, to write, to commit, ...), and
each imports Spark, pandas, Arrow and this package: half a second of processor time at least, five
for each JVM, and one for each streaming query. The tests of a process, and the programs that they
start with :func:`variables`, give Spark a program instead that asks this server for the daemon.
What is forked has the environment, the folder and the pipes of that program. ``make long``, and a
process that is killed at a failpoint, have Spark's own way.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.harness.tiers import IS_LONG

PROGRAM = str(Path(__file__).with_suffix(".sh"))
_PROJECT = Path(__file__).parents[2]


@cache
def _server() -> str:
    """Start the server, which ends with this process; return where it listens."""
    place = f"{tempfile.mkdtemp(prefix='workers-')}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        alone = {"OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(_PROJECT)}
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, place, str(listener.fileno())],
            stdin=subprocess.PIPE,
            cwd=_PROJECT,
            env={**os.environ, **alone},
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    atexit.register(process.kill)  # else its standard input ends
    atexit.register(_forget, place)
    return place


def _forget(place: str) -> None:
    shutil.rmtree(Path(place).parent, ignore_errors=True)


def variables() -> dict[str, str]:
    """Return the variables by which a Spark that is started gets these workers."""
    if IS_LONG:
        return {"PYSPARK_PYTHON": sys.executable}
    return {
        "PYSPARK_PYTHON": PROGRAM,
        "PYSPARK_DRIVER_PYTHON": PROGRAM,  # Spark's data sources go by it
        "PRAVEGA_SPARK_TEST_PYTHON": sys.executable,
        "PRAVEGA_SPARK_TEST_WORKERS": _server(),
    }


@contextmanager
def given() -> Iterator[None]:
    """Let a JVM that this process starts in the block have these workers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables().items():
            patch.setenv(name, value)
        yield


def _preload() -> None:
    import pyspark.sql

    names = ["pyspark.worker", "pyspark.daemon", "pravega_spark.spark.source"]
    names += ["tests.harness.preloaded", "pyspark.sql.streaming.python_streaming_source_runner"]
    for found in pkgutil.iter_modules([f"{pyspark.sql.__path__[0]}/worker"], "pyspark.sql.worker."):
        names.append(found.name)
    for found in pkgutil.walk_packages(
        [str(_PROJECT / "pravega_spark/spark")], "pravega_spark.spark."
    ):
        names.append(found.name)
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # an older Spark has it not
            continue


def _serve(listener: socket.socket) -> None:
    """Fork a daemon for each program that asks, until the process of the tests ends.

    Nobody waits for what is imported first: a program that asks too early is Python itself.
    """
    _preload()
    listener.listen(100)
    gc.collect()
    gc.freeze()  # what a worker shares with this process it need not look at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = 0  # its pipe to this process ends with it
    while True:
        ready, _, _ = select.select([parent, listener.fileno()], [], [])
        if parent in ready:
            return
        asked, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _become(asked)
        asked.close()


def _become(asked: socket.socket) -> None:
    """Be the daemon that a program asks for; tell it the status at the end."""
    status = 1
    try:
        os.register_at_fork(after_in_child=asked.close)
        size, ends, _, _ = socket.recv_fds(asked, 4, 3)
        with asked.makefile("rb") as rest:
            arguments, folder, environment = json.loads(rest.read(int.from_bytes(size, "big")))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, end in enumerate(ends):
            os.dup2(end, number)
            os.close(end)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        given = environment.get("PYTHONPATH", "").split(os.pathsep)
        # The archive is the same PySpark, without compiled code.
        own = [entry for entry in given if entry and not entry.endswith((".zip", ".jar"))]
        sys.path[:] = [folder, *own, *(entry for entry in sys.path[1:] if entry not in own)]
        sys.argv = arguments
        sys.modules.pop(arguments[0], None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        try:
            asked.sendall(bytes([status & 255]))
        finally:
            os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[2])) as here:
        _serve(here)
    _forget(sys.argv[1])
