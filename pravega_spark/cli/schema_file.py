"""The schema of a typed stream as a file: JSON Schema, Avro, or Delta's and Spark's own JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pravega_spark.errors import InvalidSchema
from pravega_spark.stream_schema import StreamSchema


def schema_option(text: str) -> Callable[[Any], Any]:
    """Return the option ``--schema``; ``text`` is its help."""
    return click.option("--schema", "schema_file", metavar="FILE", help=text)


def read_schema(path: str) -> StreamSchema:
    """Return the schema of a file; raise UsageError for no file, InvalidSchema for no schema.

    JSON with ``"type": "struct"`` is Delta's and Spark's, ``"type": "record"`` or the suffix
    ``.avsc`` Avro, and any other a JSON Schema.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--schema {path} cannot be read: {error}.") from None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidSchema(f"the schema file {path} is no JSON: {error}.") from None
    kind = document.get("type") if isinstance(document, dict) else None
    if kind == "struct":
        return StreamSchema.from_json(text)
    if kind == "record" or file.suffix == ".avsc":
        return StreamSchema.from_avro(document)
    if not isinstance(document, dict):
        raise InvalidSchema(f"the schema file {path} holds no object of JSON.")
    return StreamSchema.from_json_schema(document)
