"""What histories have of the package's answers: its cuts and positions, and what refusals tell."""

from __future__ import annotations

from typing import Any

from tests.sim.checkers.layouts import ENDLESS

_END, _NOT_REACHED = -1, -2
"""The marks of a cut; the releases that histories are of have them at several places."""


def cut_of(cut: Any) -> dict[str, int]:
    """Return a cut as histories have it: what lies before it in each segment that it names."""
    return {
        str(segment): ENDLESS if offset == _END else offset
        for segment, offset in cut
        if offset != _NOT_REACHED
    }


def position_of(pointer: Any) -> list[Any]:
    return [str(pointer.segment_id), pointer.offset]


def told_by(error: BaseException) -> Any:
    """Return what a refusal tells of the state that it found; None for what tells nothing.

    Each copy of the package has its own classes, so names and fields decide.
    """
    told: Any = error
    name = type(error).__name__
    if name == "FencingTokenMismatch":
        return {"token": told.newest_token}
    actual = told.actual if name == "ConditionFailed" else None
    if hasattr(actual, "positions"):
        return {"cut": cut_of(actual)}
    if hasattr(actual, "segment_id"):
        return {"position": position_of(actual)}
    return {"number": actual} if isinstance(actual, int) else None
