"""What seeds have to reach: each failpoint, fault and verb, and each outcome that a verb has.

A zero in a long run says that something is not tried any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.sim.copies import _code, all_names

FAULTS = (
    "kill", "kill at failpoints", "kill at calls", "stop", "pause", "cut off", "jump",
    "stand still", "full", "read only", "lose_request", "lose_answer", "late", "busy", "resent",
)  # fmt: skip
OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "write": ("ok", "StreamSealed", "WriterFenced", "FencingTokenMismatch", "CommitUnknown"),
    "write_if": ("ok", "ConditionFailed"),
    "commit": ("ok", "CommitUnknown"),
    "update": ("ok", "BadKeyVersion", "CommitUnknown"),
    "next": ("ok", "ReinitializationRequired"),
    "scale": ("ok", "InvalidConfiguration"),
    **dict.fromkeys(
        (
            *("open_writer", "read", "layout", "truncate", "retain", "subscribe", "release"),
            *("unsubscribe", "stage", "abort", "join", "leave", "expire", "checkpoint", "reset"),
            *("drain", "get", "scan", "fence", "update_state", "fetch_updates", "note_time"),
            *("forget", "watermark", "update_watermark", "seal", "autoscale", "compact", "sweep"),
            *("maintain", "backup", "read_copy", "live_on", "write_bytes", "read_bytes"),
            *("truncate_bytes", "update_stream", "delete_stream", "sweep_scope"),
            *("update_settings", "update_group"),
            *("update_table", "delete_table", "restore"),
        ),
        ("ok",),
    ),
}
"""What each verb has to end with at least once."""


def failpoints() -> set[str]:
    """Return the names of all failpoints in what a simulated process imports."""
    found: set[str] = set()
    for name in all_names():
        code = _code(name)
        assert code is not None
        found.update(re.findall(r'\bfailpoint\("([^"]+)"\)', Path(code[1]).read_text()))
    return found


def wanted() -> list[str]:
    """Return the names of all that a long run has to count."""
    names = [f"failpoint {name}" for name in failpoints()]
    names += [f"fault {name}" for name in FAULTS]
    for verb, outcomes in OUTCOMES.items():
        names += [f"outcome {verb} {outcome}" for outcome in outcomes]
    return sorted(names)


def missing(covered: Mapping[str, int]) -> list[str]:
    """Return what was never reached."""
    return [name for name in wanted() if not covered.get(name)]


def pairs(covered: Mapping[str, int]) -> tuple[int, int]:
    """Return how many pairs of verbs were in flight at the same time, and of how many."""
    verbs = {name.split()[1] for name in covered if name.startswith("outcome ")}
    met = sum(name.startswith("pair ") for name in covered)
    return met, len(verbs) * (len(verbs) + 1) // 2
