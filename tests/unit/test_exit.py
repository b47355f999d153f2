"""A short process that used the package ends with its own status: no thread pool is torn down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHORT = """
import sys
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
manager.create_scope("nyc")
manager.create_stream("nyc/flights")
"""


def test_a_process_that_only_looks_at_an_existing_stream_ends_well(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "-c", SHORT, root], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
