"""The schema of a declared stream: SQL, a file beside the declaration, or a list of columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pravega_spark.arguments import shown
from pravega_spark.cli.schema_file import SCHEMA_SUFFIXES, schema_of_file
from pravega_spark.errors import InvalidInput, InvalidSchema
from pravega_spark.schemas.sql_types import type_from_sql
from pravega_spark.stream_schema import StreamSchema

_FIELDS: Final = ("column", "type", "required", "comment")


def declared_schema(given: object, where: str, folder: Path) -> StreamSchema:
    """Return the schema that a declaration gives; raise InvalidInput or InvalidSchema.

    A text that ends in ``.json`` or ``.avsc`` is a file, relative to the declaration's folder, and
    any other one declares columns as SQL does. A list has columns as ``stream describe`` prints
    them. ``where`` is what errors call the stream.
    """
    try:
        if isinstance(given, str):
            is_file = given.endswith(SCHEMA_SUFFIXES)
            return schema_of_file(folder / given) if is_file else StreamSchema.from_ddl(given)
        if isinstance(given, list):
            fields = [_field(one, where) for one in given]
            return StreamSchema.from_json({"type": "struct", "fields": fields})
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{where}: schema {given} cannot be read: {error}.") from None
    except InvalidSchema as error:
        error.message = f"{where}: schema: {error.message}"
        raise
    raise InvalidInput(
        f'{where}: schema must declare columns, such as "carrier string not null, delay int", '
        f"name a file ({' or '.join(SCHEMA_SUFFIXES)}), or list columns, got {shown(given)}."
    )


def _field(given: object, where: str) -> Mapping[str, Any]:
    """Return a column of a list as a field of Delta's JSON."""
    known = isinstance(given, dict) and {*given} <= {*_FIELDS}
    if not (known and isinstance(given, dict) and {"column", "type"} <= {*given}):
        raise InvalidInput(
            f"{where}: schema: a column has {', '.join(_FIELDS)}, of which the first two are "
            f"needed, got {shown(given)}."
        )
    name, kind, comment = given["column"], given["type"], given.get("comment")
    required = given.get("required", False)
    texts = (name, kind) if comment is None else (name, kind, comment)
    if not all(isinstance(text, str) for text in texts) or not isinstance(required, bool):
        raise InvalidInput(
            f"{where}: schema: column, type and comment are texts, and required is true or false, "
            f"got {shown(given)}: put texts in quotes."
        )
    metadata = {} if comment is None else {"comment": comment}
    found = type_from_sql(kind, name)
    return {"name": name, "type": found, "nullable": not required, "metadata": metadata}
