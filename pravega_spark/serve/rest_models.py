"""The JSON of Pravega's REST API, version 1, by its own names, and configurations in it.

``timestampAggregationTimeout`` is the setting of the stream's own, in ms. Pravega's clients send 0
where nobody gave one, so a 0 changes nothing, and stands for the root's setting in answers.
``rolloverSizeBytes``, which this package does not have, is accepted, has no effect, and is 0 in
answers.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from pravega_spark.config.policies import (
    LimitUnit,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
)
from pravega_spark.errors import InvalidConfiguration


class RestRoute(APIRoute):
    """A route whose answers omit fields without a value, as Pravega's server does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "response_model_exclude_none": True})


class _Json(BaseModel):
    """JSON of Pravega: unknown fields are ignored, as its server does."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class ScalingConfigType(enum.Enum):
    """The measure by which segments are split and merged."""

    FIXED_NUM_SEGMENTS = "FIXED_NUM_SEGMENTS"
    BY_RATE_IN_KBYTES_PER_SEC = "BY_RATE_IN_KBYTES_PER_SEC"
    BY_RATE_IN_EVENTS_PER_SEC = "BY_RATE_IN_EVENTS_PER_SEC"


class ScalingConfig(_Json):
    """A scaling policy."""

    type: ScalingConfigType
    targetRate: int | None = None
    scaleFactor: int | None = None
    minSegments: int = 1


class RetentionConfigType(enum.Enum):
    """The unit of a retention policy."""

    LIMITED_DAYS = "LIMITED_DAYS"
    LIMITED_SIZE_MB = "LIMITED_SIZE_MB"


class TimeBasedRetention(_Json):
    """A time, as the sum of three parts."""

    days: int = Field(default=0, ge=0)
    hours: int = Field(default=0, ge=0)
    minutes: int = Field(default=0, ge=0)


class RetentionConfig(_Json):
    """A retention policy. ``byConsumption`` is of this package: subscribers hold their data.

    A time is given in days by ``value``, or, if that is 0, by ``timeBasedRetention``.
    """

    type: RetentionConfigType | None = None
    value: int = Field(default=0, ge=0)
    timeBasedRetention: TimeBasedRetention | None = None
    maxValue: int | None = Field(default=None, ge=0)
    maxTimeBasedRetention: TimeBasedRetention | None = None
    byConsumption: bool = False


class StreamConfigRequest(_Json):
    """The part that requests to create and to update a stream share."""

    scalingPolicy: ScalingConfig
    retentionPolicy: RetentionConfig | None = None
    streamTags: list[str] = Field(default_factory=list, max_length=128)
    timestampAggregationTimeout: int = Field(default=0, ge=0)
    rolloverSizeBytes: int = Field(default=0, ge=0)


class CreateStreamRequest(StreamConfigRequest):
    """A stream to create."""

    streamName: str


class UpdateStreamRequest(StreamConfigRequest):
    """The new configuration of a stream."""


class CreateScopeRequest(_Json):
    """A scope to create."""

    scopeName: str


class ScopeProperty(_Json):
    """A scope."""

    scopeName: str


class ScopesList(_Json):
    """All scopes."""

    scopes: list[ScopeProperty]


class StreamProperty(_Json):
    """A stream and its configuration."""

    scopeName: str
    streamName: str
    scalingPolicy: ScalingConfig
    retentionPolicy: RetentionConfig | None = None
    tags: list[str]
    timestampAggregationTimeout: int = 0
    rolloverSizeBytes: int = 0


class StreamsList(_Json):
    """The streams of a scope."""

    streams: list[StreamProperty]


class StreamStateName(enum.Enum):
    """The only state that a request can set."""

    SEALED = "SEALED"


class StreamStateRequest(_Json):
    """The state of a stream that is wanted, and was reached."""

    streamState: StreamStateName


class ScaleSegment(_Json):
    """A segment of an epoch, by the names of Pravega's server and of its documentation."""

    number: int
    epoch: int
    start: int
    startTime: int
    keyStart: float
    keyEnd: float


class ScaleMetadata(_Json):
    """A scale event: the segments after it. ``segmentList`` has the same as ``segments``."""

    timestamp: int
    segments: list[ScaleSegment]
    segmentList: list[ScaleSegment]
    splits: int
    merges: int


class ReaderGroupName(_Json):
    """A reader group of a list."""

    readerGroupName: str


class ReaderGroupsList(_Json):
    """The reader groups of a scope."""

    readerGroups: list[ReaderGroupName]


class ReaderGroupProperty(_Json):
    """A reader group: its streams, ``scope/stream`` if of another scope, and its readers."""

    scopeName: str
    readerGroupName: str
    streamList: list[str]
    onlineReaderIds: list[str]


class HealthStatus(enum.Enum):
    """The states of Pravega's health; this server is UP, or DOWN."""

    UP = "UP"
    STARTING = "STARTING"
    NEW = "NEW"
    UNKNOWN = "UNKNOWN"
    FAILED = "FAILED"
    DOWN = "DOWN"


class HealthResult(_Json):
    """The health of the server or of one contributor."""

    name: str
    status: HealthStatus
    readiness: bool
    liveness: bool
    details: dict[str, str]
    children: dict[str, HealthResult]


_TIMEOUT: Final = "timestamp_aggregation_timeout"
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_MIB: Final = 1024 * 1024
_TYPES: Final = {
    ScalingType.FIXED: ScalingConfigType.FIXED_NUM_SEGMENTS,
    ScalingType.EVENT_RATE: ScalingConfigType.BY_RATE_IN_EVENTS_PER_SEC,
    ScalingType.DATA_RATE: ScalingConfigType.BY_RATE_IN_KBYTES_PER_SEC,
}


def encode_stream(scope: str, name: str, configuration: StreamConfiguration) -> StreamProperty:
    """Return a stream as Pravega's REST API does."""
    return StreamProperty(
        scopeName=scope,
        streamName=name,
        scalingPolicy=_encode_scaling(configuration.scaling),
        retentionPolicy=_encode_retention(configuration.retention),
        tags=sorted(configuration.tags),
        timestampAggregationTimeout=int(configuration.settings.get(_TIMEOUT) or 0),
    )


def decode_scaling(given: ScalingConfig) -> ScalingPolicy:
    """Return the scaling policy of a request. Raises InvalidConfiguration."""
    if given.type is ScalingConfigType.FIXED_NUM_SEGMENTS:
        return ScalingPolicy.fixed(given.minSegments)
    if given.targetRate is None or given.scaleFactor is None:
        raise InvalidConfiguration(
            f"a scalingPolicy of type {given.type.value} needs targetRate and scaleFactor."
        )
    rates = given.targetRate, given.scaleFactor, given.minSegments
    if given.type is ScalingConfigType.BY_RATE_IN_EVENTS_PER_SEC:
        return ScalingPolicy.by_event_rate(*rates)
    return ScalingPolicy.by_data_rate(*rates)


def decode_retention(given: RetentionConfig | None) -> RetentionPolicy | None:
    """Return the retention policy of a request, or None. Raises InvalidConfiguration."""
    if given is None:
        return None
    unit, minimum, maximum = LimitUnit.NONE, 0, None
    if given.type is RetentionConfigType.LIMITED_SIZE_MB:
        unit, minimum = LimitUnit.SIZE_BYTES, given.value * _MIB
        maximum = None if given.maxValue is None else given.maxValue * _MIB
    elif given.type is RetentionConfigType.LIMITED_DAYS:
        unit, minimum = LimitUnit.TIME_MS, _time_ms(given.value, given.timeBasedRetention)
        if given.maxValue is not None or given.maxTimeBasedRetention is not None:
            maximum = _time_ms(given.maxValue or 0, given.maxTimeBasedRetention)
    elif not given.byConsumption:
        raise InvalidConfiguration(
            "a retentionPolicy needs a type: LIMITED_DAYS or LIMITED_SIZE_MB, or byConsumption."
        )
    kind = RetentionType.SIZE if unit is LimitUnit.SIZE_BYTES else RetentionType.TIME
    if given.byConsumption:
        kind = RetentionType.CONSUMPTION
    elif not minimum:
        raise InvalidConfiguration("a retentionPolicy of 0 would keep nothing; give a value.")
    return RetentionPolicy(kind, unit, minimum, maximum)


def decode_configuration(
    given: StreamConfigRequest, present: StreamConfiguration | None = None
) -> StreamConfiguration:
    """Return the configuration of a request; what Pravega does not know stays as it is.

    Raises InvalidConfiguration.
    """
    scaling, retention = (
        decode_scaling(given.scalingPolicy),
        decode_retention(given.retentionPolicy),
    )
    timeout_ms = given.timestampAggregationTimeout
    settings = {_TIMEOUT: f"{timeout_ms} ms"} if timeout_ms else {}
    wanted = StreamConfiguration(scaling, retention, given.streamTags, settings)
    if present is None:
        return wanted
    record = {**present.to_json(), **wanted.to_json()}
    record["settings"] = {**present.settings, **wanted.settings}
    return StreamConfiguration.from_json(record)


def _encode_scaling(policy: ScalingPolicy) -> ScalingConfig:
    if policy.type is ScalingType.FIXED:
        return ScalingConfig(type=_TYPES[policy.type], minSegments=policy.minimum)
    return ScalingConfig(
        type=_TYPES[policy.type],
        targetRate=policy.target,
        scaleFactor=policy.factor,
        minSegments=policy.minimum,
    )


def _encode_retention(policy: RetentionPolicy | None) -> RetentionConfig | None:
    if policy is None:
        return None
    consumption = policy.type is RetentionType.CONSUMPTION
    if policy.unit is LimitUnit.NONE:
        return RetentionConfig(byConsumption=consumption)
    if policy.unit is LimitUnit.SIZE_BYTES:
        return RetentionConfig(
            type=RetentionConfigType.LIMITED_SIZE_MB,
            value=policy.minimum // _MIB,
            maxValue=None if policy.maximum is None else policy.maximum // _MIB,
            byConsumption=consumption,
        )
    found = RetentionConfig(
        type=RetentionConfigType.LIMITED_DAYS,
        value=_whole_days(policy.minimum),
        timeBasedRetention=_parts(policy.minimum),
        byConsumption=consumption,
    )
    if policy.maximum is not None:
        found.maxValue = _whole_days(policy.maximum)
        found.maxTimeBasedRetention = _parts(policy.maximum)
    return found


def _whole_days(time_ms: int) -> int:
    """Return a time in days if it is whole, else 0: then its parts say it (as in Pravega)."""
    return 0 if time_ms % _DAY_MS else time_ms // _DAY_MS


def _parts(time_ms: int) -> TimeBasedRetention:
    days, rest = divmod(time_ms, _DAY_MS)
    hours, rest = divmod(rest, _HOUR_MS)
    return TimeBasedRetention(days=days, hours=hours, minutes=rest // _MINUTE_MS)


def _time_ms(days: int, parts: TimeBasedRetention | None) -> int:
    if days or parts is None:
        return days * _DAY_MS
    return parts.days * _DAY_MS + parts.hours * _HOUR_MS + parts.minutes * _MINUTE_MS
