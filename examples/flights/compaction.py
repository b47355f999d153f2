"""The small files of the demo's stream, merged before the retention job runs."""

from __future__ import annotations

from flights.workspace import Workspace
from pravega_spark import CompactionResult, StreamManager


def compact(workspace: Workspace) -> CompactionResult:
    """Merge the stream's small files, also those of the last minute: nobody reads at the tail."""
    return StreamManager(workspace.root).compact_stream(workspace.stream, include_newest=True)
