"""A server process with its page, for tests in a browser."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.warm_children import WarmChild


@contextmanager
def page_server(root: Path | str, *options: str, token: str = "", port: int = 0) -> Iterator[str]:
    """Yield the URL of a server process; it ends by SIGTERM. Port 0 is a free one."""
    given = ("serve", "--port", str(port), "--root", str(root), "--poll", "0.5", *options)
    process = WarmChild("pravega_spark.cli", *given, PRAVEGA_SPARK_SERVE_TOKEN=token)
    try:
        first = process.stdout.readline()
        assert first, f"the server ended with {process.wait(30)}"
        yield first.split()[0].rstrip("/")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    assert status in (0, -signal.SIGTERM)
