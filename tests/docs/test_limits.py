"""The limits that the documents name are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.limits import (
    DEFAULT_LEASE,
    MAX_LEASE_MS,
    MAX_READER_LEASE_MS,
    MAX_TAG_LENGTH,
    MAX_TAGS,
    MIN_LEASE_MS,
    MIN_READER_LEASE_MS,
    READER_LEASE,
)
from pravega_spark.names import MAX_NAME_LENGTH, MAX_SCOPE_LENGTH

DOCS = Path(__file__).parents[2] / "docs"


def _lease(least_ms: int, most_ms: int) -> str:
    return f"{least_ms // 1_000} s to {most_ms // 1_000:,} s"


LIMITS = [
    ("reader-groups.md", f"{_lease(MIN_READER_LEASE_MS, MAX_READER_LEASE_MS)} (a day)"),
    ("reader-groups.md", f"a text of 1 to {MAX_NAME_LENGTH} characters"),
    (
        "limits.md",
        f"a lease of a reader | {_lease(MIN_READER_LEASE_MS, MAX_READER_LEASE_MS)} (a day), "
        f"by default {READER_LEASE}",
    ),
    (
        "limits.md",
        f"a lease of a transaction | {_lease(MIN_LEASE_MS, MAX_LEASE_MS)}, "
        f"by default {DEFAULT_LEASE}",
    ),
    ("limits.md", f"of scopes {MAX_SCOPE_LENGTH} "),
    ("limits.md", f"any text of {MAX_NAME_LENGTH} characters"),
    ("limits.md", f"at most {MAX_TAGS}, of {MAX_TAG_LENGTH} characters each"),
]


@pytest.mark.parametrize(("page", "limit"), LIMITS)
def test_page_names_the_limit_of_the_code(page: str, limit: str) -> None:
    assert limit in (DOCS / page).read_text(encoding="utf-8")
