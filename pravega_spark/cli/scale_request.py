"""What ``stream scale`` seals and which ranges it opens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import click

from pravega_spark.errors import InvalidInput
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import KeyRange, Segment

Request = tuple[list[Segment | int | str], list[KeyRange | tuple[float, float]]]
_LEAST_TO_MERGE = 2


def scale_request(
    manager: StreamManager,
    name: str,
    sealed: Sequence[str],
    ranges: Sequence[str],
    split: str | None,
    into: int,
    merged: str | None,
) -> Request:
    """Return the segments to seal and the ranges to open.

    Raises UsageError unless exactly one of split, merge and seal with ranges is given, and
    InvalidInput for a segment that is not active.
    """
    forms = [split is not None, merged is not None, bool(sealed or ranges)]
    if sum(forms) != 1:
        raise click.UsageError("Give --split, or --merge, or --seal with --range.")
    if split is not None:
        segment = _active(manager, name, split)
        low, high = segment.key_range.low, segment.key_range.high
        cuts = [low + (high - low) * part / into for part in range(into)] + [high]
        return [segment], [KeyRange(*pair) for pair in pairwise(cuts)]
    if merged is not None:
        found = sorted(
            (_active(manager, name, text) for text in merged.split(",")),
            key=lambda segment: segment.key_range.low,
        )
        if len({segment.segment_id for segment in found}) < _LEAST_TO_MERGE:
            raise click.UsageError(
                f"--merge {merged!r} names one segment: a merge needs two neighbours, such as "
                "--merge 0,1."
            )
        return [*found], [KeyRange(found[0].key_range.low, found[-1].key_range.high)]
    return [_named(text) for text in sealed], [_range(text) for text in ranges]


def _named(text: str) -> int | str:
    return int(text) if text.strip().isdigit() else text.strip()


def _active(manager: StreamManager, name: str, text: str) -> Segment:
    wanted = text.strip()
    segments = manager.segments(name)
    for segment in segments:
        if wanted in (str(segment), str(segment.number)):
            return segment
    raise InvalidInput(
        f"stream {name} has no active segment {wanted!r}; it has {', '.join(map(str, segments))}."
    )


def _range(text: str) -> tuple[float, float]:
    low, separator, high = text.partition("-")
    try:
        if separator:
            return float(low), float(high)
    except ValueError:
        pass
    raise click.UsageError(f"--range {text!r} must be LOW-HIGH, such as 0.25-0.5.")
