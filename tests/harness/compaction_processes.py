"""Functions that tests of compaction run in processes: they compact and sweep."""

from __future__ import annotations

from unittest import mock

from pravega_spark.compaction import plan
from pravega_spark.manager import StreamManager
from tests.harness import failpoints
from tests.harness.writer_processes import STREAM


def compact(root: str, kill: str) -> None:
    """Compact once, new chunks included; killed at the failpoint ``kill``, if any."""
    failpoints.kill_at(kill)
    mock.patch.object(plan, "COMPACT_SETTLE_MS", -1).start()
    StreamManager(root).compact_stream(STREAM, target="16 KiB")


def sweep_now(root: str) -> None:
    """Sweep everything that no version but the newest needs."""
    StreamManager(root).sweep_stream(STREAM, grace=0, retain=0)
