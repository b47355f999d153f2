"""Automatic scaling of one stream: read its rates, decide, and scale; for jobs and for people."""

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
from pravega_spark.scaling import scale_decision
from pravega_spark.scaling.manual_scaling import scale_stream
from pravega_spark.scaling.rate_store import keep_rates, read_rates
from pravega_spark.scaling.scale_decision import (
    NAMES,
    ScaleDecision,
    ScaleRequest,
    equal_parts,
    leave,
)
from pravega_spark.scaling.split_points import by_keys

PACE: Final = ScalingPace()
"""Pravega's times."""

ROW_SCHEMA: Final = pa.schema(
    [
        ("segment", pa.string()),
        ("key_low", pa.float64()),
        ("key_high", pa.float64()),
        *((name, pa.float64()) for name in NAMES),
        ("action", pa.string()),
        ("reason", pa.string()),
        ("request", pa.int32()),
        ("epoch", pa.int32()),
        ("dropped", pa.string()),
    ]
)
"""A row for each active segment. ``request`` numbers the scales of one stream: segments that are
merged have the same; ``epoch`` is the one that the scale made, ``dropped`` why it made none."""


@dataclass(frozen=True, slots=True)
class ScalingOutcome:
    """What came of a request: the new epoch, or why it was dropped."""

    epoch: int | None = None
    dropped: str | None = None


@dataclass(frozen=True, slots=True)
class ScalingResult:
    """What was decided of a stream at one version, and what came of each request, if acted on."""

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
            averages = verdict.averages or (None,) * len(NAMES)
            number = requests.get(verdict.segment.segment_id)
            told = number is not None and number < len(self.outcomes)
            outcome = self.outcomes[number] if number is not None and told else ScalingOutcome()
            found.append(
                {
                    "segment": str(verdict.segment),
                    "key_low": keys.low,
                    "key_high": keys.high,
                    **dict(zip(NAMES, averages, strict=True)),
                    "action": verdict.action.value,
                    "reason": verdict.reason,
                    "request": number,
                    "epoch": outcome.epoch,
                    "dropped": outcome.dropped,
                }
            )
        return found


def decide(
    stream: StreamLog,
    pace: ScalingPace = PACE,
    *,
    use_keys: bool = False,
    now_ms: int | None = None,
) -> ScalingResult:
    """Decide on a stream and change nothing, not even what the next run reads.

    ``use_keys`` cuts a segment of a policy by event rate where its newest keys fall, if that evens
    the load better. ``now_ms`` is the time to decide for, by default the runtime's clock. Raises
    NoSuchStream, and CorruptLog for a log that cannot be read.
    """
    return _decide(stream, _newest(stream), pace, use_keys, now_ms, keep=False)


def act(
    stream: StreamLog,
    pace: ScalingPace = PACE,
    *,
    use_keys: bool = False,
    now_ms: int | None = None,
) -> ScalingResult:
    """Decide on a stream and scale it; what another scale forestalled is dropped, and told.

    Each split and merge is a commit of its own. Safe to kill, to repeat and to run twice at once:
    a segment is sealed once. The log of a stream with a fixed number of segments is not read.
    Raises what :func:`decide` does, and what a commit raises.
    """
    view = _newest(stream)
    policy = view.record.configuration.scaling
    if policy.type is ScalingType.FIXED:
        fixed = leave(view.active.segments, scale_decision.FIXED)
        return ScalingResult(stream.name, view.version, policy, fixed)
    decided = _decide(stream, view, pace, use_keys, now_ms, keep=True)
    requests = decided.decision.requests
    outcomes = tuple(_scale(stream, view.life, request) for request in requests)
    return replace(decided, outcomes=outcomes)


def _newest(stream: StreamLog) -> StreamView:
    """Return the newest view without making it durable: no event is handed out here."""
    stream.log.refresh()
    return stream.view(refresh=False)


def _decide(
    stream: StreamLog,
    view: StreamView,
    pace: ScalingPace,
    use_keys: bool,
    now_ms: int | None,
    *,
    keep: bool,
) -> ScalingResult:
    policy = view.record.configuration.scaling
    active = view.active.segments
    if view.record.state is not StreamState.ACTIVE:
        found = leave(active, f"the stream is {view.record.state.value}")
        return ScalingResult(stream.name, view.version, policy, found)
    now_ms = stream.now_ms() if now_ms is None else now_ms
    rates, news = read_rates(stream, view, pace, now_ms)
    if keep and news:
        keep_rates(stream, rates)
    divides = use_keys and policy.type is ScalingType.EVENT_RATE
    divide = by_keys(stream, view) if divides else equal_parts
    found = scale_decision.decide(active, rates, now_ms, divide)
    return ScalingResult(stream.name, view.version, policy, found)


def _scale(stream: StreamLog, life: int, request: ScaleRequest) -> ScalingOutcome:
    try:
        epoch = scale_stream(stream, request.seal, request.ranges, automatic=True, life=life)
    except (ScaleConflict, NoSuchSegment, StreamSealed, InvalidConfiguration) as error:
        return ScalingOutcome(dropped=str(error))
    return ScalingOutcome(epoch=epoch.number)


def rows_of(
    root: str, stream: str, *, pace: ScalingPace, dry_run: bool, use_keys: bool
) -> list[dict[str, Any]]:
    """Decide on a stream, scale it unless it is a dry run, and return its rows; for executors."""
    opened = open_stream(root, stream)
    work = decide if dry_run else act
    return work(opened, pace, use_keys=use_keys).rows()
