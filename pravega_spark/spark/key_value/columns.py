"""The columns of a key-value table in Spark, and their conversion in both directions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.engine.chunks.arrow_arrays import constant, numbers, offsets_of, ready
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.key_value import changes as key_value_changes
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.keys import KeyType, TableKey
from pravega_spark.key_value.rows import RowLayout, to_stored_numbers
from pravega_spark.spark.versions import arrow_schema
from pravega_spark.values.limits import MAX_TABLE_KEY_BYTES
from pravega_spark.values.segments import segment_text

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
    """Converts rows of the engine (``key_value.rows``) to Spark's columns."""

    def __init__(self, layout: RowLayout, life: int, schema: StructType) -> None:
        """Take the schema that Spark requests, a selection of the columns."""
        ready()
        self._layout = layout
        self._life = life
        self._schema = arrow_schema(schema)
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


_BYTES = (BinaryType, StringType)
_KEYS: Final[dict[KeyType, tuple[tuple[type[DataType], ...], str, pa.DataType]]] = {
    KeyType.BYTES: (_BYTES, "binary or string", pa.binary()),
    KeyType.STRING: ((StringType,), "string", pa.string()),
    KeyType.LONG: (
        (LongType, IntegerType, ShortType, ByteType),
        "bigint, int, smallint or tinyint",
        pa.int64(),
    ),
}
_SIGN: Final = 1 << 63
_OF_CHANGES: Final = ("version", "timestamp", "segment_id", "offset")
"""Columns of read frames, which a write leaves out: the write makes its own."""
_OPERATIONS: Final = pa.array([bytes((key_value_changes.REMOVE,)), bytes((key_value_changes.PUT,))])
_LENGTHS: Final = pa.array(list(map(key_value_changes.length_code, range(MAX_TABLE_KEY_BYTES + 1))))


@dataclass(frozen=True, slots=True)
class UpsertColumns:
    """The columns of a frame that is written to a table."""

    table: str
    configuration: KeyValueTableConfiguration
    has_operation: bool
    has_value: bool

    @classmethod
    def of(
        cls, schema: StructType, table: str, configuration: KeyValueTableConfiguration
    ) -> UpsertColumns:
        """Find the columns in a frame's schema; raise InvalidOption if one is missing or wrong."""
        types = {field.name: field.dataType for field in schema.fields}
        kinds, words, _ = _KEYS[KeyType(configuration.key_type)]
        wanted = {"key": (kinds, words)}
        if configuration.secondary_key_length:
            wanted["secondary_key"] = _BYTES, "binary or string"
        has_operation = "operation" in types
        has_value = not has_operation or "value" in types
        if has_operation:
            wanted["operation"] = (StringType,), "string"
        if has_value:
            wanted["value"] = _BYTES, "binary or string"
        for name, (allowed, text) in wanted.items():
            if name not in types:
                raise InvalidOption(
                    f"the frame has no column {name!r} ({text}), which table {table} needs; its "
                    f"columns are {', '.join(types)}. Add it: "
                    f'frame.withColumn("{name}", expr("...")).'
                )
            if not isinstance(types[name], allowed):
                raise InvalidOption(
                    f"column {name} must be {text} for table {table}, but is "
                    f"{types[name].simpleString()}; cast it first."
                )
        more = [name for name in types if name not in wanted and name not in _OF_CHANGES]
        if more:
            raise InvalidOption(
                f"table {table} has no columns {', '.join(more)}: it holds a key and a value. Drop "
                "them, or put them into the value: pravega_spark.row_json(frame, "
                f"{', '.join(map(repr, more))}) + ' AS value'."
            )
        return cls(table, configuration, has_operation=has_operation, has_value=has_value)

    def changes(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.uint64]]:
        """Return a batch as events of the change log, and a hash of each key.

        Raises InvalidInput for a key, a value or an operation that the table cannot hold.
        """
        ready()
        rows = batch.num_rows
        key_type = KeyType(self.configuration.key_type)
        native = _present(batch, "key", _KEYS[key_type][2])
        primary = _stored(native, key_type)
        if self.configuration.secondary_key_length:
            secondary = _present(batch, "secondary_key", pa.binary())
        else:
            secondary = pa.array([b""], pa.binary()).take(pa.array(np.zeros(rows, np.int8)))
        is_put = self._is_put(batch)
        value = self._values(batch, is_put)
        first, second = self._check_keys(primary, secondary)
        payload = pc.binary_join_element_wise(
            _OPERATIONS.take(pc.cast(is_put, pa.int8())),
            *(_LENGTHS.take(pa.array(first)), primary),
            *(_LENGTHS.take(pa.array(second)), secondary),
            *(value, b""),
        )
        at = constant(time.time_ns() // 1_000, EVENT_SCHEMA.field("timestamp").type, rows)
        routing = _hexadecimal(primary) if key_type is KeyType.BYTES else native.cast(pa.string())
        events = pa.RecordBatch.from_arrays([routing, at, payload], schema=EVENT_SCHEMA)
        return events, self._hashes(native, primary, secondary)

    def _is_put(self, batch: pa.RecordBatch) -> pa.Array:
        if not self.has_operation:
            return pa.array(np.ones(batch.num_rows, np.bool_))
        named = _present(batch, "operation", pa.string())
        is_put, is_removal = pc.equal(named, PUT), pc.equal(named, REMOVE)
        wrong = named.filter(pc.invert(pc.or_(is_put, is_removal)))
        if len(wrong):
            raise InvalidInput(
                f"column operation is {wrong[0].as_py()!r} in a row for table {self.table}; it "
                f"must be {PUT!r} or {REMOVE!r}."
            )
        return is_put

    def _values(self, batch: pa.RecordBatch, is_put: pa.Array) -> pa.Array:
        """Return the values; those of removals are empty."""
        if self.has_value:
            value = _cast(batch, "value", pa.binary())
        else:
            value = pa.nulls(batch.num_rows, pa.binary())
        if self.has_operation:
            value = pc.if_else(is_put, value, b"")
        if value.null_count:
            raise InvalidInput(
                f"column value is null in {value.null_count} of {batch.num_rows} rows that put a "
                f"key into table {self.table}. Fill the nulls; or remove these keys: write a "
                f"column operation that is {REMOVE!r} in their rows, and {PUT!r} in the others."
            )
        longest = int(np.diff(offsets_of(value)).max(initial=0))
        limit = self.configuration.value_limit
        if longest > limit:
            raise InvalidInput(
                f"column value has a value of {longest} bytes; table {self.table} takes at most "
                f"{limit} (max_value_bytes). Store it elsewhere and put a reference."
            )
        return value

    def _check_keys(
        self, primary: pa.Array, secondary: pa.Array
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of both parts of the keys; raise InvalidInput."""
        first, second = np.diff(offsets_of(primary)), np.diff(offsets_of(secondary))
        wanted = self.configuration.primary_key_length
        if len(first) and (first.min() == 0 or (wanted is not None and (first != wanted).any())):
            found = first[first != wanted][0] if wanted is not None else 0
            rule = f"exactly {wanted} bytes" if wanted is not None else "at least one byte"
            raise InvalidInput(
                f"column key has a key of {found} bytes; a key of table {self.table} has {rule}."
            )
        length = self.configuration.secondary_key_length
        if (second != length).any():
            raise InvalidInput(
                f"column secondary_key has a key of {second[second != length][0]} bytes; a "
                f"secondary key of table {self.table} has exactly {length}."
            )
        longest = int((first + second).max(initial=0))
        if longest > MAX_TABLE_KEY_BYTES:
            raise InvalidInput(
                f"column key has a key of {longest} bytes, its secondary part included; table "
                f"{self.table} takes at most {MAX_TABLE_KEY_BYTES}. Use its hash as the key."
            )
        return first, second

    def _hashes(
        self, native: pa.Array, primary: pa.Array, secondary: pa.Array
    ) -> NDArray[np.uint64]:
        """Return a number for each key: equal keys have equal ones, and most others differ."""
        if native.type == pa.int64() and not self.configuration.secondary_key_length:
            return numbers(native).view(np.uint64)
        pairs = zip(primary.to_pylist(), secondary.to_pylist(), strict=True)
        return np.fromiter((_digest(*pair) for pair in pairs), np.uint64, len(native))

    def hash_of(self, key: TableKey) -> int:
        """Return the number of one stored key."""
        if (
            KeyType(self.configuration.key_type) is KeyType.LONG
            and not self.configuration.secondary_key_length
        ):
            return int.from_bytes(key.primary, "big") ^ _SIGN
        return _digest(*key)


def _digest(primary: bytes, secondary: bytes) -> int:
    found: int = xxhash.xxh3_64_intdigest(primary)
    return xxhash.xxh3_64_intdigest(secondary, seed=found) if secondary else found


def _present(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    found = _cast(batch, name, kind)
    if found.null_count:
        raise InvalidInput(
            f"column {name} is null in {found.null_count} of {batch.num_rows} rows; every change "
            "of a key-value table needs one: filter the rows or fill the nulls first."
        )
    return found


def _cast(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    found = batch.column(name)
    return found if found.type == kind else found.cast(kind)


def _stored(native: pa.Array, key_type: KeyType) -> pa.Array:
    if key_type is KeyType.LONG:
        return to_stored_numbers(numbers(native))
    return native.view(pa.binary()) if key_type is KeyType.STRING else native


def _hexadecimal(keys: pa.Array) -> pa.Array:
    """Return bytes as texts of lower-case digits."""
    ends = offsets_of(keys)
    data = memoryview(keys.buffers()[2] or b"")[int(ends[0]) : int(ends[-1])].hex().encode()
    places = ((ends - ends[0]) * 2).astype(np.int32)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(keys), buffers)
