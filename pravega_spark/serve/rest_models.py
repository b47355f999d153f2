"""The JSON of Pravega's REST API, version 1, by its own names.

Fields that Pravega has and this package does not, ``timestampAggregationTimeout`` and
``rolloverSizeBytes``, are accepted and always 0 in answers.
"""

from __future__ import annotations

import enum
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field


class RestRoute(APIRoute):
    """A route whose answers omit fields without a value, as Pravega's server does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what the base class does."""
        super().__init__(*args, **{**options, "response_model_exclude_none": True})


class _Json(BaseModel):
    """JSON of Pravega: unknown fields are ignored, as its server does."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class ScalingConfigType(enum.Enum):
    """What determines the number of segments."""

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
