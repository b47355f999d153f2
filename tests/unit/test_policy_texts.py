"""Policies as texts: what is printed is read again, and what is wrong is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import LimitUnit, RetentionPolicy, RetentionType, ScalingPolicy
from pravega_spark.config.policy_texts import (
    parse_retention,
    parse_scaling,
    retention_text,
    scaling_text,
)
from pravega_spark.errors import InvalidConfiguration

SCALING = {
    "fixed:4": ScalingPolicy.fixed(4),
    "events:1_000": ScalingPolicy.by_event_rate(1_000),
    "events: 10 , factor=4, minimum=2": ScalingPolicy.by_event_rate(10, 4, 2),
    "bytes:1 MiB": ScalingPolicy.by_data_rate(1_024),
    "bytes:100kb,minimum=3": ScalingPolicy.by_data_rate(100, minimum=3),
}
RETENTION = {
    "none": None,
    "time:7d": RetentionPolicy.by_time("7 days"),
    "size:1g..2g": RetentionPolicy.by_size("1 GiB", "2 GiB"),
    "consumption": RetentionPolicy.by_consumption(),
    "consumption:1 hour..7 days": RetentionPolicy.by_consumption("1 hour", "7 days"),
    "consumption:..7 days": RetentionPolicy.by_consumption(None, "7 days"),
    "consumption:1 hour": RetentionPolicy.by_consumption("1 hour"),
}


@pytest.mark.parametrize("text", SCALING)
def test_a_text_is_a_scaling_policy(text: str) -> None:
    assert parse_scaling(text) == SCALING[text]


@pytest.mark.parametrize("text", RETENTION)
def test_a_text_is_a_retention_policy(text: str) -> None:
    assert parse_retention(text) == RETENTION[text]


WHOLE = st.integers(1, 10**6)
POLICIES = (
    st.builds(ScalingPolicy.fixed, st.integers(1, 10_000))
    | st.builds(ScalingPolicy.by_event_rate, WHOLE, st.integers(1, 99), st.integers(1, 99))
    | st.builds(ScalingPolicy.by_data_rate, WHOLE, st.integers(1, 99), st.integers(1, 99))
)


@given(POLICIES)
def test_a_printed_scaling_policy_is_read_again(policy: ScalingPolicy) -> None:
    assert parse_scaling(scaling_text(policy)) == policy


@given(
    st.sampled_from(RetentionType),
    st.integers(0, 10**12),
    st.none() | st.integers(1, 10**12),
    st.sampled_from([LimitUnit.TIME_MS, LimitUnit.SIZE_BYTES]),
)
def test_a_printed_retention_policy_is_read_again(
    kind: RetentionType, minimum: int, more: int | None, unit: LimitUnit
) -> None:
    units = {RetentionType.TIME: LimitUnit.TIME_MS, RetentionType.SIZE: LimitUnit.SIZE_BYTES}
    maximum = None if more is None else minimum + more
    policy = RetentionPolicy(kind, units.get(kind, unit), minimum, maximum)
    assert parse_retention(retention_text(policy)) == policy


@pytest.mark.parametrize(
    "text",
    ["", "fixed", "fixed:", "fixed:x", "fixed:0", "fixed:4,factor=2", "events:-1",
     "events:5,fctor=2", "events:5,factor=x", "bytes:5 parsecs", "auto"],
)  # fmt: skip
def test_a_wrong_scaling_policy_is_named_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        parse_scaling(text)


@pytest.mark.parametrize(
    "text",
    ["", "none:1", "time", "time:", "time:5 GB", "size:5 days", "consumption:", "forever",
     "consumption:1 hour..7 GB", "size:2g..1g", "consumption:5"],
)  # fmt: skip
def test_a_wrong_retention_policy_is_named_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        parse_retention(text)
