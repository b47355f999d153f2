"""Outages of a real S3 server: its process is killed and started again, or stopped for a time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator

from tests.harness.s3_server import S3Server


class S3Outages:
    """Makes outages of a server that :func:`start_s3` has started for this test alone."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._process_id = server.process_id
        self._again: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> S3Outages:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def kill(self, seconds: float) -> None:
        """Kill the server, and start it again after this time, on the same ports and data."""
        self._kill()
        time.sleep(seconds)
        with (self._server.folder / "log").open("ab") as log:
            self._again = subprocess.Popen(
                self._server.command, stdout=log, stderr=log, cwd=self._server.folder
            )
        self._process_id = self._again.pid

    def stop(self, seconds: float) -> None:
        """Stop the server, so that it keeps its connections and does not answer, for this time."""
        with self.stopped():
            time.sleep(seconds)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server while the block runs."""
        os.kill(self._process_id, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process_id, signal.SIGCONT)

    def _kill(self) -> None:
        """Kill the server, unless it was killed; its harness waits for the first process."""
        if self._again is not None:
            self._again.kill()
            self._again.wait()
        elif self._process_id:
            os.kill(self._process_id, signal.SIGKILL)
        self._process_id = 0
