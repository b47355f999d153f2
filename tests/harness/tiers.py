"""The tiers of the tests: ``make check``, ``make test`` and ``make long`` (CONTRIBUTING.md).

A test marked ``long`` has two sizes. ``make test`` runs the short one. ``make long`` runs only
these tests, at their long size: more seeds, more rounds, more data.
"""

from __future__ import annotations

import os

TIER_VARIABLE = "PRAVEGA_SPARK_TESTS"
IS_LONG = os.environ.get(TIER_VARIABLE) == "long"
LONG_TIMEOUT_SECONDS = 3_600


def sized(short: int, long: int, variable: str | None = None) -> int:
    """Return the size for this tier; an environment variable of that name overrides it."""
    chosen = os.environ.get(variable) if variable else None
    return int(chosen) if chosen else long if IS_LONG else short
