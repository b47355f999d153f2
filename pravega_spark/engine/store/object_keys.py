"""What a key may look like, the same for every store."""

from __future__ import annotations

from pravega_spark.errors import InvalidInput

_FORBIDDEN_PARTS = frozenset({"", ".", ".."})


def check_key(key: str) -> str:
    """Return ``key`` if it may name an object; raise InvalidInput if not.

    A file name that starts with a dot is refused: local stores stage under such names, and no
    listing shows them. A folder may start with one, as names of scopes and streams may.
    """
    parts = key.split("/")
    if not _FORBIDDEN_PARTS.isdisjoint(parts) or parts[-1][0] == ".":
        raise InvalidInput(
            f"{key!r} is no key: use names joined by single '/', none of them empty, '.' or '..', "
            "the last one without a leading dot."
        )
    return key


def check_prefix(prefix: str) -> str:
    """Return the folder ``prefix`` with a slash at its end, or "" for the root."""
    folder = prefix.rstrip("/")
    if not folder:
        return ""
    if not _FORBIDDEN_PARTS.isdisjoint(folder.split("/")):
        raise InvalidInput(f"{prefix!r} is no folder: '.', '..' and empty names are not allowed.")
    return folder + "/"


def is_visible(key: str) -> bool:
    """Tell whether listings show ``key``: no file of a dotted name, no folder marker."""
    name = key[key.rfind("/") + 1 :]
    return name != "" and name[0] != "."
