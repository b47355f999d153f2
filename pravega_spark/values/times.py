"""Points in time: parse texts such as '2026-03-01T12:00:00Z' and '-1h', and show them."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone

from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import shown
from pravega_spark.values.names import is_number
from pravega_spark.values.units import parse_duration_ms


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time: absolute, or ``ago_ms`` before the moment at which it is resolved."""

    absolute_us: int = 0
    ago_ms: int | None = None

    def resolve_us(self) -> int:
        """Return the time in microseconds since 1970."""
        if self.ago_ms is None:
            return self.absolute_us
        return time.time_ns() // 1_000 - self.ago_ms * 1_000


def parse_timestamp(what: str, text: str) -> Timestamp:
    """Parse epoch milliseconds, an ISO-8601 time or date (UTC by default), or ``-1h``.

    Raises InvalidInput, which begins with ``what``.
    """
    text = text.strip()
    if is_number(text):
        return Timestamp(int(text) * 1_000)
    try:
        if text.startswith("-"):
            return Timestamp(ago_ms=parse_duration_ms(what, text[1:]))
        found = iso_time(text)
    except (ValueError, InvalidInput):
        raise InvalidInput(
            f"{what}: {shown(text)} is not a time; write milliseconds since 1970, "
            "'2026-03-01T12:00:00Z', '2026-03-01', or '-1h' for an hour ago."
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    since = found - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return Timestamp((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def iso_time(text: str) -> datetime:
    """Parse an ISO-8601 time or date, to microseconds; raises ValueError.

    Before Python 3.11 the standard library knows no Z, and fractions of 3 or 6 digits alone.
    """
    with_offset = re.sub(r"[zZ]$", "+00:00", text)
    return datetime.fromisoformat(
        re.sub(r"[.,](\d+)", lambda digits: f".{digits[1][:6]:0<6}", with_offset, count=1)
    )


def utc_text(time_ms: int, precision: str = "seconds") -> str:
    """Return a time in ms since 1970 as text: ``2026-03-01 12:04:11 UTC``, or to the minutes."""
    try:
        at = datetime.fromtimestamp(time_ms / 1_000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
    return f"{at.replace(tzinfo=None).isoformat(' ', precision)} UTC"
