"""The JSON object of a row, in Spark's SQL, with all that the row has.

Spark's ``to_json`` by itself leaves out fields that are null and three of a timestamp's six digits,
writes times in the session's zone, and keys of maps as Java prints them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pravega_spark.schemas.sql import quoted_name, quoted_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
TIME_OPTIONS: Final = {
    "timeZone": "UTC",
    "timestampFormat": f"{_TIME}XXX",
    "timestampNTZFormat": _TIME,
}
"""The options of Spark's formats of text with which times lose nothing."""
JSON_OPTIONS: Final = {"ignoreNullFields": "false", **TIME_OPTIONS}
"""The options of Spark's JSON with which values lose nothing, except some keys of maps."""
_PAIRS: Final = (
    f"{quoted_text(name)}, {quoted_text(value)}" for name, value in JSON_OPTIONS.items()
)
_OPTIONS_SQL: Final = f"map({', '.join(_PAIRS)})"


def row_json(frame: DataFrame, *columns: str) -> str:
    r"""Return the SQL expression of a row of the frame as a JSON object, without loss.

    ``columns`` are those that it has; all by default. Use it in ``selectExpr``::

        frame.selectExpr("carrier AS routing_key", f"{row_json(frame)} AS event")

    Null fields are there. Times have six digits of a second and are in UTC, numbers all their
    digits, bytes are in base64, and keys of maps are the texts of such values. JSON has no NaN and
    no infinities: they are the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which
    ``from_json`` reads into floats again.
    """
    return f"to_json(struct({', '.join(json_fields(frame, *columns))}), {_OPTIONS_SQL})"


def json_fields(frame: DataFrame, *columns: str) -> list[str]:
    """Return the SQL of the columns as values that Spark's JSON writes without loss.

    ``JSON_OPTIONS`` belong to them.
    """
    types = {field.name: field.dataType for field in frame.schema}
    return [
        f"{_value(types[name], quoted_name(name), 0)} AS {quoted_name(name)}"
        for name in columns or types
    ]


def _value(kind: DataType, sql: str, depth: int) -> str:
    """Return the expression of a value whose maps have texts as keys."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, ArrayType):
        element = f"e{depth}"
        inner = _value(kind.elementType, element, depth + 1)
        return sql if inner == element else f"transform({sql}, {element} -> {inner})"
    if isinstance(kind, StructType):
        fields = {f.name: f"{sql}.{quoted_name(f.name)}" for f in kind}
        inner_of = {f.name: _value(f.dataType, fields[f.name], depth + 1) for f in kind}
        if inner_of == fields:
            return sql
        made = ", ".join(f"{inner} AS {quoted_name(name)}" for name, inner in inner_of.items())
        return f"if({sql} IS NULL, NULL, struct({made}))"
    if not isinstance(kind, MapType):
        return sql
    key, item = f"k{depth}", f"v{depth}"
    inner = _value(kind.valueType, item, depth + 1)
    if inner != item:
        sql = f"transform_values({sql}, ({key}, {item}) -> {inner})"
    if isinstance(kind.keyType, StringType):
        return sql
    text = f"to_json(struct({_value(kind.keyType, key, depth + 1)} AS k), {_OPTIONS_SQL})"
    text = f"substr({text}, 6, length({text}) - 6)"  # without {"k": and }
    return f"transform_keys({sql}, ({key}, {item}) -> trim(BOTH '\"' FROM {text}))"
