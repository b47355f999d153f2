"""Anchors of titles as GitHub makes them, so that a link holds on both."""

from __future__ import annotations

import re

_DROPPED = re.compile(r"[^\w\- ]")


def anchor(title: str, separator: str = "-") -> str:
    """Return the anchor of a title, which is plain text."""
    return _DROPPED.sub("", title.lower()).replace(" ", separator)
