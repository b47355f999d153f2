"""A server process with its page, for tests in a browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def page_server(root: Path | str, *options: str, token: str = "", port: int = 0) -> Iterator[str]:
    """Yield the URL of a server process; it ends by SIGTERM. Port 0 is a free one."""
    command = [sys.executable, "-m", "pravega_spark.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--root", str(root), "--poll", "0.5", *options],
        stdout=subprocess.PIPE,
        env={**os.environ, "PRAVEGA_SPARK_SERVE_TOKEN": token},
        text=True,
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first, f"the server ended with {process.wait(30)}"
        yield first.split()[0].rstrip("/")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()
    assert process.returncode in (0, -signal.SIGTERM)
