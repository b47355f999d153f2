"""Ids of writers without a user's id: each id contains the version at which it was opened."""

from __future__ import annotations

_PREFIX = "_"


def anonymous_id(version: int, token: str) -> str:
    """Return an id for a writer without a user's id; it contains the version of its opening."""
    return f"{_PREFIX}{version}.{token}"


def is_anonymous(writer_id: str) -> bool:
    """Return True if :func:`anonymous_id` made the id; users' ids do not begin with ``_``."""
    return writer_id.startswith(_PREFIX)


def opened_at(writer_id: str) -> int:
    """Return the version at which an anonymous writer was opened."""
    return int(writer_id.removeprefix(_PREFIX).partition(".")[0])
