"""Validated settings of a read of a key-value table, or of a write to one. Picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidName, InvalidOption
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import translated
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.spark import options
from pravega_spark.spark.option_values import LogVersion
from pravega_spark.spark.settings import (
    ReadBound,
    ReadSettings,
    WriteSettings,
    application_of,
    bound_of,
    fields_of,
    given_root,
    group_of,
    path_of,
)
from pravega_spark.values.names import split_table, table_log

_KEYS = ("prefix", "low", "high", "primary")
"""The options that choose a range of keys."""


@dataclass(frozen=True, slots=True)
class TableReadSettings:
    """What a read of a table covers: entries at a version in a range of keys, or changes."""

    root: str
    table: str
    version: int | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    """The options that choose a range of keys, as texts."""
    columns: tuple[str, ...] = ()
    changes: ReadSettings | None = None
    """How the change log is read; None: entries are read."""

    @property
    def log(self) -> str:
        """The internal name of the change log."""
        return table_log(*split_table(self.table))


@dataclass(frozen=True, slots=True)
class TableWriteSettings:
    """What a write to a table needs; ``sink`` is of its change log."""

    table: str
    sink: WriteSettings
    is_last_winner: bool = False


def table_read_settings(given: Mapping[str, str]) -> TableReadSettings:
    """Parse the options of ``spark.read`` and ``spark.readStream``; raise InvalidOption."""
    found = options.parse(options.TABLE_READ, given)
    table, root = _table(found, given), given_root(found)
    columns = found.pop("columns", ())
    is_of_changes = found.get("readChangeFeed", False)
    own = options.options_of(options.CHANGES if is_of_changes else options.ENTRIES)
    wrong = sorted(set(found) - {option.name for option in own})
    if wrong and is_of_changes:
        raise InvalidOption(
            f"option {wrong[0]} is for the entries of table {table}, not for its changes: remove "
            "readChangeFeed, or filter the frame."
        )
    if wrong:
        raise InvalidOption(
            f"option {wrong[0]} is for the changes of table {table}: set readChangeFeed to "
            "true, or remove it."
        )
    if not is_of_changes:
        keys = {name: found[name] for name in _KEYS if name in found}
        return TableReadSettings(root, table, found.get("versionAsOf"), keys, columns)
    changes = ReadSettings(
        root=root,
        streams=(table_log(*split_table(table)),),
        starting=_version_bound(found, "starting", 1) or bound_of(found, "starting"),
        ending=_version_bound(found, "ending", 0) or bound_of(found, "ending"),
        group=group_of(found, found.get("scope")),
        **fields_of(ReadSettings, found),
    )
    return TableReadSettings(root, table, columns=columns, changes=changes)


def table_write_settings(given: Mapping[str, str]) -> TableWriteSettings:
    """Parse the options of ``frame.write`` and ``frame.writeStream``; raise InvalidOption."""
    found = options.parse(options.UPSERT, given)
    table = _table(found, given)
    application = application_of(found)
    sink = WriteSettings(
        root=given_root(found),
        stream=table_log(*split_table(table)),
        application=application,
        create_if_missing=False,
        checkpoint=given.get("checkpointlocation"),
        **fields_of(WriteSettings, found),
    )
    return TableWriteSettings(table, sink, found.get("duplicateKeys") == "last")


def _version_bound(found: Mapping[str, Any], side: str, before: int) -> ReadBound | None:
    name = f"{side}Version"
    if name not in found:
        return None
    others = [f"{side}{kind}" for kind in ("Timestamp", "StreamCut", "Offsets")]
    twice = [other for other in others if other in found]
    if twice:
        raise InvalidOption(f"options {name} and {twice[0]} exclude each other; set one of them.")
    return ReadBound(name, LogVersion(found[name] - before))


def _table(found: Mapping[str, Any], given: Mapping[str, str]) -> str:
    """Return the table named by the path, or by ``table``; raise InvalidOption."""
    named, path, scope = found.get("table"), path_of(given), found.get("scope")
    if (named is None) == (path is None):
        raise InvalidOption(
            "name one table: call .load('scope/table'), .save('scope/table') or "
            ".start('scope/table'), or set the option table."
        )
    name = str(named if path is None else path)
    full = f"{scope}/{name}" if scope is not None and "/" not in name else name
    try:
        split_table(full)
    except InvalidName as error:
        raise InvalidOption(f"{error} The storage is named by the option root.") from None
    return full


def configuration_of(root: str, log_name: str) -> KeyValueTableConfiguration:
    """Return the configuration of a table by its change log. Raises NoSuchTable."""
    with translated():
        return table_configuration(existing_view(open_stream(root, log_name)))
