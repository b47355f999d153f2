"""The rules for keys, the same for every store."""

from __future__ import annotations

from pravega_spark.errors import InvalidInput

_FORBIDDEN_PARTS = frozenset({"", ".", ".."})


def check_key(key: str) -> str:
    """Return ``key`` if it may name an object; raise InvalidInput if not.

    A file name must not start with a dot: local stores stage files under such names, and listings
    hide them. A folder may start with a dot, as names of scopes and streams may.
    """
    parts = key.split("/")
    if not _FORBIDDEN_PARTS.isdisjoint(parts) or parts[-1][0] == "." or "\0" in key:
        raise InvalidInput(
            f"{key!r} is no key: join names by single '/'; none may be empty, '.' or '..' or hold "
            "the character NUL, and the last may not start with a dot."
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the folder ``prefix`` with a trailing slash, or "" for the root."""
    folder = prefix.rstrip("/")
    if not folder:
        return ""
    if not _FORBIDDEN_PARTS.isdisjoint(folder.split("/")) or "\0" in folder:
        raise InvalidInput(
            f"{prefix!r} is no folder: '.', '..', NUL and empty names are not allowed."
        )
    return folder + "/"


def is_visible(key: str) -> bool:
    """Return True if listings show ``key``: not a dotted file name, not a folder marker."""
    name = key[key.rfind("/") + 1 :]
    return name != "" and name[0] != "."
