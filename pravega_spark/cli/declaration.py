"""Declared scopes, streams, groups and tables, as YAML.

::

    settings: {grace: 1 day}
    scopes:
      nyc:
        streams:
          flights: {scaling: "events:1000,minimum=4", retention: "consumption:1h..7d", tags: [gold]}
          delays: {schema: "carrier string not null, delay int"}
        key-value-tables:
          prices: {key_type: string, ttl: 7 days}
        reader-groups:
          dashboards: {streams: [nyc/flights], retention: automatic}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pravega_spark.arguments import shown
from pravega_spark.cli.declared_schema import declared_schema
from pravega_spark.cli.strict_yaml import read_yaml
from pravega_spark.encryption_policy import EncryptionPolicy
from pravega_spark.errors import InvalidInput
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.names import check_scope, split_group, split_log, split_stream, split_table
from pravega_spark.policies import StreamConfiguration
from pravega_spark.policy_texts import parse_retention, parse_scaling
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration

STREAMS, GROUPS, TABLES = "streams", "reader-groups", "key-value-tables"
_STREAM_FIELDS = ("scaling", "retention", "tags", "settings", "encryption_key", "schema")
_GROUP_FIELDS = ("streams", "retention", "acknowledge")
_TABLE_FIELDS = (
    *("key_type", "primary_key_length", "secondary_key_length", "partitions", "scaling"),
    *("ttl", "max_value_bytes", "staleness", "tags"),
)


@dataclass(frozen=True)
class DeclaredStream:
    """A stream and the fields of its configuration that the declaration names."""

    name: str
    configuration: StreamConfiguration
    fields: frozenset[str]


@dataclass(frozen=True)
class DeclaredGroup:
    """A reader group and the fields that the declaration names."""

    name: str
    streams: tuple[str, ...]
    fields: Mapping[str, str]


@dataclass(frozen=True)
class DeclaredTable:
    """A key-value table."""

    name: str
    configuration: KeyValueTableConfiguration


@dataclass
class Declaration:
    """All that a file declares."""

    settings: dict[str, Any] = field(default_factory=dict)
    scopes: list[str] = field(default_factory=list)
    streams: list[DeclaredStream] = field(default_factory=list)
    groups: list[DeclaredGroup] = field(default_factory=list)
    tables: list[DeclaredTable] = field(default_factory=list)


def parse_declaration(data: bytes, where: str, folder: Path) -> Declaration:
    """Return what a YAML text in UTF-8 declares; files that it names are relative to a folder.

    Raises InvalidInput for an unknown field and for a value that has another shape, InvalidName
    for a name that is none, InvalidConfiguration for such a value, and InvalidSchema; each names
    where it is.
    """
    top = _table(where, read_yaml(data, where) or {}, ("settings", "scopes"))
    if not top:
        raise InvalidInput(f"{where} declares nothing: it needs `scopes`, `settings`, or both.")
    found = Declaration(settings=dict(_table(f"{where}: settings", top.get("settings") or {})))
    for scope, content in _table(f"{where}: scopes", top.get("scopes") or {}).items():
        at = f"{where}: scope {scope}"
        found.scopes.append(check_scope(_text(at, scope)))
        parts = _table(at, content or {}, (STREAMS, GROUPS, TABLES))
        for name, fields in _members(at, parts, STREAMS, _STREAM_FIELDS):
            found.streams.append(_stream(f"{scope}/{name}", fields, f"{at}, stream {name}", folder))
        for name, fields in _members(at, parts, TABLES, _TABLE_FIELDS):
            found.tables.append(_key_value_table(f"{scope}/{name}", fields))
        for name, fields in _members(at, parts, GROUPS, _GROUP_FIELDS):
            found.groups.append(_group(f"{scope}/{name}", fields, f"{at}, reader group {name}"))
    return found


def _members(
    where: str, parts: Mapping[str, Any], kind: str, known: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, fields in _table(f"{where}: {kind}", parts.get(kind) or {}).items():
        yield _text(where, name), _table(f"{where}: {kind}: {name}", fields or {}, known)


def _stream(name: str, fields: Mapping[str, Any], where: str, folder: Path) -> DeclaredStream:
    scaling, retention, key = (fields.get(f) for f in ("scaling", "retention", "encryption_key"))
    schema = fields.get("schema")
    split_stream(name)
    configuration = StreamConfiguration(
        scaling=None if scaling is None else parse_scaling(_text(where, scaling)),
        retention=None if retention is None else parse_retention(_text(where, retention)),
        tags=_list(f"{where}: tags", fields.get("tags")),
        settings=_table(f"{where}: settings", fields.get("settings") or {}),
        encryption=None if key is None else EncryptionPolicy(_text(where, key)),
        schema=None if schema is None else declared_schema(schema, where, folder),
    )
    return DeclaredStream(name, configuration, frozenset(fields))


def _key_value_table(name: str, fields: Mapping[str, Any]) -> DeclaredTable:
    split_table(name)
    given = dict(fields)
    if isinstance(given.get("scaling"), str):
        given["scaling"] = parse_scaling(given["scaling"])
    return DeclaredTable(name, KeyValueTableConfiguration(**given))


def _group(name: str, fields: Mapping[str, Any], where: str) -> DeclaredGroup:
    split_group(name)
    streams = _list(f"{where}: streams", fields.get("streams"))
    if not streams:
        raise InvalidInput(f"{where} needs `streams`: a list of scope/stream.")
    others = {key: _text(where, value) for key, value in fields.items() if key != "streams"}
    for stream in streams:
        split_log(stream)
    ReaderGroupConfiguration(streams, **others)  # type: ignore[arg-type]
    return DeclaredGroup(name, tuple(streams), others)


def _table(where: str, value: Any, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be a table of names, got {shown(value)}.")
    for name in value:
        if known is not None and name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."
            raise InvalidInput(f"{where} has the unknown field {shown(name)}: {hint}")
    return value


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{where}: {shown(value)} must be a text: put it in quotes.")
    return value


def _list(where: str, value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidInput(f"{where} must be a list of texts, got {shown(value)}.")
    return value
