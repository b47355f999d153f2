"""What must change so that a root has what a declaration names. Nothing is ever deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from pravega_spark.cli.declaration import (
    Declaration,
    DeclaredGroup,
    DeclaredStream,
    DeclaredTable,
)
from pravega_spark.engine.stream.configuration_update import (
    check_scalable,
    checked_update,
    updated,
)
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.errors import (
    InvalidConfiguration,
    InvalidInput,
    NoSuchReaderGroup,
    NoSuchScope,
    NoSuchStream,
    NoSuchTable,
)
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamInfo
from pravega_spark.names import log_title, split_table, table_log
from pravega_spark.policies import UNCHANGED, StreamConfiguration
from pravega_spark.policy_texts import retention_text, scaling_text
from pravega_spark.printable import printable
from pravega_spark.root_settings import rule_of


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
        """Return the lines of a diff."""
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
