"""The storage options of this package, among those of an object store's client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pravega_spark.errors import InvalidInput
from pravega_spark.values.limits import (
    CHUNK_CACHE,
    CONNECT_TIMEOUT,
    LONGEST_TIMEOUT_MS,
    READ_TIMEOUT,
    RETRY_TIMEOUT,
)
from pravega_spark.values.units import parse_duration_ms, parse_size_bytes

TIMEOUTS = frozenset({"connect_timeout", "read_timeout"})
"""The options that :func:`with_timeouts` takes."""


OWN = frozenset({"retry_timeout", "chunk_cache"})
"""The options of each object store that its client does not get."""


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], float, int]:
    """Return the client's options, for how many seconds a call is repeated, and bytes of a cache.

    ``retry_timeout`` is a duration such as ``"2 minutes"``, or a number of seconds; 0 repeats
    nothing. ``chunk_cache`` is a size such as ``"256 MiB"``, or a number of bytes; 0 keeps no
    chunk. By default the variables PRAVEGA_SPARK_RETRY_TIMEOUT and PRAVEGA_SPARK_CHUNK_CACHE hold,
    then a minute and 64 MiB. Raises InvalidConfiguration for a value that is none.
    """
    rest = dict(options)
    retry_ms = parse_duration_ms(*_taken(rest, "retry_timeout", RETRY_TIMEOUT))
    cache_bytes = parse_size_bytes(*_taken(rest, "chunk_cache", CHUNK_CACHE))
    return rest, retry_ms / 1_000, cache_bytes


def _taken(options: dict[str, Any], name: str, default: str) -> tuple[str, Any]:
    """Take an option out; return its name, or its variable's, and the value that holds."""
    if name in options:
        return name, options.pop(name)
    variable = f"PRAVEGA_SPARK_{name.upper()}"
    return variable, os.environ.get(variable) or default


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
