"""The schema of a stream's events table, as its Delta metadata says it.

For a typed stream it is the one place of the schema: the stream's record does not repeat it. A
reader of Delta sees the user's columns, with their comments, behind the columns of every stream.
The domain ``pravega.schema.<version>`` keeps each schema of the stream's life, by the version of
the log that set it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.chunks.format import RAW, EventFormat, format_of
from pravega_spark.engine.log.files import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.errors import CorruptLog

_SYSTEM_COLUMNS: Final[Mapping[str, str]] = {
    SEGMENT_COLUMN: "long",
    OFFSET_COLUMN: "long",
    "offset_delta": "integer",
    "routing_key": "string",
    "timestamp": "timestamp",
}
EVENT_COLUMNS: Final[Mapping[str, str]] = {**_SYSTEM_COLUMNS, "event": "binary"}
"""The columns of a raw stream's table, with their Delta types."""


SCHEMA_PREFIX: Final = "pravega.schema."


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema of a stream: the version of the log that set it, and when, in ms since 1970."""

    version: int
    time_ms: int
    schema: StreamSchema


def schema_domain(version: int, time_ms: int, schema: StreamSchema) -> dict[str, str | None]:
    """Return the domain that records a schema."""
    return {f"{SCHEMA_PREFIX}{version}": f'{{"created":{time_ms},"schema":{schema.to_json()}}}'}


def schema_versions(snapshot: Snapshot) -> list[SchemaVersion]:
    """Return the schemas of a stream's life, the oldest first; none of a raw stream."""
    found = []
    try:
        for name in snapshot.names(SCHEMA_PREFIX):
            value = json.loads(snapshot.domains[name])
            schema = StreamSchema.from_json(value["schema"])
            version = int(name.removeprefix(SCHEMA_PREFIX))
            found.append(SchemaVersion(version, typed(value["created"], int), schema))
    except DECODE_ERRORS as error:
        raise _damaged(snapshot.where, error) from error
    return sorted(found, key=lambda each: each.version)


def with_schema(metadata: Mapping[str, Any], schema: StreamSchema | None) -> dict[str, Any]:
    """Return the ``metaData`` action of a table with the columns of this schema; None is raw."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (EVENT_COLUMNS if schema is None else _SYSTEM_COLUMNS).items()
    ]
    if schema is not None:
        fields += map(dict, schema.delta_fields)
    return {**metadata, "schemaString": to_json({"type": "struct", "fields": fields})}


def table_format(metadata: Mapping[str, Any], where: str) -> EventFormat:
    """Return the format of the events of a table; raise CorruptLog for what we never write."""
    text = metadata.get("schemaString")
    try:
        return _format_of(text)
    except DECODE_ERRORS as error:
        raise _damaged(where, error) from error


def _damaged(where: str, error: Exception) -> CorruptLog:
    return CorruptLog(
        f"{where}: the schema of the table cannot be read: {error!r}. Restore the log from a copy.",
        path=where,
    )


@lru_cache(maxsize=256)
def _format_of(text: str) -> EventFormat:
    fields = json.loads(text)["fields"]
    names = [field["name"] for field in fields]
    count = len(_SYSTEM_COLUMNS)
    if names[:count] != [*_SYSTEM_COLUMNS]:
        raise ValueError(f"its columns are {names}")
    if names[count:] == ["event"]:
        return RAW
    return format_of(StreamSchema.from_json({"type": "struct", "fields": fields[count:]}))
