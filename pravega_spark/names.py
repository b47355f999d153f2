"""The naming rule of scopes, streams, groups, readers and writers, in one place."""

from __future__ import annotations

import re

from pravega_spark.errors import InvalidName

MAX_SCOPE_LENGTH = 255
MAX_NAME_LENGTH = 250
_ALLOWED = re.compile(r"[A-Za-z0-9.\-]+")
_DOTS = {".", ".."}


def is_name(name: str, limit: int = MAX_NAME_LENGTH) -> bool:
    """Tell whether the naming rule allows ``name``."""
    return len(name) <= limit and name not in _DOTS and _ALLOWED.fullmatch(name) is not None


def check_name(kind: str, name: object, limit: int = MAX_NAME_LENGTH) -> str:
    """Return ``name`` if it may name a ``kind``; raise InvalidName with the rule if not.

    The rule is Pravega's: letters, digits, ``.`` and ``-``; never ``_``, which marks what is
    internal. ``.`` and ``..`` are refused too, since names become folders.
    """
    if not isinstance(name, str):
        raise InvalidName(f"{kind} name must be a str, not {type(name).__name__}: {name!r}.")
    if not is_name(name, len(name)):
        raise InvalidName(
            f"{kind} name {name!r} is not allowed: use letters, digits, '.' and '-' only."
        )
    if len(name) > limit:
        raise InvalidName(
            f"{kind} name {name[:40]!r}... has {len(name)} characters; at most {limit} are allowed."
        )
    return name


def check_scope(name: object) -> str:
    """Return ``name`` if it may name a scope."""
    return check_name("scope", name, MAX_SCOPE_LENGTH)


def split_stream(stream: object) -> tuple[str, str]:
    """Split ``"scope/stream"`` into its two checked names."""
    if not isinstance(stream, str) or stream.count("/") != 1:
        raise InvalidName(f"a stream is named 'scope/stream', with one slash; got {stream!r}.")
    scope, name = stream.split("/")
    return check_scope(scope), check_name("stream", name)
