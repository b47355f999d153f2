"""Asks the server of ``warm_workers`` for a daemon of Spark; Python itself runs all else.

Spark starts it as a Python. It lives as long as the daemon, or until Spark ends it: then the
daemon's standard input ends, at which it ends, too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

_ALONE = str(Path(__file__).parents[2] / "pravega_spark/spark/worker_python.sh")
"""How a local session of the package starts a Python."""
_PYTHON, _SERVER = os.environ["PRAVEGA_SPARK_TEST_PYTHON"], "PRAVEGA_SPARK_TEST_WORKERS"
_KILLED = "PRAVEGA_SPARK_TEST_KILL_AT"
"""What a process is told that is killed at a failpoint: it begins as a Python does."""


def _ask(arguments: list[str]) -> socket.socket | None:
    """Return the connection to a process that was begun, or None if it is to be run here."""
    place = os.environ.get(_SERVER)
    if place is None or os.environ.get(_KILLED) or arguments[:1] != ["-m"]:
        return None
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(place)
    except OSError:  # it ended with its tests
        return None
    given = [arguments[1:], _folder(), dict(os.environ)]
    text = json.dumps(given).encode()
    socket.send_fds(server, [len(text).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(text)
    return server


def _folder() -> str:
    """Return the working directory; Spark's is gone once the test that began it has ended."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep


def main() -> None:
    """Be the Python that Spark has started."""
    arguments = sys.argv[1:]
    server = _ask(arguments)
    if server is None:
        os.environ["PRAVEGA_SPARK_WORKER_PYTHON"] = _PYTHON
        os.execv(_ALONE, [_ALONE, *arguments])
    os.setpgid(0, 0)  # as the daemon does: a signal to Spark's group is none to it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = server.recv(1)
    sys.exit(status[0] if status else 1)


if __name__ == "__main__":
    main()
