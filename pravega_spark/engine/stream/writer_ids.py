"""Ids of writers that have none of their own: each names the version at which it was opened."""

from __future__ import annotations

_MARK = "_"


def anonymous_id(version: int, token: str) -> str:
    """Return an id for a writer without one of its own; it carries the version of its opening."""
    return f"{_MARK}{version}.{token}"


def is_anonymous(writer_id: str) -> bool:
    """Tell whether the id was made by :func:`anonymous_id`; users' names have no ``_``."""
    return writer_id.startswith(_MARK)


def opened_at(writer_id: str) -> int:
    """Return the version at which an anonymous writer was opened."""
    return int(writer_id.removeprefix(_MARK).partition(".")[0])
