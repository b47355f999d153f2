"""Durations and sizes: parse texts such as '7 days' and '10 GB', and show them."""

from __future__ import annotations

import math
import re

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.checks import shown

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_DURATION_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}
_SIZE_UNITS = {
    "": 1, "b": 1, "byte": 1, "bytes": 1,
    "k": KIB, "kb": KIB, "kib": KIB, "m": MIB, "mb": MIB, "mib": MIB,
    "g": GIB, "gb": GIB, "gib": GIB, "t": GIB * KIB, "tb": GIB * KIB, "tib": GIB * KIB,
}  # fmt: skip


def parse_duration_ms(what: str, value: str | float) -> int:
    """Parse ``"90 s"``, ``"1 hour"``, ``"7d"`` or a number of seconds into milliseconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number, unit = _float(value), "s"
    else:
        match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
        if match is not None and not match[2] and not float(match[1]):
            return 0
        if match is None or match[2].lower() not in _DURATION_UNITS_MS:
            raise InvalidConfiguration(
                f"{what} {shown(value)} is not a valid duration: write '90 s', '5 minutes', '1 "
                "hour' or '7 days'."
            )
        number, unit = float(match[1]), match[2].lower()
    value_ms = number * _DURATION_UNITS_MS[unit]
    if not 0 <= value_ms < math.inf:
        raise InvalidConfiguration(
            f"{what} must be a finite duration of at least 0, got {shown(value)}."
        )
    return round(value_ms)


def _float(value: float) -> float:
    """Return a number as a float: infinity for a whole number that no float can hold."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def duration_text(value_ms: int) -> str:
    """Return a duration as a text that can be parsed again, in its largest whole unit."""
    for unit, size_ms in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if value_ms and value_ms % size_ms == 0:
            return f"{value_ms // size_ms} {unit}{'s' if value_ms != size_ms else ''}"
    return f"{value_ms} ms" if value_ms % 1_000 else f"{value_ms // 1_000} s"


def parse_size_bytes(what: str, value: str | int) -> int:
    """Parse ``"256m"``, ``"1 GB"`` (binary multiples) or a number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        number, unit = _float(value), ""
    else:
        match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2].lower() not in _SIZE_UNITS:
            raise InvalidConfiguration(
                f"{what} {shown(value)} is not a valid size: write '256m', '10 GB' or a number of "
                "bytes."
            )
        number, unit = float(match[1]), match[2].lower()
    if not 0 <= number < math.inf:
        raise InvalidConfiguration(
            f"{what} must be a finite size of at least 0, got {shown(value)}."
        )
    return int(number * _SIZE_UNITS[unit])


def exact_size_text(size_bytes: int) -> str:
    """Return a size as a text that can be parsed again, in its largest whole unit."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes and size_bytes % size == 0:
            return f"{size_bytes // size} {unit}"
    return f"{size_bytes} bytes"


def unit_of(value: str) -> str | None:
    """Return ``time`` or ``size`` for the unit of a text; None if the unit is ambiguous."""
    match = _NUMBER_AND_UNIT.fullmatch(value)
    unit = match[2].lower() if match else ""
    if unit in ("", "m"):  # minutes or mebibytes
        return None
    return "time" if unit in _DURATION_UNITS_MS else "size" if unit in _SIZE_UNITS else None


def size_text(size_bytes: int) -> str:
    """Return a size as text: ``1.5 MiB``."""
    number, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if number < 1_024:
            break
        number, unit = number / 1_024, larger
    return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"


def time_text(seconds: float) -> str:
    """Return a duration as text: ``2.5 hours``."""
    for length, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def age_text(seconds: float) -> str:
    """Return an age as text; a negative one is that of a time in the future."""
    return time_text(seconds) if seconds >= 0 else f"{time_text(-seconds)} in the future"


def count_text(number: int, what: str) -> str:
    """Return a number of things as text: ``1 file``, ``2,000 files``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
