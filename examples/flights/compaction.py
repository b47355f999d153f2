"""The small files of the demo's stream, merged before the retention job runs."""

from __future__ import annotations

from flights.workspace import Workspace
from pravega_spark import CompactionResult, StreamManager


def compact(workspace: Workspace) -> CompactionResult:
    """Merge the stream's small files; those of the last minute stay for readers at the tail."""
    return StreamManager(workspace.root).compact_stream(workspace.stream)
