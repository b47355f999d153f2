"""The limits that the documents name are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.values.limits import (
    CHUNK_CACHE,
    DEFAULT_LEASE,
    MAX_ATOMIC_WRITE_BYTES,
    MAX_EVENT_BYTES,
    MAX_GROUP_STREAMS,
    MAX_KEY_NAME_LENGTH,
    MAX_LARGE_EVENT_BYTES,
    MAX_LEASE_MS,
    MAX_NOTE_LENGTH,
    MAX_PRINCIPAL_LENGTH,
    MAX_READER_LEASE_MS,
    MAX_ROUTING_KEY_LENGTH,
    MAX_SAVED_CUTS,
    MAX_SEGMENTS,
    MAX_TAG_LENGTH,
    MAX_TAGS,
    MIN_LEASE_MS,
    MIN_READER_LEASE_MS,
    PREFETCH_CHUNK_BYTES,
    READER_LEASE,
    WRITER_BATCH_EVENTS,
)
from pravega_spark.values.names import MAX_NAME_LENGTH, MAX_SCOPE_LENGTH
from pravega_spark.values.units import GIB, MIB, parse_size_bytes

DOCS = Path(__file__).parents[2] / "docs"


def _lease(least_ms: int, most_ms: int) -> str:
    return f"{least_ms // 1_000} s to {most_ms // 1_000:,} s"


LIMITS = [
    ("limits.md", f"up to **{CHUNK_CACHE}**"),
    ("storage.md", f"by default {CHUNK_CACHE} for each root"),
    ("storage.md", f"Chunks of at most {PREFETCH_CHUNK_BYTES // MIB} MiB are kept"),
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
    ("limits.md", f"**{MAX_EVENT_BYTES // MIB} MiB** ({MAX_EVENT_BYTES:,} bytes)"),
    ("limits.md", f"**{MAX_LARGE_EVENT_BYTES >> 30} GiB** ({MAX_LARGE_EVENT_BYTES:,} bytes)"),
    ("large-events.md", f"{MAX_LARGE_EVENT_BYTES >> 30} GiB ({MAX_LARGE_EVENT_BYTES:,} bytes)"),
    (
        "limits.md",
        f"at most {WRITER_BATCH_EVENTS:,} events of {MAX_ATOMIC_WRITE_BYTES // MIB} MiB in total",
    ),
    ("limits.md", f"| a note of a writer | {MAX_NOTE_LENGTH:,} characters"),
    ("limits.md", f"| a principal | {MAX_PRINCIPAL_LENGTH} printable characters"),
    ("limits.md", f"| the name of a master key | {MAX_KEY_NAME_LENGTH} letters"),
    ("limits.md", f"| a routing key | {MAX_ROUTING_KEY_LENGTH:,} characters"),
    ("security.md", f"| A routing key may have {MAX_ROUTING_KEY_LENGTH:,} characters, and"),
    ("limits.md", f"of a stream | at most {MAX_SAVED_CUTS:,}, since each"),
    ("limits.md", f"| streams of a reader group | 1 to {MAX_GROUP_STREAMS:,} |"),
    ("limits.md", f"| segments of a stream | at most {MAX_SEGMENTS:,} |"),
    ("limits.md", f"of scopes {MAX_SCOPE_LENGTH} "),
    ("limits.md", f"any text of {MAX_NAME_LENGTH} characters"),
    ("limits.md", f"at most {MAX_TAGS}, of {MAX_TAG_LENGTH} characters each"),
]


@pytest.mark.parametrize(("page", "limit"), LIMITS)
def test_page_names_the_limit_of_the_code(page: str, limit: str) -> None:
    assert limit in (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("unit", ["GB", "GiB", "g"])
def test_settings_page_says_how_many_bytes_the_units_of_sizes_are(unit: str) -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert f"`GB`, `GiB` and `g` are all {GIB:,} bytes" in page
    assert parse_size_bytes("a size", f"1 {unit}") == GIB


@pytest.mark.parametrize("pinned", ["pyspark>=4.0,<4.3", "delta-spark==4.4.0"])
def test_page_names_the_versions_that_the_project_pins(pinned: str) -> None:
    assert pinned in (DOCS / "limits.md").read_text(encoding="utf-8")
    assert pinned in (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
