"""How our tables are declared to Delta: protocol, table features, properties and schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pravega_spark.engine.json_codec import to_json

STREAM_FEATURE = "pravega-stream"
ROWS_FEATURE = "pravega-rows"
"""Feature of a state table with several files of rows, which older versions cannot read."""
_FEATURES = frozenset({"domainMetadata", "inCommitTimestamp", STREAM_FEATURE})
KNOWN_FEATURES = _FEATURES | {ROWS_FEATURE}
PROTOCOL: dict[str, Any] = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": sorted(_FEATURES),
}
TABLE_PROPERTIES = {
    "delta.enableInCommitTimestamps": "true",
    # Sweeps delete old commits and files by their own rules, so other engines must delete none.
    "delta.logRetentionDuration": "interval 36500 days",
    # Delta Spark does not travel back beyond this age, however old the retained files are.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "1000000000",
}


def new_table(
    schema: Mapping[str, Any], partitions: Iterable[str], table_id: str, name: str, created_ms: int
) -> dict[str, Any]:
    """Return the ``metaData`` action of a new table with columns {name: Delta type}."""
    fields = [
        {"name": column, "type": kind, "nullable": True, "metadata": {}}
        for column, kind in schema.items()
    ]
    return {
        "id": table_id,
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": to_json({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitions),
        "configuration": TABLE_PROPERTIES,
        "createdTime": created_ms,
    }
