"""The storage options of this package, among those of an object store's client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pravega_spark.errors import InvalidInput
from pravega_spark.values.limits import (
    CONNECT_TIMEOUT,
    LONGEST_TIMEOUT_MS,
    READ_TIMEOUT,
    RETRY_TIMEOUT,
)
from pravega_spark.values.units import parse_duration_ms

TIMEOUTS = frozenset({"connect_timeout", "read_timeout"})
"""The options that :func:`with_timeouts` takes."""


RETRY_VARIABLE = "PRAVEGA_SPARK_RETRY_TIMEOUT"
"""The variable with the default of ``retry_timeout``, for Spark's processes and jobs."""


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the client's options, and for how many seconds a call is repeated.

    ``retry_timeout`` is a duration such as ``"2 minutes"``, or a number of seconds; 0 repeats
    nothing. By default the variable PRAVEGA_SPARK_RETRY_TIMEOUT holds, then a minute. Raises
    InvalidConfiguration for a value that is none.
    """
    rest, name = dict(options), "retry_timeout"
    if name not in rest:
        found = os.environ.get(RETRY_VARIABLE)
        name, rest[RETRY_VARIABLE] = RETRY_VARIABLE, found or RETRY_TIMEOUT
    return rest, parse_duration_ms(name, rest.pop(name)) / 1_000


def with_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of S3 in which the time-outs of a call are part of ``config_kwargs``.

    ``connect_timeout`` and ``read_timeout`` are durations; where ``config_kwargs`` has a time-out
    already, giving both is refused with InvalidInput.
    """
    rest = dict(options)
    config = dict(rest.get("config_kwargs") or {})
    for name, default in (("connect_timeout", CONNECT_TIMEOUT), ("read_timeout", READ_TIMEOUT)):
        if name in rest and name in config:
            raise InvalidInput(f"{name} is given twice: as an option, and in config_kwargs.")
        if name in rest or name not in config:
            duration_ms = parse_duration_ms(name, rest.pop(name, default))
            if not duration_ms:
                raise InvalidInput(f"{name} must be more than 0, or no call could succeed.")
            if duration_ms > LONGEST_TIMEOUT_MS:
                raise InvalidInput(f"{name} must be at most 1 day.")
            config[name] = duration_ms / 1_000
    return {**rest, "config_kwargs": config}
