"""The schema of a stream's events table, as its Delta metadata says it.

For a typed stream it is the one place of the schema: the stream's record does not repeat it. A
reader of Delta sees the user's columns, with their comments, behind the columns of every stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pravega_spark.engine.chunks.event_format import RAW, EventFormat, format_of
from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.log.file_index import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.errors import CorruptLog
from pravega_spark.stream_schema import StreamSchema

_SYSTEM_COLUMNS: Final[Mapping[str, str]] = {
    SEGMENT_COLUMN: "long",
    OFFSET_COLUMN: "long",
    "offset_delta": "integer",
    "routing_key": "string",
    "timestamp": "timestamp",
}
EVENT_COLUMNS: Final[Mapping[str, str]] = {**_SYSTEM_COLUMNS, "event": "binary"}
"""The columns of a raw stream's table, with their Delta types."""


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
        raise CorruptLog(
            f"{where}: the schema of the table cannot be read: {error!r}. Restore the log from a "
            "copy.",
            path=where,
        ) from error


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
