"""What maintenance did with one stream or with the tables of a scope, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pravega_spark.model import MaintenanceKind


@dataclass(frozen=True, slots=True)
class WorkOutcome:
    """What a kind of work did, or of a dry run would do."""

    unit: str
    """A stream, a scope whose own tables were swept, or "" for the root's."""
    kind: MaintenanceKind
    did: str = ""
    """For people; empty if nothing was to be done."""
    left: str = ""
    """What could not be done yet, why, and from when on it can; for people."""
    figures: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    """An error for each thing that failed."""
    version: int = -1
    """The newest version of the stream's log before the work; -1 if it is not known."""
    written_ms: int = -1
    """When the commit of that version was written."""
    due_ms: int = 0
    """When the work is due again without a newer version."""
    checked_ms: int = 0
    """A time before the version was read."""

    def row(self) -> dict[str, Any]:
        """Return the outcome as a JSON object, in which it travels between processes."""
        return {
            "unit": self.unit,
            "kind": self.kind.value,
            "did": self.did,
            "left": self.left,
            "figures": dict(self.figures),
            "failures": dict(self.failures),
            "version": self.version,
            "written_ms": self.written_ms,
            "due_ms": self.due_ms,
            "checked_ms": self.checked_ms,
        }

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> WorkOutcome:
        """Return the outcome of such an object."""
        return cls(**{**row, "kind": MaintenanceKind(row["kind"])})


def unit_text(unit: str) -> str:
    """Return what a unit is, for people."""
    if not unit:
        return "the root's tables"
    return f"stream {unit}" if "/" in unit else f"tables of scope {unit}"
