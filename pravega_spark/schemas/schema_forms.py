"""Schemas in the forms that users have: of Arrow, Spark, Polars, pandas, dataclasses, pydantic."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from pravega_spark.arguments import shown
from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.delta_types import schema_from_json


def to_arrow(given: Any) -> pa.Schema:
    """Return the Arrow schema of a schema or of data in another form; raise InvalidSchema."""
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        return given.schema
    module = type(given).__module__.partition(".")[0]
    if module == "pyspark":
        struct = getattr(given, "schema", given)
        if callable(getattr(struct, "json", None)):
            return schema_from_json(json.loads(struct.json()))
    raise InvalidSchema(
        f"no schema can be made of a {type(given).__name__}: {shown(given)}; give a schema of "
        "Arrow, Spark or Polars, a dataclass, a pydantic model, or a frame."
    )
