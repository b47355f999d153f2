"""Automatic scaling of one stream: reads its rates, decides, splits by load, and scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pravega_spark.config.policies import ScalingPace, ScalingPolicy, ScalingType
from pravega_spark.engine.chunks.routing import positions
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidConfiguration, NoSuchSegment, ScaleConflict, StreamSealed
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.scaling.decision import (
    AVERAGE_NAMES,
    FIXED,
    ScaleDecision,
    ScaleRequest,
    SplitRange,
    decide_scale,
    no_scale,
    split_evenly,
)
from pravega_spark.scaling.rates import read_rates, store_rates
from pravega_spark.values.checks import check_flag, shown
from pravega_spark.values.limits import SPLIT_SAMPLE_EVENTS
from pravega_spark.values.segments import KeyRange, Segment, SegmentRange


def split_by_keys(stream: StreamLog, view: StreamView) -> SplitRange:
    """Return a function that splits segments by their newest keys where that balances better."""

    def split_range(segment: Segment, parts: int) -> tuple[tuple[KeyRange, ...], str]:
        found = newest_key_positions(stream, view, segment)
        ranges = balanced_ranges(found, segment.key_range, parts)
        if ranges is None:
            return split_evenly(segment, parts)
        even = largest_share(found, split(segment.key_range, parts))
        share = largest_share(found, ranges)
        return ranges, f"parts by keys, the fullest with {share:.0%} instead of {even:.0%}"

    return split_range


def newest_key_positions(
    stream: StreamLog, view: StreamView, segment: Segment, limit: int = SPLIT_SAMPLE_EVENTS
) -> NDArray[np.float64]:
    """Return the sorted key positions of the segment's newest events, at most ``limit`` of them.

    Events without a key have no position: they are spread over all segments, however split.
    """
    end = view.segment(segment.segment_id).next_offset
    start = max(0, view.record.head.get(segment.segment_id, 0), end - limit)
    rng = SegmentRange(
        stream.name, life=view.life, segment_id=segment.segment_id, start=start, end=end
    )
    batches = read_range(stream, rng, stream.chunks(rng), columns=["routing_key"])
    found = [positions(batch.column(0)) for batch in batches]
    joined = np.concatenate([np.empty(0), *found])
    return np.sort(joined[~np.isnan(joined)])


def balanced_ranges(
    found: NDArray[np.float64], key_range: KeyRange, parts: int
) -> tuple[KeyRange, ...] | None:
    """Split a range where its sorted positions are best balanced; None if even parts do as well.

    Each border is between two keys, as near to an equal share of the events as possible. A key
    with more than an equal share leads to fewer parts.
    """
    distinct, counts = np.unique(found, return_counts=True)
    if len(distinct) < 2:
        return None
    below = np.cumsum(counts)[:-1]
    shares = np.arange(1, parts) * (len(found) / parts)
    after = np.minimum(np.searchsorted(below, shares), len(below) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(shares - below[before] < below[after] - shares, before, after)
    inner = [float(key) for key in np.unique(distinct[1:][nearest]) if key > key_range.low]
    borders = [key_range.low, *inner, key_range.high]
    ranges = tuple(KeyRange(low, high) for low, high in pairwise(borders))
    even = split(key_range, parts)
    return ranges if largest_share(found, ranges) < largest_share(found, even) else None


def largest_share(found: NDArray[np.float64], ranges: tuple[KeyRange, ...]) -> float:
    """Return the share of the sorted positions in the range that has most of them."""
    borders = [key_range.low for key_range in ranges] + [ranges[-1].high]
    return float(np.diff(np.searchsorted(found, borders)).max() / len(found))


PACE: Final = ScalingPace()
"""Pravega's times."""


@dataclass(frozen=True, slots=True)
class ScalingOutcome:
    """The result of a request: the new epoch, or why the request was dropped."""

    epoch: int | None = None
    dropped: str | None = None


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """The decision on a stream at one version, and, of a run, the outcome of each request."""

    stream: str
    version: int
    policy: ScalingPolicy
    decision: ScaleDecision
    outcomes: tuple[ScalingOutcome, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the verdicts as rows, in range order: one for each active segment.

        ``request`` numbers the scales of one stream; merged segments have the same number.
        ``epoch`` is the scale's new epoch, ``dropped`` says why it made none.
        """
        requests = {
            segment_id: number
            for number, request in enumerate(self.decision.requests)
            for segment_id in request.seal
        }
        found = []
        for verdict in self.decision.verdicts:
            keys = verdict.segment.key_range
            averages = verdict.averages or (None,) * len(AVERAGE_NAMES)
            number = requests.get(verdict.segment.segment_id)
            outcome = ScalingOutcome()
            if number is not None and self.outcomes:
                outcome = self.outcomes[number]
            found.append(
                {
                    "segment": str(verdict.segment),
                    "key_low": keys.low,
                    "key_high": keys.high,
                    **dict(zip(AVERAGE_NAMES, averages, strict=True)),
                    "action": verdict.action.value,
                    "reason": verdict.reason,
                    "request": number,
                    "epoch": outcome.epoch,
                    "dropped": outcome.dropped,
                }
            )
        return found


def explain_scaling(
    stream: StreamLog,
    pace: ScalingPace = PACE,
    *,
    use_keys: bool = False,
    now_ms: int | None = None,
    life: int | None = None,
) -> ScalingResult:
    """Decide on a stream and change nothing, not even the stored rates.

    ``use_keys`` splits a segment under a policy by event rate between its newest keys if that
    balances the load better. The log of a stream with a fixed number of segments is not read, so
    its rows have no rates. ``now_ms`` is the time to decide for, by default the runtime's clock.
    ``life`` is the life that the call is made for, by default the present one. Raises NoSuchStream,
    StaleIdentity, and CorruptLog for a log that cannot be read.
    """
    return _decide(stream, _newest_view(stream, life), pace, use_keys, now_ms, store=False)


def run_scaling(
    stream: StreamLog,
    pace: ScalingPace = PACE,
    *,
    use_keys: bool = False,
    now_ms: int | None = None,
    life: int | None = None,
) -> ScalingResult:
    """Decide on a stream and scale it; report requests that a concurrent scale made impossible.

    Each split and merge is a separate commit. Safe to kill, to repeat and to run concurrently: a
    segment is sealed once. Raises what :func:`explain_scaling` and a commit raise.
    """
    view = _newest_view(stream, life)
    result = _decide(stream, view, pace, use_keys, now_ms, store=True)
    requests = result.decision.requests
    outcomes = tuple(_scale(stream, view.life, request) for request in requests)
    return replace(result, outcomes=outcomes)


def _newest_view(stream: StreamLog, life: int | None) -> StreamView:
    """Return the newest view; it need not be durable, since no event is handed out."""
    stream.log.refresh()
    return stream.view(refresh=False, life=life)


def _decide(
    stream: StreamLog,
    view: StreamView,
    pace: ScalingPace,
    use_keys: bool,
    now_ms: int | None,
    *,
    store: bool,
) -> ScalingResult:
    policy = view.record.configuration.scaling
    active = view.active.segments
    if view.record.state is not StreamState.ACTIVE:
        unchanged = no_scale(active, f"the stream is {view.record.state.value}")
        return ScalingResult(stream.name, view.version, policy, unchanged)
    if policy.type is ScalingType.FIXED:
        return ScalingResult(stream.name, view.version, policy, no_scale(active, FIXED))
    host_ms, storage_ms = stream.now_ms() if now_ms is None else now_ms, stream.store.time_ms()
    if now_ms is None:  # the earlier one, as for deletions by age: a host ahead sees no idleness
        now_ms = min(host_ms, storage_ms)
    rates, is_worth_storing = read_rates(stream, view, pace, max(host_ms, storage_ms))
    if store and is_worth_storing:
        store_rates(stream, rates)
    by_keys = use_keys and policy.type is ScalingType.EVENT_RATE
    split_range = split_by_keys(stream, view) if by_keys else split_evenly
    decision = decide_scale(active, rates, now_ms, split_range)
    return ScalingResult(stream.name, view.version, policy, decision)


def _scale(stream: StreamLog, life: int, request: ScaleRequest) -> ScalingOutcome:
    try:
        epoch = scale_stream(stream, request.seal, request.ranges, automatic=True, life=life)
    except (ScaleConflict, NoSuchSegment, StreamSealed, InvalidConfiguration) as error:
        return ScalingOutcome(dropped=str(error))
    return ScalingOutcome(epoch=epoch.number)


class StreamScaling:
    """Explains and runs the automatic scaling of one stream; made by ``StreamManager.scaling``."""

    def __init__(self, stream: StreamLog, life: int) -> None:
        self._stream = stream
        self._life = life

    def explain(
        self, *, pace: ScalingPace = PACE, use_keys: bool = False
    ) -> tuple[dict[str, Any], ...]:
        """Return what a run would do with each active segment, a row each.

        A row has the segment, its keys and rates, the action and its reason. ``use_keys`` splits a
        segment under a policy by event rate between its newest keys if that balances the load
        better. Changes nothing. Raises StaleIdentity, NoSuchStream.
        """
        _check(pace, use_keys)
        found = explain_scaling(self._stream, pace, use_keys=use_keys, life=self._life)
        return tuple(found.rows())

    def run(
        self, *, pace: ScalingPace = PACE, use_keys: bool = False
    ) -> tuple[dict[str, Any], ...]:
        """Scale as :meth:`explain` says, and return the rows with the outcome of each scale.

        Safe to kill, to repeat and to run concurrently: a segment is sealed once. A row's ``epoch``
        is the new epoch; ``dropped`` says why a concurrent change prevented the scale.
        """
        _check(pace, use_keys)
        return tuple(run_scaling(self._stream, pace, use_keys=use_keys, life=self._life).rows())


def _check(pace: ScalingPace, use_keys: bool) -> None:
    check_flag("use_keys", use_keys)
    if not isinstance(pace, ScalingPace):
        raise InvalidConfiguration(
            "pace must be a ScalingPace, such as ScalingPace.of_cooldown('10 min'); got "
            f"{shown(pace)}."
        )
