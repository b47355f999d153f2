"""``pravega-spark diff`` and ``apply``: a root as a file declares it.

Declared scopes, streams, groups and tables, as YAML. ::

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import click
import yaml

from pravega_spark.cli.exact_json import parse_json, rounded
from pravega_spark.cli.output import (
    TABLE,
    confirm,
    examples,
    output_option,
    say_lines,
    show_value,
    shown_as_it_is,
    yes_option,
)
from pravega_spark.cli.root_option import new_root, root_option
from pravega_spark.config.descriptions import StreamInfo
from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import UNCHANGED, StreamConfiguration
from pravega_spark.config.policy_texts import (
    parse_retention,
    parse_scaling,
    retention_text,
    scaling_text,
)
from pravega_spark.config.root_settings import rule_of
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.stream.configuration import check_scalable, checked_update, updated
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.errors import (
    InvalidConfiguration,
    InvalidInput,
    InvalidSchema,
    NoSuchReaderGroup,
    NoSuchScope,
    NoSuchStream,
    NoSuchTable,
    PravegaSparkError,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.primitives.printable import printable
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.schemas.sql import type_from_sql
from pravega_spark.values.checks import shown
from pravega_spark.values.names import (
    check_scope,
    split_group,
    split_log,
    split_stream,
    split_table,
    table_log,
)
from pravega_spark.values.units import count_text


def read_yaml(data: bytes, where: str) -> Any:
    """Return the plain values of a YAML document in UTF-8; InvalidInput for anything else.

    ``where`` is what errors call the document.
    """
    try:
        return _values(data.decode(), where)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where} is not valid UTF-8: {error.reason}.") from None
    except RecursionError:
        raise InvalidInput(f"{where} is nested too deeply: use no more than ten levels.") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that is none
        raise InvalidInput(f"{where} is not valid YAML: {' '.join(str(error).split())}.") from error


def _values(text: str, where: str) -> Any:
    loader = _StrictLoader(text)
    loader.name = where
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _StrictLoader(yaml.SafeLoader):
    """Makes plain values only, as SafeLoader does, and refuses a name that stands twice."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{shown(key.value)} occurs twice", problem_mark=key.start_mark
                )
            seen.add(name)
        return node


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
        raise InvalidSchema(f"the schema file {file} is not valid JSON: {error}.") from None
    kind = document.get("type") if isinstance(document, dict) else None
    if kind == "struct":
        return StreamSchema.from_json(text)
    if kind == "record" or file.suffix == ".avsc":
        return StreamSchema.from_avro(document)
    if not isinstance(document, dict):
        raise InvalidSchema(f"the schema file {file} does not hold a JSON object.")
    return StreamSchema.from_json_schema(document)


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


@dataclass(kw_only=True)
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
    top = _declared_table(where, read_yaml(data, where) or {}, ("settings", "scopes"))
    if not top:
        raise InvalidInput(f"{where} declares nothing: it needs `scopes`, `settings`, or both.")
    found = Declaration(
        settings=dict(_declared_table(f"{where}: settings", top.get("settings") or {}))
    )
    for scope, content in _declared_table(f"{where}: scopes", top.get("scopes") or {}).items():
        at = f"{where}: scope {scope}"
        found.scopes.append(check_scope(_text(at, scope)))
        parts = _declared_table(at, content or {}, (STREAMS, GROUPS, TABLES))
        for name, given in _members(at, parts, STREAMS, _STREAM_FIELDS):
            found.streams.append(
                _declared_stream(f"{scope}/{name}", given, f"{at}, stream {name}", folder)
            )
        for name, given in _members(at, parts, TABLES, _TABLE_FIELDS):
            found.tables.append(_key_value_table(f"{scope}/{name}", given))
        for name, given in _members(at, parts, GROUPS, _GROUP_FIELDS):
            found.groups.append(
                _declared_group(f"{scope}/{name}", given, f"{at}, reader group {name}")
            )
    return found


def _members(
    where: str, parts: Mapping[str, Any], kind: str, known: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, given in _declared_table(f"{where}: {kind}", parts.get(kind) or {}).items():
        yield _text(where, name), _declared_table(f"{where}: {kind}: {name}", given or {}, known)


def _declared_stream(
    name: str, fields: Mapping[str, Any], where: str, folder: Path
) -> DeclaredStream:
    scaling, retention, key = (fields.get(f) for f in ("scaling", "retention", "encryption_key"))
    schema = fields.get("schema")
    split_stream(name)
    configuration = StreamConfiguration(
        scaling=None if scaling is None else parse_scaling(_text(where, scaling)),
        retention=None if retention is None else parse_retention(_text(where, retention)),
        tags=_list(f"{where}: tags", fields.get("tags")),
        settings=_declared_table(f"{where}: settings", fields.get("settings") or {}),
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


def _declared_group(name: str, fields: Mapping[str, Any], where: str) -> DeclaredGroup:
    split_group(name)
    streams = _list(f"{where}: streams", fields.get("streams"))
    if not streams:
        raise InvalidInput(f"{where} needs `streams`: a list of scope/stream.")
    others = {key: _text(where, value) for key, value in fields.items() if key != "streams"}
    for stream in streams:
        split_log(stream)
    ReaderGroupConfiguration(streams, **others)  # type: ignore[arg-type]
    return DeclaredGroup(name, tuple(streams), others)


def _declared_table(
    where: str, value: Any, known: tuple[str, ...] | None = None
) -> Mapping[str, Any]:
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


@dataclass(frozen=True)
class DeclaredChange:
    """One thing to create (no ``fields``) or to change, and what does it."""

    kind: str
    name: str
    fields: tuple[tuple[str, str, str], ...]
    """Name, present value and declared value of each field that differs."""
    carry_out: Callable[[], object]

    def to_record(self) -> dict[str, Any]:
        """Return the change as JSON."""
        changed = [{"field": f, "from": old, "to": new} for f, old, new in self.fields]
        action = "change" if self.fields else "create"
        return {"action": action, "kind": self.kind, "name": self.name, "fields": changed}

    def __str__(self) -> str:
        if not self.fields:
            return f"+ {self.kind} {self.name}"
        lines = [printable(f"    {name}: {old} -> {new}") for name, old, new in self.fields]
        return "\n".join([f"~ {self.kind} {self.name}", *lines])


def declared_changes(manager: StreamManager, declared: Declaration) -> Iterator[DeclaredChange]:
    """Yield the changes, in an order in which they can be carried out.

    Raises what carrying them out would raise: InvalidConfiguration for a setting that is none, for
    a stream that would begin or end its encryption or its schema, and for a key-value table that
    exists with another configuration, which never changes; SchemaChangeRefused; InvalidInput for a
    group over a stream that neither exists nor is declared; StreamSealed for the scaling of a
    sealed stream.
    """
    existing = set(manager.list_scopes())
    for scope in declared.scopes:
        if scope not in existing:
            yield DeclaredChange("scope", scope, (), partial(manager.create_scope, scope))
    if declared.settings:
        yield from _settings(manager, declared.settings)
    for stream in declared.streams:
        yield from _stream(manager, stream)
    for table in declared.tables:
        yield from _table(manager, table)
    declared_streams = {stream.name for stream in declared.streams}
    declared_streams |= {table_log(*split_table(table.name)) for table in declared.tables}
    for group in declared.groups:
        yield from _group(manager, group, declared_streams)


def _settings(manager: StreamManager, given: dict[str, Any]) -> Iterator[DeclaredChange]:
    present = manager.settings()
    changed = []
    for name, value in given.items():
        rule = rule_of(name)
        wanted = rule.text(rule.parse(name, value))
        if present.text(name) != wanted:
            changed.append((name, present.text(name), wanted))
    if changed:
        change = {name: given[name] for name, _, _ in changed}
        yield DeclaredChange(
            "settings", "of the root", tuple(changed), lambda: manager.update_settings(**change)
        )


# --------------------------------------------------------------------------------------- streams


def _stream(manager: StreamManager, declared: DeclaredStream) -> Iterator[DeclaredChange]:
    name, wanted = declared.name, declared.configuration
    try:
        info = manager.stream_info(name)
    except (NoSuchStream, NoSuchScope):
        yield DeclaredChange("stream", name, (), lambda: manager.create_stream(name, wanted))
        return
    old, new = _stream_fields(info.configuration), _stream_fields(wanted)
    changed = tuple((f, old[f], new[f]) for f in new if f in declared.fields and old[f] != new[f])
    if changed:
        update = _stream_update(info.configuration, wanted, {f for f, _, _ in changed})
        _check_update(info, update)
        yield DeclaredChange("stream", name, changed, lambda: manager.update_stream(name, **update))


def _check_update(info: StreamInfo, update: dict[str, Any]) -> None:
    """Raise what the update of a stream would raise."""
    fields: dict[str, Any] = dict.fromkeys(("add_tags", "remove_tags", "settings"))
    fields |= {"scaling": UNCHANGED, "retention": UNCHANGED, "encryption": UNCHANGED}
    change = checked_update(info.stream, None, **{**fields, **update})
    wanted = updated(info.stream, info.configuration, change)
    check_scalable(
        info.stream, info.configuration, wanted, is_sealed=info.state == StreamState.SEALED.value
    )


def _stream_fields(configuration: StreamConfiguration) -> dict[str, str]:
    settings, schema = configuration.settings, configuration.schema
    key = configuration.encryption
    return {
        "scaling": scaling_text(configuration.scaling),
        "retention": retention_text(configuration.retention),
        "tags": ",".join(sorted(configuration.tags)) or "none",
        "settings": ", ".join(f"{n}={rule_of(n).text(settings[n])}" for n in settings) or "none",
        "encryption_key": "none" if key is None else key.key,
        "schema": "none" if schema is None else schema.to_ddl(),
    }


def _stream_update(
    old: StreamConfiguration, new: StreamConfiguration, changed: set[str]
) -> dict[str, Any]:
    """Return the arguments of an update that names only what differs."""
    update: dict[str, Any] = {}
    if "scaling" in changed:
        update["scaling"] = new.scaling
    if "retention" in changed:
        update["retention"] = new.retention
    if "encryption_key" in changed:
        update["encryption"] = new.encryption
    if "schema" in changed:
        update["schema"] = new.schema
    if "tags" in changed:
        update |= {"add_tags": new.tags - old.tags, "remove_tags": old.tags - new.tags}
    if "settings" in changed:
        given = {name: rule_of(name).text(new.settings[name]) for name in new.settings}
        update["settings"] = dict.fromkeys(old.settings, None) | given
    return update


# -------------------------------------------------------------------------------- tables, groups


def _table(manager: StreamManager, declared: DeclaredTable) -> Iterator[DeclaredChange]:
    name, wanted = declared.name, declared.configuration
    try:
        with manager.key_value_table(name) as table:
            present = table.configuration
    except (NoSuchTable, NoSuchScope):
        yield DeclaredChange(
            "key-value table", name, (), lambda: manager.create_key_value_table(name, wanted)
        )
        return
    other = [
        f"{f.name} is {getattr(present, f.name)}, declared {getattr(wanted, f.name)}"
        for f in fields(KeyValueTableConfiguration)
        if f.name != "tags" and getattr(present, f.name) != getattr(wanted, f.name)
    ]
    if other:
        raise InvalidConfiguration(
            f"key-value table {name} exists, and its configuration never changes: "
            f"{'; '.join(other)}. Declare what it has, or another name."
        )
    if present.tags != wanted.tags:
        old, new = (",".join(sorted(tags)) or "none" for tags in (present.tags, wanted.tags))
        yield DeclaredChange(
            "key-value table",
            name,
            (("tags", old, new),),
            lambda: manager.update_key_value_table(
                name, add_tags=wanted.tags - present.tags, remove_tags=present.tags - wanted.tags
            ),
        )


def _group(
    manager: StreamManager, declared: DeclaredGroup, declared_streams: Set[str]
) -> Iterator[DeclaredChange]:
    name, given = declared.name, dict(declared.fields)
    try:
        group = manager.reader_group(name)
        present = group.configuration
    except (NoSuchReaderGroup, NoSuchScope):
        _check_streams(manager, name, declared.streams, declared_streams)
        yield DeclaredChange(
            "reader group",
            name,
            (),
            lambda: manager.create_reader_group(name, declared.streams, **given),  # type: ignore[arg-type]
        )
        return
    added = [stream for stream in declared.streams if stream not in present.streams]
    _check_streams(manager, name, added, declared_streams)
    removed = [stream for stream in present.streams if stream not in declared.streams]
    old = {"retention": present.retention.value, "acknowledge": present.acknowledge.value}
    changed = [(f, old[f], value) for f, value in given.items() if old[f] != value]
    if added or removed:
        lists = (",".join(sorted(streams)) for streams in (present.streams, declared.streams))
        changed.insert(0, ("streams", *lists))  # type: ignore[arg-type]
    if changed:
        others: dict[str, Any] = {f: value for f, _, value in changed if f != "streams"}
        yield DeclaredChange(
            "reader group",
            name,
            tuple(changed),
            lambda: group.update(add=added, remove=removed, **others),
        )


def _check_streams(
    manager: StreamManager, group: str, streams: Iterable[str], declared: Set[str]
) -> None:
    for stream in streams:
        if stream not in declared and not manager.stream_exists(stream):
            raise InvalidInput(
                f"reader group {group} reads {log_title(stream)}, which neither exists nor is "
                "declared: declare it, too, or take it out of the group's `streams`."
            )


_SAME, _DIFFERENT = 0, 1


def _read(file: BinaryIO) -> Declaration:
    name = getattr(file, "name", "standard input")
    return parse_declaration(file.read(), name, Path(name).parent)


@click.command("diff")
@click.argument("file", type=click.File("rb"))
@root_option
@output_option
def diff(file: BinaryIO, root: str | None, output: str) -> int:
    """Show what `apply` would do for the declarations in FILE (`-`: standard input).

    + marks objects to create, ~ objects to change; objects that the file does not name stay as they
    are. The exit status is 1 if anything differs.

    Example: pravega-spark diff streams.yaml
    """
    manager, _ = new_root(root)
    changes = list(declared_changes(manager, _read(file)))
    if output == TABLE:
        for change in changes:
            say_lines(change)
    else:
        show_value([change.to_record() for change in changes], output)
    return _DIFFERENT if changes else _SAME


_EXAMPLE = """\
settings: {grace: 1 day}
scopes:
  nyc:
    streams:
      flights: {scaling: "events:1000,minimum=4", retention: "consumption:1h..7d"}
      delays: {schema: "carrier string not null, delay int"}
    key-value-tables:
      prices: {key_type: string, ttl: 7 days}
    reader-groups:
      dashboards: {streams: [nyc/flights], retention: automatic}"""


@click.command(
    "apply",
    epilog="\n\n".join(
        (shown_as_it_is("A FILE:", *_EXAMPLE.splitlines()), examples("apply streams.yaml --yes"))
    ),
)
@click.argument("file", type=click.File("rb"))
@yes_option
@root_option
@output_option
def apply(file: BinaryIO, yes: bool, root: str | None, output: str) -> None:
    """Create and change what FILE declares; delete nothing. Safe to repeat."""
    manager, _ = new_root(root)
    changes = list(declared_changes(manager, _read(file)))
    if output == TABLE:
        for change in changes:
            say_lines(change)
    if changes:
        confirm(f"Carry out {count_text(len(changes), 'change')}?", yes=yes)
    _carry_out(changes)
    if output == TABLE:
        click.echo(
            f"{count_text(len(changes), 'change')} carried out."
            if changes
            else "Nothing to change."
        )
    else:
        show_value([change.to_record() for change in changes], output)


def _carry_out(changes: Sequence[DeclaredChange]) -> None:
    """Carry the changes out in order; an error also says which were, and which was not."""
    for number, change in enumerate(changes):
        try:
            change.carry_out()
        except PravegaSparkError as error:
            done = ", ".join(f"{one.kind} {one.name}" for one in changes[:number]) or "nothing"
            error.message = (
                f"{change.kind} {change.name} failed: {error.message} Carried out before it: "
                f"{done} ({number} of {count_text(len(changes), 'change')}). A repeated apply "
                "goes on from there."
            )
            raise
