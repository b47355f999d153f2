"""The schema of a typed stream as a file: JSON Schema, Avro, or Delta's and Spark's own JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from pravega_spark.cli.exact_json import parse_json, rounded
from pravega_spark.errors import InvalidSchema
from pravega_spark.stream_schema import StreamSchema

SCHEMA_SUFFIXES: Final = (".json", ".avsc")


def schema_option(text: str) -> Callable[[Any], Any]:
    """Return the option ``--schema``; ``text`` is its help."""
    return click.option("--schema", "schema_file", metavar="FILE", help=text)


def read_schema(path: str) -> StreamSchema:
    """Return the schema of an option's file; raise UsageError for no file, InvalidSchema."""
    try:
        return schema_of_file(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--schema {path} cannot be read: {error}.") from None


def schema_of_file(file: Path) -> StreamSchema:
    """Return the schema of a file; raise OSError, UnicodeDecodeError, InvalidSchema.

    JSON with ``"type": "struct"`` is Delta's and Spark's, ``"type": "record"`` or the suffix
    ``.avsc`` Avro, and any other a JSON Schema.
    """
    text = file.read_text(encoding="utf-8")
    try:
        document = rounded(parse_json(text))
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(f"the schema file {file} is no JSON: {error}.") from None
    kind = document.get("type") if isinstance(document, dict) else None
    if kind == "struct":
        return StreamSchema.from_json(text)
    if kind == "record" or file.suffix == ".avsc":
        return StreamSchema.from_avro(document)
    if not isinstance(document, dict):
        raise InvalidSchema(f"the schema file {file} holds no object of JSON.")
    return StreamSchema.from_json_schema(document)
