"""SQL that puts streams into a catalog: a Delta table for each, and a view with offsets.

The statements run in Spark SQL with Delta, where the catalog has a metastore; a catalog of the
session alone forgets them with it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

from pravega_spark.errors import InvalidInput, NoSuchStream
from pravega_spark.manager import StreamManager
from pravega_spark.schemas.sql import quoted_name, quoted_text
from pravega_spark.values.names import split_stream

_COLUMNS = {
    "segment_id": "creation epoch in the high 32 bits, number in the low 32",
    "offset": "position in the segment, from 0 without a gap",
    "routing_key": "null where the writer gave none",
    "timestamp": "the writer's clock when the event was written",
}
"""The columns of every view, before those of the payload."""


def table_statements(
    manager: StreamManager,
    patterns: Sequence[str],
    *,
    scheme: str | None = None,
    catalog: str | None = None,
) -> Iterator[str]:
    """Yield the statements for all streams that match a pattern such as ``nyc/*``.

    The schema of the catalog is the scope and the table is the stream (see :func:`table_names`).
    The view ``<stream>_events`` has the column ``offset`` and leaves out what is truncated now:
    after a truncation, register again. ``scheme`` replaces that of the root's URL, such as s3a for
    Spark outside of Databricks; without ``catalog`` it is the session's current one. Raises
    NoSuchStream for a pattern without a match, and InvalidInput for streams that would have one
    table, and for a name that no catalog has.
    """
    names = list(streams_like(manager, patterns))
    _check_distinct(names)
    tables = [table_names(name, catalog)[0] for name in names]
    for schema in dict.fromkeys(table.rpartition(".")[0] for table in tables):
        yield f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}"
    for name in names:
        yield create_table(manager, name, scheme=scheme, catalog=catalog)
        yield create_view(manager, name, catalog=catalog)


def table_names(name: str, catalog: str | None = None) -> tuple[str, str]:
    """Return the names of a stream's table and view, such as ``nyc.flights``.

    Catalogs know letters, digits and ``_`` alone, so ``_`` stands for ``-`` and ``.`` of a stream.
    """
    if catalog is not None and not re.fullmatch(r"[\w-]+", catalog):
        raise InvalidInput(
            f"{catalog!r} is not the name of a catalog: give one part, such as main."
        )
    scope, stream = (re.sub(r"[^A-Za-z0-9_]", "_", part) for part in split_stream(name))
    schema = scope if catalog is None else f"{catalog}.{scope}"
    return f"{schema}.{stream}", f"{schema}.{stream}_events"


def _check_distinct(names: Sequence[str]) -> None:
    """Raise InvalidInput if two streams would have one name; catalogs do not tell case apart."""
    taken = dict[str, str]()
    for name in names:
        for found in table_names(name):
            other = taken.setdefault(found.lower(), name)
            if other != name:
                raise InvalidInput(
                    f"streams {other} and {name} would both be {found} in the catalog, where _ "
                    "stands for - and . and case does not count: register only one of them."
                )


def streams_like(manager: StreamManager, patterns: Sequence[str]) -> Iterator[str]:
    """Yield the streams that match patterns, each once; NoSuchStream for one without a match."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if pattern.count("/") != 1:
            raise InvalidInput(f"{pattern!r} names no streams: write scope/stream, or nyc/*.")
        scope_pattern = pattern.partition("/")[0]
        before = len(found)
        for scope in manager.list_scopes():
            if fnmatch.fnmatchcase(scope, scope_pattern):
                names = manager.list_streams(scope)
                found |= dict.fromkeys(n for n in names if fnmatch.fnmatchcase(n, pattern))
        if len(found) == before and not any(fnmatch.fnmatchcase(n, pattern) for n in found):
            raise NoSuchStream(f"no stream matches {pattern!r}; `stream ls` shows all.")
    yield from found


def create_table(
    manager: StreamManager, name: str, *, scheme: str | None = None, catalog: str | None = None
) -> str:
    """Return the statement that makes a stream's Delta table one of the catalog."""
    table = quoted(table_names(name, catalog)[0])
    location = quoted_text(table_location(manager, name, scheme=scheme))
    return f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION {location}"


def create_view(manager: StreamManager, name: str, *, catalog: str | None = None) -> str:
    """Return the statement that makes or replaces the view of a stream's table."""
    table, view = map(quoted, table_names(name, catalog))
    columns = {**_COLUMNS, **_payload_columns(manager, name)}
    listed = ", ".join(quoted_name(column) + _comment(about) for column, about in columns.items())
    expressions = {"offset": "base_offset + offset_delta AS `offset`", "segment_id": "segment_id"}
    selected = ", ".join(expressions.get(column) or quoted_name(column) for column in columns)
    return (
        f"CREATE OR REPLACE VIEW {view} ({listed}){_comment(f'events of stream {name}')} AS "
        f"SELECT {selected} FROM {table} WHERE {manager.head_filter(name)}"
    )


def table_location(manager: StreamManager, name: str, *, scheme: str | None = None) -> str:
    """Return the URL of a stream's Delta table, with its path as it is."""
    root = manager.root.rstrip("/")
    if scheme is not None:
        root = re.sub(r"^[a-z0-9+]+:", f"{scheme}:", root)
    return f"{root}/{name}/events"


def _payload_columns(manager: StreamManager, name: str) -> dict[str, str]:
    """Return the columns of the events, with their comments."""
    schema = manager.stream_info(name).configuration.schema
    if schema is None:
        return {"event": "the payload"}
    return {field["name"]: field["metadata"].get("comment", "") for field in schema.delta_fields}


def _comment(about: str) -> str:
    return f" COMMENT {quoted_text(about)}" if about else ""


def quoted(name: str) -> str:
    """Return the name of a schema, a table or a view in backquotes, part by part."""
    return ".".join(map(quoted_name, name.split(".")))
