"""What sweeps deleted and what waits, as figures and as text; of a dry run, what they would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pravega_spark.engine.log.table_sweep import SweepResult, pending_text
from pravega_spark.units import count_text, size_text


class SweptWork(NamedTuple):
    """The sweeps of a stream or of some tables."""

    did: str
    """What they deleted, for people; empty if nothing."""
    left: str
    """Which files wait, why, and why no mark moved; empty if no file waits."""
    figures: Mapping[str, int]


def swept_work(found: Iterable[SweepResult], now_ms: int, *, dry_run: bool = False) -> SweptWork:
    """Return the sums of some sweeps."""
    figures = Counter(
        dict.fromkeys(("files", "bytes", "commits", "pending_files", "pending_bytes", "unmoved"), 0)
    )
    waits, unmoved = list[str](), dict[str, None]()
    for swept in found:
        figures.update(files=swept.files, bytes=swept.size_bytes, commits=swept.commits)
        for part in swept.pending:
            figures.update(pending_files=part.files, pending_bytes=part.size_bytes)
            waits.append(f"kept {pending_text(part, now_ms)}")
        if swept.unmoved:
            figures["unmoved"] += 1
            unmoved[swept.unmoved] = None
    files, commits = figures["files"], figures["commits"]
    did = ""
    if files or commits:
        size = f"{count_text(files, 'file')} ({size_text(figures['bytes'])})"
        did = (
            f"would delete {size}"
            if dry_run
            else f"deleted {size} and {count_text(commits, 'commit')}"
        )
    return SweptWork(did, "; ".join([*waits, *unmoved]) if waits else "", dict(figures))
