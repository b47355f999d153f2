"""How our tables are declared to Delta: protocol, table features, properties and schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pravega_spark.engine.json_codec import to_json

STREAM_FEATURE = "pravega-stream"
ROWS_FEATURE = "pravega-rows"
"""Feature of a state table with several files of rows, which older versions cannot read."""
COLUMNS_FEATURE = "pravega-columns"
"""Feature of a stream that is or was typed: older versions would write raw events to it."""
_FEATURES = frozenset({"domainMetadata", "inCommitTimestamp", STREAM_FEATURE})
KNOWN_FEATURES = _FEATURES | {ROWS_FEATURE, COLUMNS_FEATURE}
PROTOCOL: dict[str, Any] = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": sorted(_FEATURES),
}
COLUMNS_PROTOCOL: dict[str, Any] = {
    **PROTOCOL,
    "writerFeatures": sorted({*_FEATURES, COLUMNS_FEATURE}),
}
"""The protocol of a typed stream."""
_TABLE_PROPERTIES = {
    "delta.enableInCommitTimestamps": "true",
    # Sweeps delete old commits and files by their own rules, so other engines must delete none.
    "delta.logRetentionDuration": "interval 36500 days",
    # Delta Spark does not travel back beyond this age, however old the retained files are.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.checkpointInterval": "1000000000",
}
# Which columns have bounds in `stats`. Without this, delta-rs takes a bound that is not there for
# null, and a filter on the column then skips every file.
_NO_BOUNDS = {"delta.dataSkippingNumIndexedCols": "0"}
_BOUNDS = "delta.dataSkippingStatsColumns"


def with_bounds(metadata: Mapping[str, Any], bounded: Sequence[str]) -> dict[str, Any]:
    """Return the ``metaData`` action of a table whose statistics have bounds of these columns."""
    configuration = {**metadata["configuration"], _BOUNDS: ",".join(bounded)}
    return {**metadata, "configuration": configuration}


def new_table(
    schema: Mapping[str, Any],
    partitions: Iterable[str],
    table_id: str,
    name: str,
    created_ms: int,
    *,
    bounded: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the ``metaData`` action of a new table with columns {name: Delta type}.

    The statistics of its files have bounds of the columns ``bounded``, and of no other.
    """
    fields = [
        {"name": column, "type": kind, "nullable": True, "metadata": {}}
        for column, kind in schema.items()
    ]
    bounds = {_BOUNDS: ",".join(bounded)} if bounded else _NO_BOUNDS
    return {
        "id": table_id,
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": to_json({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitions),
        "configuration": {**_TABLE_PROPERTIES, **bounds},
        "createdTime": created_ms,
    }
