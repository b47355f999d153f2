"""An append with a writer id that release 0.1.0 began is ended by this version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pravega_spark.manager import StreamManager
from tests.harness.releases import run_release

OLD = """
import io, sys
from pravega_spark.cli import main
data = b'{"n": 1.50}\\n{"n": 2.50}\\n'
sys.stdin = io.TextIOWrapper(io.BytesIO(data))
options = ["--format", "json", "--writer-id", "w", "--root", sys.argv[1]]
assert main(["stream", "append", "s/a", *options]) == 0
"""


def test_an_append_that_0_1_0_began_is_ended(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/a")
    run_release("0.1.0", OLD, root)
    command = [sys.executable, "-m", "pravega_spark.cli", "stream", "append", "s/a"]
    options = ["--format", "json", "--writer-id", "w", "--root", root]
    data = b'{"n": 1.50}\n{"n": 2.50}\n{"n": 3.50}\n'
    for _ in range(2):
        subprocess.run([*command, *options], input=data, check=True)
    assert [e.data for e in manager.read("s/a")] == [b'{"n": 1.5}', b'{"n": 2.5}', b'{"n": 3.50}']
