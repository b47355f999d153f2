"""Child processes that begin with the package imported: a server forks them, in milliseconds.

Tests that kill processes at each step start hundreds, of which each would import the package first.
Such a child runs a module as ``python -m`` does, and has no handle and no thread of the tests. What
is tested of the begin or the end of a process starts an interpreter.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.reduction import DupFd
from typing import Any

from tests.harness import failpoints

FORKED: Any = multiprocessing.get_context("forkserver")
"""Starts processes of functions. A process has one such server: what is preloaded is set here."""
FORKED.set_forkserver_preload(
    [f"tests.harness.{name}" for name in ("preloaded", "preloaded_pages", "warm_children")]
)


class WarmChild:
    """A process that runs a module, with the part of ``subprocess.Popen`` that tests use."""

    def __init__(self, module: str, *arguments: str, crash: str = "", **variables: str) -> None:
        """Start it; with ``crash`` it is killed at the visit of a failpoint ``name[:n]``."""
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        self.stdin, self.stdout = os.fdopen(self._write, "w"), os.fdopen(self._read)
        given = (module, arguments, {**os.environ, **variables}, crash)
        self._process = FORKED.Process(target=_Started(*given, read, write))
        self._process.start()
        os.close(read)
        os.close(write)

    @property
    def pid(self) -> int:
        """The id of the process."""
        found: int = self._process.pid
        return found

    @property
    def returncode(self) -> int | None:
        """The status, a negative signal, or None for a process that runs."""
        found: int | None = self._process.exitcode
        return found

    def poll(self) -> int | None:
        """Return the status, if the process has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and close the pipes; return the status, or raise TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a warm child", timeout or 0.0)
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        self.stdout.close()
        return self.returncode

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, None]:
        """Write the last input and read all output; wait for the end."""
        with contextlib.suppress(BrokenPipeError):  # it has ended before
            self.stdin.write(text)
            self.stdin.close()
        out = self.stdout.read()
        self.wait(timeout)
        return out, None

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self._process.kill()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


class _Started:
    """What the child calls; its ends of the pipes come with it."""

    def __init__(
        self,
        module: str,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        crash: str,
        read: int,
        write: int,
    ) -> None:
        self._what = module, arguments, dict(environment), crash
        self._ends = read, write

    def __getstate__(self) -> dict[str, Any]:
        return {"_what": self._what, "_ends": tuple(DupFd(end) for end in self._ends)}

    def __call__(self) -> None:
        module, arguments, environment, crash = self._what
        ends: Any = self._ends
        for number, end in enumerate(ends):
            taken = end.detach()
            os.dup2(taken, number)
            os.close(taken)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [module, *arguments]
        failpoints.kill_at(crash)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
