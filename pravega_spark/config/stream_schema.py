"""The schema of a typed stream: its columns, which rows fit them, and what may change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pravega_spark.errors import InvalidSchema
from pravega_spark.primitives.lazy_property import lazy_property
from pravega_spark.values.checks import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from pravega_spark.schemas.fit import BadRow, RowCheck
    from pravega_spark.schemas.value_sizes import Sizes

# Arrow is imported late, so that a configuration without a schema does without it.


@dataclass(frozen=True)
class StreamSchema:
    """The columns of a typed stream, in order: make one with :meth:`of` or :meth:`from_json`.

    ``text`` is its JSON in Delta's form, which two equal schemas share.
    """

    text: str

    def __post_init__(self) -> None:
        """Bring the text into its one form; raise InvalidSchema if it is not a schema."""
        text, arrow = _checked(self.text)
        object.__setattr__(self, "text", text)
        self.__dict__["arrow"] = arrow

    @classmethod
    def of(cls, given: Any) -> StreamSchema:
        """Return the schema of a schema or of data in another form; raise InvalidSchema.

        Takes a schema or table of Arrow; a ``StructType`` or DataFrame of Spark; a schema or frame
        of Polars; a frame of pandas; a dataclass, and a model class of pydantic. The columns of a
        DataFrame are all nullable.
        """
        if isinstance(given, cls):
            return given
        from pravega_spark.schemas.forms import to_arrow

        return _of_arrow(to_arrow(given))

    @classmethod
    def from_json(cls, given: str | Mapping[str, Any]) -> StreamSchema:
        """Return a schema from its JSON in Delta's form, or in that of Spark's ``StructType``."""
        return cls(given if isinstance(given, str) else _compact(given))

    @classmethod
    def from_json_schema(cls, given: Mapping[str, Any] | str | os.PathLike[str]) -> StreamSchema:
        """Return the schema of the objects of a JSON Schema, given as parsed or as a file's path.

        A property is required if ``required`` names it and it cannot be null.
        """
        from pravega_spark.schemas.json_schema import JsonSchemaTypes, read_document

        return _of_arrow(JsonSchemaTypes(read_document(given)).schema())

    @classmethod
    def from_avro(cls, given: Mapping[str, Any] | str | os.PathLike[str]) -> StreamSchema:
        """Return the schema of the records of an Avro schema, as parsed or as a file's path.

        Needs the extra ``avro``. A field is required unless it is a union with null.
        """
        from pravega_spark.schemas.avro import avro_schema

        return _of_arrow(avro_schema(given))

    @classmethod
    def from_ddl(cls, text: str) -> StreamSchema:
        """Return the schema of columns that are declared as in SQL, such as ``str`` returns.

        ``carrier string not null comment 'IATA code', stops array<struct<airport:string>>``.
        """
        from pravega_spark.schemas.sql import columns_from_sql

        return cls.from_json({"type": "struct", "fields": columns_from_sql(text)})

    def to_json(self) -> str:
        """Return the schema as Delta keeps it: ``{"type": "struct", "fields": [...]}``.

        Each field is nullable there. One that must not be null has ``pravega.required`` in its
        metadata, and a comment stands there, too.
        """
        return self.text

    @lazy_property
    def arrow(self) -> pa.Schema:
        """The columns as a schema of Arrow; a required column is not nullable there."""
        return _checked(self.text)[1]

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns as fields of Arrow, in order."""
        return tuple(self.arrow)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(self.arrow.names)

    @lazy_property
    def delta_fields(self) -> tuple[Mapping[str, Any], ...]:
        """The columns as values of Delta's JSON, to put beside other columns of a table."""
        return tuple(json.loads(self.text)["fields"])

    def evolve_to(self, new: Any, where: str = "the schema") -> StreamSchema:
        """Return a newer schema; raise SchemaChangeRefused unless this one's events have it.

        It may have more nullable columns at the end, also inside of structs, and other comments.
        """
        from pravega_spark.schemas.changes import check_change

        found = StreamSchema.of(new)
        check_change(self.arrow, found.arrow, where)
        return found

    def event_sizes(self, table: pa.Table | pa.RecordBatch) -> Sizes:
        """Return the size in bytes of each row of a table that :meth:`conform` returned.

        It is the sum of the sizes of its values; a null has none. Whatever columns are added later,
        the size stays.
        """
        from pravega_spark.schemas.value_sizes import event_sizes

        return event_sizes(table)

    def conform(self, table: Any, where: str = "the rows") -> pa.Table:
        """Return the table with these columns in this order; raise SchemaMismatch.

        Takes a table or batch of Arrow, and a frame of pandas or Polars. Other encodings of the
        same values are cast; nothing is coerced. A nullable column that is missing is null. Columns
        that fit are not copied.
        """
        from pravega_spark.schemas.fit import fit_table
        from pravega_spark.schemas.forms import to_table

        return fit_table(to_table(table, where, self.arrow), self.arrow, where)

    def split(self, table: Any, where: str = "the rows") -> tuple[pa.Table, tuple[BadRow, ...]]:
        """Return the rows that fit, and those that do not with their reasons, both in order.

        Raises SchemaMismatch if no row can fit, because of the columns or their types.
        """
        from pravega_spark.schemas.fit import split_table
        from pravega_spark.schemas.forms import to_table

        bad: list[BadRow] = []
        rows = to_table(table, where, self.arrow, bad)
        return split_table(rows, self.arrow, where, bad)

    def check_row(
        self, row: Any, where: str = "the row", number: int = 0
    ) -> tuple[dict[str, Any], int]:
        """Return the values of a dict, dataclass or pydantic model, and the event's size in bytes.

        The dict has every column, with values as Arrow takes them, and nothing that the caller can
        still change. ``number`` is that of the row in errors. Raises SchemaMismatch.
        """
        return self._row_check.row(row, where, number)

    def conform_rows(self, rows: Iterable[Any], where: str = "the rows") -> pa.Table:
        """Return dicts, dataclasses or pydantic models as a table; raise SchemaMismatch."""
        return self._row_check.table(rows, where)

    def rows_to_table(self, checked: list[dict[str, Any]]) -> pa.Table:
        """Return rows that :meth:`check_row` returned as a table."""
        from pravega_spark.schemas.fit import rows_to_table

        return rows_to_table(checked, self.arrow)

    @lazy_property
    def _row_check(self) -> RowCheck:
        from pravega_spark.schemas.fit import RowCheck

        return RowCheck(self.arrow)

    def __getstate__(self) -> dict[str, str]:
        """Leave out what is derived."""
        return {"text": self.text}

    def __setstate__(self, state: dict[str, str]) -> None:
        object.__setattr__(self, "text", state["text"])

    def to_ddl(self) -> str:
        """Return the columns as SQL declares them, with their comments: see :meth:`from_ddl`."""
        from pravega_spark.schemas.sql import sql_columns

        return sql_columns(self.arrow, comments=True)

    def __str__(self) -> str:
        """Return the columns as SQL declares them, without comments."""
        from pravega_spark.schemas.sql import sql_columns

        return sql_columns(self.arrow)


_known: Final[dict[str, pa.Schema]] = {}
"""Columns by their text in its one form, of the schemas that were checked last."""
_MOST_KNOWN: Final = 256


def _checked(text: str) -> tuple[str, pa.Schema]:
    """Return the one form of a text, and its columns."""
    from pravega_spark.schemas.delta import schema_from_json

    known = _known.get(text)
    if known is not None:
        return text, known
    try:
        struct = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidSchema(f"this is not the JSON of a schema: {shown(text)}: {error}.") from None
    if not isinstance(struct, Mapping):
        raise InvalidSchema(f"this is not the JSON of a schema: {shown(text)}.")
    return _remembered(schema_from_json(struct))


def _remembered(schema: pa.Schema) -> tuple[str, pa.Schema]:
    """Check columns, and return their text with them: a log that is written is read again."""
    from pravega_spark.schemas.column_types import canonical_schema

    arrow = canonical_schema(schema)
    text = _text_of(arrow)
    _known[text] = arrow
    while len(_known) > _MOST_KNOWN:
        with suppress(StopIteration, RuntimeError, KeyError):  # another thread removed it
            del _known[next(iter(_known))]
    return text, arrow


def _of_arrow(schema: pa.Schema) -> StreamSchema:
    text, _ = _remembered(schema)
    return StreamSchema(text)


def _text_of(canonical: pa.Schema) -> str:
    from pravega_spark.schemas.delta import fields_to_json

    return _compact({"type": "struct", "fields": fields_to_json(canonical)})


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
