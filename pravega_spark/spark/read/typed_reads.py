"""Reads of typed streams: the columns that a read has, fixed when it begins.

A stream whose schema grows meanwhile still has them, and the new ones are read by the next query.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from pyspark.sql.types import StructType

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.store.root_marker import is_away
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption, NoSuchScope, NoSuchStream
from pravega_spark.spark.read.columns import Column, check_schema, columns_of
from pravega_spark.spark.read.discovery import matching_streams, planned_view
from pravega_spark.spark.settings import ReadSettings

logger = own_logger(__name__)


def typed_columns(settings: ReadSettings, since: float | None = None) -> tuple[Column, ...]:
    """Return the columns of the schema of the streams of a read; none of raw or missing streams.

    A caller that plans the read next says since when: it asks no stream again then. Raises
    InvalidOption if the streams have several schemas, or if one of them is raw.
    """
    if settings.schema == "raw" or settings.metadata is not None:
        return ()
    names = settings.streams
    if settings.pattern is not None:
        names = tuple(matching_streams(settings.root, settings.pattern))
    found = _schemas(settings.root, names, since)
    schemas = set(found.values())
    if len(schemas) > 1:
        first = next(iter(found))
        other = next(name for name, schema in found.items() if schema != found[first])
        raise InvalidOption(
            f"streams {first} and {other} have different columns ({_shown(found[first])}; "
            f"{_shown(found[other])}), and a frame has one set of columns: read each on its own."
        )
    schema = schemas.pop() if schemas else None
    if schema is None:
        return ()
    return spark_columns(schema)


def check_request(settings: ReadSettings, schema: StructType, since: float) -> None:
    """Raise InvalidOption unless the columns that Spark requests exist and have their types.

    ``since`` is when the planning of the read began, by the boot clock.
    """
    raw = {column.name: column.type for column in columns_of(settings.column_names)}
    is_raw = all(raw.get(field.name) == field.dataType for field in schema.fields)
    if not is_raw:
        check_schema(settings.column_names, schema, typed_columns(settings, since))


@lru_cache(maxsize=256)
def spark_columns(schema: StreamSchema) -> tuple[Column, ...]:
    """Return the columns of a schema as those of a frame, with their comments.

    A required column is not nullable, as every event has it. Fields inside of it are.
    """
    struct = StructType.fromJson(json.loads(schema.to_json()))
    return tuple(
        Column(
            found.name,
            found.dataType,
            found.name,
            nullable=field.nullable,
            comment=found.metadata.get("comment"),
        )
        for found, field in zip(struct.fields, schema.fields, strict=True)
    )


def check_columns(view: StreamView, schema: StructType, names: str) -> StreamSchema | None:
    """Return the schema of a stream; raise InvalidOption unless it has the columns of a read.

    A read has fixed its columns before: the stream may have been created again since then, or have
    joined the read later. Its columns may only have grown, as a change of a schema lets them.
    """
    found = view.event_format.schema
    known = {c.name: c for c in columns_of(names, spark_columns(found) if found else ())}
    for field in schema.fields:
        column = known.get(field.name)
        if column is None or not column.fits(field):
            kind = field.dataType.simpleString() + ("" if field.nullable else " not null")
            raise InvalidOption(
                f"{log_title(view.stream)} has no column {field.name} {kind}, which the read has: "
                f"its events are {'bytes' if found is None else found}. Read it on its own; or if "
                "it was created again, start the query with a new frame."
            )
    return found


def _schemas(
    root: str, names: Sequence[str], since: float | None
) -> dict[str, StreamSchema | None]:
    """Return the schemas of the streams that exist, in order."""
    store = open_store(root)

    def look(name: str) -> StreamSchema | NoSuchScope | NoSuchStream | None:
        try:
            if since is None:
                return begun_view(open_stream(store, name)).event_format.schema
            return planned_view(store, name, since)[1].event_format.schema
        except (NoSuchStream, NoSuchScope) as error:
            return error

    found = dict(zip(names, in_rounds(store, look, names), strict=True))
    missing = {name: e for name, e in found.items() if isinstance(e, NoSuchScope | NoSuchStream)}
    if missing and is_away(store):
        # The reader says it, or Spark, of a typed stream's columns: it needs this.
        for name, error in missing.items():
            fields = log_fields("read", name)
            logger.warning("the read has the columns of bytes: %s", error, extra=fields)
    return {n: s for n, s in found.items() if not isinstance(s, NoSuchScope | NoSuchStream)}


def _shown(schema: StreamSchema | None) -> str:
    return "bytes" if schema is None else str(schema)
