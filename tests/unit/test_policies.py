from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from pravega_spark.config.policies import (
    LimitUnit,
    RetentionPolicy,
    RetentionType,
    ScalingPace,
    ScalingPolicy,
    StreamConfiguration,
)
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.units import GIB, KIB, MIB, parse_duration_ms, parse_size_bytes

DAY_MS = 86_400_000
SCALING = [
    ScalingPolicy.fixed(3),
    ScalingPolicy.by_event_rate(100, factor=3, minimum=2),
    ScalingPolicy.by_data_rate(512, factor=4, minimum=2),
]
RETENTION = [
    None,
    RetentionPolicy.by_time("7 days"),
    RetentionPolicy.by_time(90, "1 hour"),
    RetentionPolicy.by_size("10 GB", "20 GB"),
    RetentionPolicy.by_size(1_000),
    RetentionPolicy.by_consumption(),
    RetentionPolicy.by_consumption("1 hour", "7 days"),
    RetentionPolicy.by_consumption(maximum="500 MB"),
]


@pytest.mark.parametrize("scaling", SCALING)
@pytest.mark.parametrize("retention", RETENTION)
def test_configuration_survives_json_pickle_and_copy(
    scaling: ScalingPolicy, retention: RetentionPolicy | None
) -> None:
    made = StreamConfiguration(scaling, retention, {"b", "a"})
    for copied in (
        StreamConfiguration.from_json(made.to_json()),
        pickle.loads(pickle.dumps(made)),
        copy.deepcopy(made),
        replace(made),
    ):
        assert copied == made
        assert copied.tags == made.tags == frozenset({"a", "b"})
    assert made == replace(made, tags=frozenset())
    assert hash(made) == hash(replace(made, tags=frozenset()))


@pytest.mark.parametrize(
    "make",
    [
        ScalingPolicy.by_event_rate,
        lambda number: ScalingPolicy.by_data_rate(5, factor=number),
        RetentionPolicy.by_size,
        lambda number: RetentionPolicy.by_time(0, number),
        lambda number: RetentionPolicy.by_consumption(maximum=f"{number} B"),
    ],
)
def test_numbers_of_policies_have_at_most_64_bits(make: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"must be below 9223372036854775808"):
        make(2**63)


def test_default_configuration_is_one_segment_without_retention() -> None:
    made = StreamConfiguration()
    assert (made.scaling, made.retention, made.tags) == (ScalingPolicy.fixed(1), None, frozenset())
    with pytest.raises(AttributeError):
        made.tags = frozenset()  # type: ignore[misc]


def test_limits_keep_their_unit() -> None:
    time = RetentionPolicy.by_time("1 day", "7d")
    assert (time.type, time.unit) == (RetentionType.TIME, LimitUnit.TIME_MS)
    assert (time.minimum, time.maximum) == (DAY_MS, 7 * DAY_MS)
    size = RetentionPolicy.by_size("256m", "1 GB")
    assert (size.type, size.unit) == (RetentionType.SIZE, LimitUnit.SIZE_BYTES)
    assert (size.minimum, size.maximum) == (256 * MIB, GIB)
    assert RetentionPolicy.by_consumption().unit is LimitUnit.NONE
    assert RetentionPolicy.by_consumption("1 hour").unit is LimitUnit.TIME_MS
    consumed = RetentionPolicy.by_consumption(maximum="2 kb")
    assert (consumed.unit, consumed.minimum, consumed.maximum) == (
        LimitUnit.SIZE_BYTES,
        0,
        2 * KIB,
    )


@pytest.mark.parametrize(
    ("minimum", "maximum", "message"),
    [
        ("1 hour", "10 GB", r"mix units: minimum '1 hour' is a time_ms and maximum '10 GB' a size"),
        ("10 GB", "1 hour", "mix units"),
        ("5 m", None, "names no clear unit"),  # minutes or megabytes
        (5, None, "names no clear unit"),
        ("5", "1 hour", "names no clear unit"),
        ("2 hours", "1 hour", "below the minimum"),
        (None, "0 s", "or 0"),
    ],
)
def test_limits_of_mixed_unclear_or_crossed_units_are_refused(
    minimum: Any, maximum: Any, message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        RetentionPolicy.by_consumption(minimum, maximum)


@pytest.mark.parametrize(
    "value",
    ["", "7 parsecs", "h", "-1 s", -1, None, True, "10 GB", float("nan"), float("inf"), 10**400],
)
def test_invalid_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="grace"):
        parse_duration_ms("grace", value)


@pytest.mark.parametrize(
    "value", ["", "7 parsecs", "GB", "-1 kb", -1, None, True, 1.5, "1 hour", 10**400, "9" * 400]
)
def test_invalid_size_is_refused(value: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="chunk"):
        parse_size_bytes("chunk", value)


@pytest.mark.parametrize(("target", "factor", "minimum"), [(0, 2, 1), (1, 0, 1), (1, 2, 0)])
@pytest.mark.parametrize("make", [ScalingPolicy.by_data_rate, ScalingPolicy.by_event_rate])
def test_rates_and_factors_of_zero_are_refused(
    make: Any, target: int, factor: int, minimum: int
) -> None:
    with pytest.raises(InvalidConfiguration, match="above 0"):
        make(target, factor, minimum)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scaling": 3}, "scaling must be a ScalingPolicy, got 3"),
        ({"retention": "7 days"}, "retention must be a RetentionPolicy or None"),
        ({"tags": 7}, "tags must be a set of texts"),
        ({"tags": {"a": 1}}, "tags must be a set of texts"),
        ({"tags": [["a"]]}, "a tag must be a text of 1 to 256 characters"),
        ({"tags": {"\ud800"}}, r"'\\ud800' has no UTF-8 form"),
    ],
)
def test_configuration_of_other_types_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        StreamConfiguration(**given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tick_ms", 0),
        ("tick_ms", "5 s"),
        ("cold_ms", float("nan")),
        ("history_ms", None),
        ("cooldown_ms", -1),
        ("mute_ms", True),
        ("windows_ms", (1, 2, 3)),
        ("windows_ms", [1, 2, 3, 4]),
        ("windows_ms", (1, 2, 0, 4)),
        ("windows_ms", "x" * 10_000),
    ],
)
def test_pace_with_a_time_that_is_none_is_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{name} of a pace must be") as refused:
        ScalingPace(**{name: value})
    assert len(str(refused.value)) < 300


def test_pace_may_be_without_a_cooldown() -> None:
    assert ScalingPace(cooldown_ms=0, mute_ms=0, report_ms=0).scaled(2).tick_ms == 10_000
