"""The navigation of the site."""

from __future__ import annotations

from typing import Any

from site_pages.reference_pages import reference_pages
from site_pages.root_pages import REPOSITORY

_START = ["index.md", {"Five-minute tour": "tour.md"}, "concepts.md", "glossary.md"]
_COMING_FROM = ["from-kafka.md", "from-delta.md", "from-fluss-paimon.md"]
_GUIDES = [
    "how-to.md",
    "recipes.md",
    "query-engines.md",
    "spark.md",
    "transactions.md",
    "reader-groups.md",
    "key-value-tables.md",
    "conditional-appends.md",
    "time.md",
    "batch-reads.md",
    "byte-streams.md",
    "large-events.md",
    "shared-state.md",
    "scaling.md",
    "retention.md",
]
_OPERATIONS = [
    "operations.md",
    "maintenance.md",
    "settings.md",
    "monitoring.md",
    "storage.md",
    "backup.md",
    "troubleshooting.md",
]
_TRUST = ["limits.md", "compatibility.md", "reliability.md", "security.md"]
_INSIDE = [
    "ARCHITECTURE.md",
    "FORMAT.md",
    {"Contributing": "contributing.md"},
    {"Changelog": "changelog.md"},
]


def navigation() -> list[dict[str, Any]]:
    """Return the navigation, as mkdocs.yml would have it under ``nav``."""
    decisions = sorted((REPOSITORY / "docs/adr").glob("0*.md"))
    adr = ["adr/README.md", *(f"adr/{path.name}" for path in decisions)]
    reference = [{title: place} for place, (title, _) in reference_pages().items()]
    return [
        {"Start": _START},
        {"Guides": _GUIDES},
        {"Coming from": _COMING_FROM},
        {"Operations": _OPERATIONS},
        {"Limits and promises": _TRUST},
        {"Reference": reference},
        {"Inside": [*_INSIDE, {"Decisions": adr}]},
    ]
