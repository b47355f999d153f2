"""A typed stream on a disk and the rows that it must have, written by every way; for models."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from datetime import timezone
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import types

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from tests.harness.typed_rows import TYPES, rows

S = "s/t"
Row = dict[str, Any]
ID = pa.field("id", pa.int64(), False)
WAYS = ("rows", "rows one by one", "batch", "table", "transaction", "transaction of a table")
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def exact(kind: pa.DataType, value: Any) -> Any:
    """Return a value in a form that is equal to that of the same value alone, whoever read it."""
    if value is None:
        return None
    if types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple((exact(kind.key_type, k), exact(kind.item_type, v)) for k, v in pairs)
    if types.is_list(kind):
        return tuple(exact(kind.value_type, each) for each in value)
    if types.is_struct(kind):
        return tuple(exact(field.type, value.get(field.name)) for field in kind)
    if types.is_floating(kind):
        return repr(float(np.float32(value)) if kind.bit_width == 32 else value)
    if types.is_timestamp(kind):
        return value.astimezone(timezone.utc).isoformat()
    return str(value) if types.is_decimal(kind) else value


class World:
    """A stream on a disk, and the rows that it must have."""

    def __init__(self, folder: str, schema: pa.Schema, segments: int) -> None:
        self.folder, self.path, self.schema = folder, f"{folder}/{S}/events", schema
        self.manager = StreamManager(folder)
        self.manager.create_scope("s")
        scaling = ScalingPolicy.fixed(segments)
        self.manager.create_stream(S, StreamConfiguration(scaling, schema=schema))
        self.rows: list[Row] = []

    def write(self, way: str, given: list[Row], key: str | None) -> None:
        """Write rows, each with the next number."""
        found = self.numbered(given)
        if "transaction" in way:
            with (
                self.manager.create_transactional_writer(S) as transactional,
                transactional.begin_transaction() as transaction,
            ):
                if way == "transaction":
                    for row in found:
                        transaction.write_event(row, key)
                else:
                    transaction.write_table(self.table(found))
            return
        with self.manager.create_writer(S) as writer:
            if way == "table":
                writer.write_table(self.table(found)).result()
            elif way == "batch":
                writer.write_events(found, key)
            else:
                for row in found:
                    future = writer.write_event(row, key)
                    if way == "rows one by one":
                        future.result()

    def numbered(self, given: list[Row]) -> list[Row]:
        """Return rows with the next numbers, which the stream must have from now on."""
        found = [{**row, "id": len(self.rows) + n} for n, row in enumerate(given)]
        self.rows += found
        return found

    def table(self, given: list[Row]) -> pa.Table:
        """Return rows as a table of Arrow, which takes maps as pairs."""
        fitted = [{f.name: _pairs(f.type, row.get(f.name)) for f in self.schema} for row in given]
        return pa.Table.from_pylist(fitted, self.schema)

    def of(self, found: list[Row]) -> dict[int, Any]:
        """Return rows by number in exact form, and check that each is there once."""
        fields = list(self.schema)
        known = {row["id"]: [exact(f.type, row.get(f.name)) for f in fields] for row in found}
        assert len(known) == len(found), "a row is there twice"
        return known


def _pairs(kind: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if types.is_map(kind):
        return [(_pairs(kind.key_type, k), _pairs(kind.item_type, v)) for k, v in value.items()]
    if types.is_list(kind):
        return [_pairs(kind.value_type, each) for each in value]
    if types.is_struct(kind):
        return {field.name: _pairs(field.type, value.get(field.name)) for field in kind}
    return value


def with_nan(schema: pa.Schema) -> st.SearchStrategy[Row]:
    """Rows of a schema, whose floats may be NaN."""
    floats = [f.name for f in schema if types.is_floating(f.type)]
    nans = st.fixed_dictionaries({}, optional=dict.fromkeys(floats, st.just(math.nan)))
    return st.builds(lambda row, more: {**row, **more}, rows(schema), nans)


def stored(field: pa.Field, value: Any) -> Any:
    is_narrow = types.is_floating(field.type) and field.type.bit_width == 32
    return float(np.float32(value)) if is_narrow and value is not None else value


def holds(comparison: str, found: Any, value: Any, *, nan_is_most: bool) -> bool:
    """Return whether a value satisfies a comparison."""
    if value is None:
        return (found is None) == (comparison == "=")
    if found is None:
        return False
    if nan_is_most and isinstance(found, float):
        found, value = (
            (math.isnan(one), 0.0 if math.isnan(one) else one) for one in (found, value)
        )
    return bool(COMPARISONS[comparison](found, value))


def step(world: World, data: st.DataObject) -> None:
    """Do something to the stream."""
    what = data.draw(st.sampled_from(["write", "write", "write", "grow", "merge", "scale"]))
    if what == "write":
        given = data.draw(st.lists(with_nan(world.schema), min_size=1, max_size=6), "rows")
        key = data.draw(st.sampled_from([None, "", "k", "é"]), "routing key")
        world.write(data.draw(st.sampled_from(WAYS), "way"), given, key)
    elif what == "grow":
        kind = data.draw(TYPES, "type of a new column")
        field = pa.field(f"d{len(world.schema)}", kind)
        world.schema = world.schema.append(field)
        world.manager.update_stream(S, schema=world.schema)
    elif what == "merge":
        world.manager.compact_stream(S)
    else:
        segments = sorted(world.manager.segments(S), key=lambda s: s.key_range.low)
        low, high = segments[0].key_range.low, segments[0].key_range.high
        halves = [(low, (low + high) / 2), ((low + high) / 2, high)]
        world.manager.scale_stream(S, [segments[0]], halves)
