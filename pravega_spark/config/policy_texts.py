"""Policies as one short text, for the command line and for declared streams.

====================================  ===========================================================
text                                  policy
====================================  ===========================================================
``fixed:4``                           four segments
``events:1000``                       about 1,000 events/s a segment
``events:1000,factor=4,minimum=2``    likewise, with the split factor and the least number
``bytes:1 MiB``                       about 1 MiB/s a segment
``none``                              keep everything
``time:7 days``                       delete what is older
``size:10 GiB``, ``size:1g..2g``      keep the newest bytes; between a minimum and a maximum
``consumption``                       delete what all subscribers have consumed
``consumption:1 hour..7 days``        likewise, within a minimum and a maximum
====================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.config.policies import (
    LimitUnit,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    ScalingType,
)
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import shown
from pravega_spark.values.units import KIB, duration_text, exact_size_text, parse_size_bytes

_SCALING_FORMS = "fixed:4, events:1000 or bytes:1MiB, then ,factor=2,minimum=1 if you like"
_RETENTION_FORMS = "none, time:7d, size:10GiB, consumption or consumption:1h..7d"
_OPTIONS = ("factor", "minimum")


def parse_scaling(text: str) -> ScalingPolicy:
    """Return the scaling policy of a text; InvalidConfiguration for another one."""
    first, *others = text.split(",")
    kind, _, value = (part.strip() for part in first.partition(":"))
    options = dict(_option(text, other) for other in others)
    number = value.replace("_", "")
    if kind == "fixed" and number.isdigit() and not options:
        return ScalingPolicy.fixed(int(number))
    if kind == "events" and number.isdigit():
        return ScalingPolicy.by_event_rate(int(number), **options)
    if kind == "bytes" and value:
        rate = max(1, round(parse_size_bytes("the target rate", value) / KIB))
        return ScalingPolicy.by_data_rate(rate, **options)
    raise InvalidConfiguration(
        f"{shown(text)} is not a valid scaling policy: write {_SCALING_FORMS}."
    )


def _option(text: str, part: str) -> tuple[str, int]:
    name, _, value = (piece.strip() for piece in part.partition("="))
    if name not in _OPTIONS or not value.isdigit():
        raise InvalidConfiguration(
            f"{shown(part)} of the scaling policy {shown(text)} is unknown: write {_SCALING_FORMS}."
        )
    return name, int(value)


def scaling_text(policy: ScalingPolicy) -> str:
    """Return the text of a scaling policy, which :func:`parse_scaling` reads."""
    if policy.type is ScalingType.FIXED:
        return f"fixed:{policy.minimum}"
    if policy.type is ScalingType.EVENT_RATE:
        rate = f"events:{policy.target}"
    else:
        rate = f"bytes:{exact_size_text(policy.target * KIB)}"
    return f"{rate},factor={policy.factor},minimum={policy.minimum}"


def parse_retention(text: str) -> RetentionPolicy | None:
    """Return the retention policy of a text, None for ``none``; InvalidConfiguration otherwise."""
    kind, separator, limits = (part.strip() for part in text.partition(":"))
    if kind == "none" and not separator:
        return None
    makers: dict[str, Callable[..., RetentionPolicy]] = {
        "time": RetentionPolicy.by_time,
        "size": RetentionPolicy.by_size,
        "consumption": RetentionPolicy.by_consumption,
    }
    if kind not in makers or (not limits and (separator or kind != "consumption")):
        raise InvalidConfiguration(
            f"{shown(text)} is not a valid retention policy: write {_RETENTION_FORMS}."
        )
    minimum, _, maximum = (part.strip() for part in limits.partition(".."))
    given = {"minimum": minimum, "maximum": maximum}
    if kind != "consumption" and not minimum:
        given["minimum"] = "0"
    return makers[kind](**{name: value for name, value in given.items() if value})


def retention_text(policy: RetentionPolicy | None) -> str:
    """Return the text of a retention policy, which :func:`parse_retention` reads."""
    if policy is None:
        return "none"
    limit = duration_text if policy.unit is LimitUnit.TIME_MS else exact_size_text
    low = limit(policy.minimum) if policy.minimum or policy.maximum is None else ""
    if policy.unit is LimitUnit.NONE:
        return policy.type.value
    if policy.type is not RetentionType.CONSUMPTION and not low:
        low = limit(0)
    high = "" if policy.maximum is None else f"..{limit(policy.maximum)}"
    return f"{policy.type.value}:{low}{high}"
