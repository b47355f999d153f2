"""The columns of a key-value table in Spark, and the conversion of batches to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.engine.chunks.arrow_arrays import numbers, ready
from pravega_spark.errors import InvalidOption
from pravega_spark.key_value.folded_rows import RowLayout
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.key_value.table_key import KeyType
from pravega_spark.model import segment_text

KEY_TYPES: Final[dict[KeyType, DataType]] = {
    KeyType.BYTES: BinaryType(),
    KeyType.STRING: StringType(),
    KeyType.LONG: LongType(),
}
PUT, REMOVE = "put", "remove"
"""The values of the column ``operation``."""


def key_columns(configuration: KeyValueTableConfiguration) -> dict[str, DataType]:
    """Return the columns of the keys of a table."""
    secondary = {"secondary_key": BinaryType()} if configuration.secondary_key_length else {}
    return {"key": KEY_TYPES[KeyType(configuration.key_type)], **secondary}


def entry_schema(
    configuration: KeyValueTableConfiguration, wanted: Sequence[str] = ()
) -> StructType:
    """Return the columns of the entries of a table, or those that are wanted of them."""
    rest = {"value": BinaryType(), "timestamp": TimestampType(), "version": StringType()}
    return _chosen({**key_columns(configuration), **rest}, wanted)


def change_schema(
    configuration: KeyValueTableConfiguration, wanted: Sequence[str] = ()
) -> StructType:
    """Return the columns of the changes of a table, or those that are wanted of them."""
    rest = {
        "value": BinaryType(),
        "version": StringType(),
        "timestamp": TimestampType(),
        "segment_id": LongType(),
        "offset": LongType(),
    }
    return _chosen({"operation": StringType(), **key_columns(configuration), **rest}, wanted)


def _chosen(known: dict[str, DataType], wanted: Sequence[str]) -> StructType:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidOption(
            f"option columns names {', '.join(unknown)}, but the columns are {', '.join(known)}."
        )
    return StructType([StructField(name, known[name]) for name in wanted or known])


def check_table_schema(known: StructType, given: StructType) -> None:
    """Raise InvalidOption unless every column of the user's schema exists and has its type."""
    types = {field.name: field.dataType for field in known.fields}
    for field in given.fields:
        if types.get(field.name) != field.dataType:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in types.items())
            raise InvalidOption(
                f"the table has no column {field.name} {field.dataType.simpleString()}, which "
                f".schema() names; its columns are {columns}. Remove .schema()."
            )


class TableProjection:
    """Converts rows of the engine (``folded_rows``) to Spark's columns."""

    def __init__(self, layout: RowLayout, life: int, schema: StructType) -> None:
        """Take the schema that Spark requests, a selection of the columns."""
        ready()
        self._layout = layout
        self._life = life
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._names = schema.names

    @property
    def stored_columns(self) -> set[str]:
        """The columns of the folded files that are needed, beside the keys."""
        places = {"segment_id", "offset"} if "version" in self._names else set()
        return {*self._names, *places}

    def __call__(self, rows: pa.Table) -> pa.RecordBatch:
        """Return the rows with exactly the columns and types of the schema, which Spark checks."""
        stored = self._layout.columns_of_rows(rows.combine_chunks())
        arrays = []
        for name, wanted in zip(self._names, self._schema, strict=True):
            if name == "version":
                found = _versions(self._life, stored)
            elif name == "operation":
                found = _operations(stored)
            else:
                found = stored.column(name)
            if isinstance(found, pa.ChunkedArray):
                found = found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
            arrays.append(found if found.type == wanted.type else found.cast(wanted.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _versions(life: int, stored: pa.Table) -> pa.Array:
    """Return the texts of ``KeyVersion``."""
    if not stored.num_rows:
        return pa.array([], pa.string())
    segments, which = np.unique(numbers(stored.column("segment_id")), return_inverse=True)
    heads = pa.array([f"{life}:{segment_text(int(segment))}=" for segment in segments], pa.string())
    offsets = stored.column("offset").cast(pa.string())
    return pc.binary_join_element_wise(heads.take(pa.array(which)), offsets, "")


def _operations(stored: pa.Table) -> pa.Array:
    names = pa.array([REMOVE, PUT], pa.string())
    return names.take(stored.column("value").is_valid().cast(pa.int8()))
