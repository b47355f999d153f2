"""Configurations of streams to and from the JSON of Pravega's REST API."""

from __future__ import annotations

from typing import Final

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.policies import (
    LimitUnit,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
    StreamConfiguration,
)
from pravega_spark.serve.rest_models import (
    RetentionConfig,
    RetentionConfigType,
    ScalingConfig,
    ScalingConfigType,
    StreamConfigRequest,
    StreamProperty,
    TimeBasedRetention,
)

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
    wanted = StreamConfiguration(scaling, retention, given.streamTags)
    if present is None:
        return wanted
    return StreamConfiguration.from_json({**present.to_json(), **wanted.to_json()})


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
