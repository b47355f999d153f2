"""Automatic scaling of one stream: reads its rates, decides, and scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    InvalidConfiguration,
    NoSuchSegment,
    ScaleConflict,
    StreamSealed,
)
from pravega_spark.policies import ScalingPace, ScalingPolicy, ScalingType
from pravega_spark.scaling.rate_store import read_rates, store_rates
from pravega_spark.scaling.scale_commit import scale_stream
from pravega_spark.scaling.scale_decision import (
    FIXED,
    ScaleDecision,
    ScaleRequest,
    decide_scale,
    no_scale,
    split_evenly,
)
from pravega_spark.scaling.scale_reasons import AVERAGE_NAMES
from pravega_spark.scaling.split_points import split_by_keys

PACE: Final = ScalingPace()
"""Pravega's times."""

ROW_SCHEMA: Final = pa.schema(
    [
        ("segment", pa.string()),
        ("key_low", pa.float64()),
        ("key_high", pa.float64()),
        *((name, pa.float64()) for name in AVERAGE_NAMES),
        ("action", pa.string()),
        ("reason", pa.string()),
        ("request", pa.int32()),
        ("epoch", pa.int32()),
        ("dropped", pa.string()),
    ]
)
"""A row for each active segment. ``request`` numbers the scales of one stream; merged segments have
the same number. ``epoch`` is the scale's new epoch, ``dropped`` says why it made none."""


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
        """Return the verdicts as rows of ROW_SCHEMA, in range order."""
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


def scaling_rows(
    root: str, stream: str, *, pace: ScalingPace, dry_run: bool, use_keys: bool
) -> list[dict[str, Any]]:
    """Scale a stream, or only decide in a dry run; return its rows. Runs in executors."""
    opened = open_stream(root, stream)
    run = explain_scaling if dry_run else run_scaling
    return run(opened, pace, use_keys=use_keys).rows()
