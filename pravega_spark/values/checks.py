"""Checks of arguments that public calls take: whole numbers, times, flags, lists, functions.

Python accepts ``True`` as a number and any value as true or false. These checks do not. Each
returns the argument, or raises InvalidInput with its name and value before anything is done.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from numbers import Real
from typing import Any, TypeVar, cast

from pravega_spark.errors import InvalidInput
from pravega_spark.primitives.printable import printable

MIN_TIME_US = -62_135_596_800_000_000
"""The earliest time that can be noted: the first microsecond of the year 1 in UTC."""
MAX_TIME_US = 253_402_300_799_999_999
"""The latest time that can be noted: the last microsecond of the year 9999 in UTC."""

_Item = TypeVar("_Item")
_Function = TypeVar("_Function", bound="Callable[..., Any] | None")

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120


def shown(value: object) -> str:
    """Return a given value for an error: its repr, shortened in the middle if it is long."""
    return printable(_short.repr(value))


def is_whole(value: object) -> bool:
    """Return True for an int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return True for a finite real number that is not a bool."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(cast("float", value))
    except OverflowError:  # a whole number that no float can hold
        return False


def check_whole(what: str, value: int, least: int | None = 0) -> int:
    """Return a whole number that is at least ``least``, if that is given."""
    if not is_whole(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise InvalidInput(f"{what} must be a whole number{bound}, got {shown(value)}.")
    return value


def check_timeout(call: str, timeout: object) -> None:
    """Check a number of seconds, or None for no limit. Cheap, since reads call it per event."""
    if timeout is None or (type(timeout) in (float, int) and 0 <= cast("float", timeout) < 1e9):
        return
    if not is_number(timeout) or cast("float", timeout) < 0:
        raise InvalidInput(
            f"the timeout of {call} must be a number of seconds of at least 0, or None to wait "
            f"without limit; got {shown(timeout)}."
        )


def check_flag(what: str, value: bool) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{what} is True or False, got {shown(value)}.")
    return value


def check_text(what: str, value: str) -> str:
    """Return a str."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a str, got {shown(value)}.")
    return value


def check_function(what: str, value: _Function) -> _Function:
    """Return a function, or None."""
    if value is not None and not callable(value):
        raise InvalidInput(f"{what} must be a function or None, got {shown(value)}.")
    return value


def check_list(what: str, given: Iterable[_Item]) -> list[_Item]:
    """Return the items as a list. A text, a mapping or a single value is refused."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise InvalidInput(
            f"{what}: a list is needed, got {shown(given)}; put a single item into a list."
        )
    return list(given)


def check_options(what: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a mapping from names to values, which may be secret; None is an empty one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"{what} must be a dict from names to values; got a value of type "
            f"{type(given).__name__}."
        )
    for name in given:
        if not isinstance(name, str):
            raise InvalidInput(
                f"{what} must be a dict from names to values, and a name is a text; got the name "
                f"{shown(name)}."
            )
    return dict(given)


def check_time_us(what: str, time: object) -> int:
    """Return a time, as whole ms since 1970 or a datetime with a time zone, in us since 1970."""
    if is_whole(time):
        return _check_datable(what, time, 1_000 * cast("int", time))
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise InvalidInput(
            f"{what} must be a whole number of ms since 1970, or a datetime with a time zone, such "
            f"as UTC; got {shown(time)}."
        )
    since = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return _check_datable(what, time, us)


def check_timestamp_us(what: str, time: object) -> int | None:
    """Return a time as :func:`check_time_us` does; None if it is None."""
    return None if time is None else check_time_us(what, time)


def _check_datable(what: str, time: object, time_us: int) -> int:
    """Return a time in us since 1970, if a datetime in UTC can hold it."""
    if MIN_TIME_US <= time_us <= MAX_TIME_US:
        return time_us
    unit = " ms since 1970" if is_whole(time) else ""
    raise InvalidInput(
        f"{what} is {shown(time)}{unit}, which is beyond the years 1 to 9999 in UTC; whole numbers "
        f"are ms since 1970, from {MIN_TIME_US // 1_000} to {MAX_TIME_US // 1_000}: divide "
        "microseconds by 1000, and nanoseconds by 1000000."
    )
