"""The rules of settings, and the function that decides which value holds."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from pravega_spark.config.root_settings import (
    SETTING_NAMES,
    EffectiveSettings,
    SettingOrigin,
    decide_settings,
    decode_given,
    parse_changes,
    parse_flags,
    rule_of,
)
from pravega_spark.config.setting_rules import SettingValue
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.units import duration_text, parse_duration_ms

HOUR = 3_600_000
PLACES = {SettingOrigin.ROOT: 1, SettingOrigin.STREAM: 2, SettingOrigin.FLAG: 3}


@pytest.mark.parametrize("given", list(product([False, True], repeat=3)))
@pytest.mark.parametrize("name", SETTING_NAMES)
def test_place_nearest_to_the_call_decides(name: str, given: tuple[bool, ...]) -> None:
    places: list[dict[str, SettingValue]] = [
        {name: value * HOUR} if is_given else {}
        for is_given, value in zip(given, PLACES.values(), strict=True)
    ]
    found = decide_settings(*places)
    winners = [o for o, is_given in zip(PLACES, given, strict=True) if is_given]
    winner = winners[-1] if winners else None
    if winner is None:
        assert found == EffectiveSettings()
        assert found.origin(name) is SettingOrigin.DEFAULT
        assert found.text(name) == rule_of(name).text(EffectiveSettings().value(name))
    else:
        assert found.value(name) == PLACES[winner] * HOUR
        assert found.origin(name) is winner
        assert found.given_by(winner) == f"{name}={found.text(name)}"
    others = [n for n in SETTING_NAMES if n != name]
    assert all(found.value(n) == EffectiveSettings().value(n) for n in others)


def test_never_is_a_value_that_a_nearer_place_may_give() -> None:
    root = parse_changes({"expire": "30 days"}).values
    assert decide_settings(root).expire_ms == 30 * 24 * HOUR
    stream = parse_changes({"expire": " Never"}, of_streams=True).values
    found = decide_settings(root, stream)
    assert found.expire_ms is None
    assert found.origin("expire") is SettingOrigin.STREAM
    assert found.text("expire") == "never"
    assert decide_settings(root, stream, parse_flags({"expire": "1h"})).expire_ms == HOUR


def test_changes_leave_the_other_settings_and_none_clears() -> None:
    before = parse_changes({"grace": "2 hours", "retain": "3 days"}).values
    after = parse_changes({"grace": None, "expire": 3_600}).apply(before)
    assert after == {"expire": HOUR, "retain": 72 * HOUR}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("grace", "59 s", ["grace", "'59 s'", "1 minute to 3650 days"]),
        ("grace", 0, ["grace", "1 minute"]),
        ("grace", "3651 days", ["3650 days"]),
        ("grace", "never", ["grace", "'never'", "not a valid duration"]),
        ("grace", "soon", ["grace", "'soon'"]),
        ("grace", True, ["grace", "True"]),
        ("expire", "1 s", ["expire", "'never'"]),
        ("scaling_interval", 0, ["scaling_interval", "1 s"]),
        ("grace", "x" * 10_000, ["grace", "'xxx", "xxx...xxx"]),
        ("maintain", "x" * 10_000, ["maintain", "'xxx", "xxx...xxx"]),
        ("x" * 10_000, "1h", ["no setting", "xxx...xxx", "grace"]),
        ("grase", "1h", ["'grase'", "grace", "prepared_limit"]),
        ("grace_ms", "1h", ["'grace_ms'"]),
        ("origins", "1h", ["'origins'"]),
    ],
)
def test_bad_setting_is_refused_by_name_value_and_limits(
    name: str, value: Any, words: list[str]
) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_changes({"retain": "1h", name: value})
    assert all(word in str(caught.value) for word in words)
    assert len(str(caught.value)) < 500


def test_reading_an_unknown_setting_is_refused_without_a_word_of_changes() -> None:
    for read in (EffectiveSettings().text, EffectiveSettings().value, EffectiveSettings().origin):
        with pytest.raises(
            InvalidConfiguration, match=r"no setting 'x'\. Use one of grace"
        ) as found:
            read("x")
        assert "changed" not in str(found.value)


def test_stream_cannot_override_the_interval_of_a_job() -> None:
    with pytest.raises(InvalidConfiguration, match="setting of a stream 'scaling_interval'"):
        parse_changes({"scaling_interval": "1h"}, of_streams=True)


def test_flag_may_lie_outside_the_limits_but_must_be_a_duration() -> None:
    assert parse_flags({"grace": 0, "retain": None}) == {"grace": 0}
    with pytest.raises(InvalidConfiguration, match="grace 'soon'"):
        parse_flags({"grace": "soon"})


@pytest.mark.parametrize("value", ["1h", -1, 0, 59_999, 10**15, True, 1.5, None, [], {}])
def test_stored_value_of_another_type_or_beyond_the_limits_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="grace"):
        decode_given([("retain", 1), ("grace", value)])


def test_stored_settings_of_a_newer_version_are_not_used() -> None:
    assert decode_given([("retain", 1), ("colour", "blue")]) == {"retain": 1}


def test_settings_are_shown_as_users_write_them_with_their_origin() -> None:
    shown = repr(decide_settings({"grace": 2 * HOUR}))
    assert "grace='2 hours' (root)" in shown
    assert "retain='30 days' (default)" in shown
    assert all(f"{name}=" in shown for name in SETTING_NAMES)


def test_settings_are_equal_and_hashed_by_values_and_origins() -> None:
    one, two = (decide_settings({"grace": HOUR}) for _ in range(2))
    assert (one, hash(one)) == (two, hash(two))
    assert one != decide_settings({}, {"grace": HOUR})
    assert one != decide_settings({"grace": 2 * HOUR})


@pytest.mark.parametrize("value_ms", [0, 1, 999, 1_000, 1_500, 60_000, 90_000, HOUR, 36 * HOUR])
def test_text_of_a_duration_is_read_back(value_ms: int) -> None:
    assert parse_duration_ms("it", duration_text(value_ms)) == value_ms


def test_duration_is_written_in_its_largest_unit() -> None:
    texts = [duration_text(ms) for ms in (0, 1_500, 60_000, 2 * HOUR, 24 * HOUR, 36 * HOUR)]
    assert texts == ["0 s", "1500 ms", "1 minute", "2 hours", "1 day", "36 hours"]
