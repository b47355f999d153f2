"""Names that are like one that does not exist, for the error of a command."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pravega_spark.errors import (
    NoSuchReaderGroup,
    NoSuchScope,
    NoSuchStream,
    NoSuchTable,
    NotFound,
    PravegaSparkError,
)

if TYPE_CHECKING:
    from pravega_spark.manager import StreamManager

OPENED = "pravega_spark.manager"
"""The key of a context's ``meta`` under which a command keeps the manager of its root."""
_MOST = 3


def add_near_names(error: NotFound, manager: StreamManager) -> None:
    """Add a question to the message of an error, if something is like the name that it has."""
    near = near_names(error, manager)
    if near:
        error.message = f"{error.message} Did you mean {' or '.join(near)}?"


def near_names(error: NotFound, manager: StreamManager) -> list[str]:
    """Return existing names like the one that an error names, the nearest first.

    Lists the scopes of a root, or the objects of one scope. A failure to list them is not an error
    here.
    """
    found = _looked_up(error, manager)
    if found is None:
        return []
    name, known = found
    with contextlib.suppress(PravegaSparkError, OSError):
        return difflib.get_close_matches(name, list(known()), _MOST)
    return []


def _looked_up(
    error: NotFound, manager: StreamManager
) -> tuple[str, Callable[[], Iterable[str]]] | None:
    """Return the missing name, and a function that lists what exists of its kind."""
    if isinstance(error, NoSuchScope) and error.scope:
        return error.scope, manager.list_scopes
    if isinstance(error, NoSuchStream) and error.stream:
        return error.stream, lambda: _inside(error.stream, manager.list_streams)
    if isinstance(error, NoSuchReaderGroup) and error.group:
        return error.group, lambda: _inside(error.group, manager.list_reader_groups)
    if isinstance(error, NoSuchTable) and error.table:
        return error.table, lambda: _inside(error.table, manager.list_key_value_tables)
    return None


def _inside(name: str | None, listed: Callable[[str], Iterable[str]]) -> Iterable[str]:
    return listed(str(name).partition("/")[0])
