"""The metadata table ``ReaderGroups``: one row for each reader group."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from pravega_spark.engine.store import Store
from pravega_spark.reader_groups.group_description import GroupVersion
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    schema,
    utc_time,
)


def _group_row(store: Store, group: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = group.state
    yield {
        "scope": state.group.partition("/")[0],
        "group": state.group,
        "generation": state.generation,
        "state": state.phase.value,
        "retention": state.configuration.retention.value,
        "streams": sorted(state.lives),
        "readers": sorted(state.readers),
        "assigned": len(state.assigned),
        "unassigned": len(state.unassigned),
        "future": len(state.future),
        "at_end": state.is_at_end,
        "last_checkpoint": None if state.last_checkpoint is None else state.last_checkpoint.name,
        "checkpoints_under_way": sum(not c.is_complete for c in state.checkpoints),
        "version": group.version,
        "updated": utc_time(group.updated_ms),
        "configuration": json.dumps(state.configuration.to_json()),
    }


READER_GROUPS = MetadataTable(
    schema(
        scope=StringType(),
        group=StringType(),
        generation=LongType(),
        state=StringType(),
        retention=StringType(),
        streams=ArrayType(StringType()),
        readers=ArrayType(StringType()),
        assigned=IntegerType(),
        unassigned=IntegerType(),
        future=IntegerType(),
        at_end=BooleanType(),
        last_checkpoint=StringType(),
        checkpoints_under_way=IntegerType(),
        version=LongType(),
        updated=TimestampType(),
        configuration=StringType(),
    ),
    rows_of_group=_group_row,
)
