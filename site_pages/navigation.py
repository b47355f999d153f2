"""The navigation of the site."""

from __future__ import annotations

from typing import Any

from site_pages.reference_pages import reference_pages
from site_pages.root_pages import REPOSITORY

_START = ["index.md", "quickstart.md", "concepts.md", "glossary.md"]
_COMING_FROM = ["from-kafka.md", "from-pravega.md", "from-delta.md", "from-fluss-paimon.md"]
_GUIDES = [
    "how-to.md",
    "recipes.md",
    "query-engines.md",
    "spark.md",
    "spark-reference.md",
    "spark-frames.md",
    "transactions.md",
    "reader-groups.md",
    "key-value-tables.md",
    "conditional-appends.md",
    "time.md",
    "typed-streams.md",
    "batch-reads.md",
    "byte-streams.md",
    "large-events.md",
    "shared-state.md",
    "scaling.md",
    "retention.md",
    "policies.md",
]
_OPERATIONS = [
    "operations.md",
    "command-line.md",
    "serve.md",
    "deploy.md",
    "platforms.md",
    "closed-networks.md",
    "maintenance.md",
    "maintenance-reference.md",
    "settings.md",
    "monitoring.md",
    "storage.md",
    "backup.md",
    "troubleshooting.md",
]
_TRUST = [
    "limits.md",
    "scale.md",
    "benchmarks.md",
    "compatibility.md",
    "releases.md",
    "reliability.md",
    "security.md",
]
_INSIDE = ["ARCHITECTURE.md", "FORMAT.md", "histories.md"]


def navigation() -> list[dict[str, Any]]:
    """Return the navigation, as mkdocs.yml would have it under ``nav``.

    A page that has no place here stands at the end of the guides.
    """
    placed = {*_START, *_GUIDES, *_COMING_FROM, *_OPERATIONS, *_TRUST, *_INSIDE}
    others = sorted({path.name for path in (REPOSITORY / "docs").glob("*.md")} - placed)
    decisions = sorted((REPOSITORY / "docs/adr").glob("0*.md"))
    adr = ["adr/README.md", *(f"adr/{path.name}" for path in decisions)]
    reference = [{title: place} for place, (title, _) in reference_pages().items()]
    root = {"Contributing": "contributing", "Changelog": "changelog", "Reports": "reporting"}
    inside = [*_INSIDE, *({title: f"{place}.md"} for title, place in root.items())]
    return [
        {"Start": _START},
        {"Guides": [*_GUIDES, *others]},
        {"Coming from": _COMING_FROM},
        {"Operations": _OPERATIONS},
        {"Limits and promises": _TRUST},
        {"Reference": reference},
        {"Inside": [*inside, "model/README.md", {"Decisions": adr}]},
    ]
