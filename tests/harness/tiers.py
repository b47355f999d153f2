"""The tiers of the tests: ``make quick``, ``check``, ``test`` and ``long`` (CONTRIBUTING.md).

A test marked ``long``, and every property, has two sizes. ``make test`` runs the short one.
``make long`` runs only these, at their long size: more seeds, more rounds, more data.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

TIER_VARIABLE = "PRAVEGA_SPARK_TESTS"
IS_LONG = os.environ.get(TIER_VARIABLE) == "long"
LONG_TIMEOUT_SECONDS = 3_600
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES = 4 << 30
"""More than the files of the tests that run at one time: a test's own are deleted at its end."""


def only_long(held_by: str) -> pytest.MarkDecorator:
    """Mark a ``long`` test that has no short size, with what else holds its promise."""
    return pytest.mark.skipif(not IS_LONG, reason=f"make long runs it; {held_by}")


def sized(short: int, long: int, variable: str | None = None) -> int:
    """Return the size for this tier; an environment variable of that name overrides it."""
    chosen = os.environ.get(variable) if variable else None
    return int(chosen) if chosen else long if IS_LONG else short


def use_memory_for_files() -> None:
    """Let temporary folders be in memory, except in the long tier and where ``TMPDIR`` is set.

    Nearly all tests write small files and wait until each is durable; on a disk they would mostly
    wait. What tests the disk itself asks for a folder on one (``tests/contract``).
    """
    if IS_LONG or "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    found = os.statvfs(_MEMORY)
    if found.f_bavail * found.f_frsize >= _MEMORY_BYTES and not found.f_flag & os.ST_NOEXEC:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None
