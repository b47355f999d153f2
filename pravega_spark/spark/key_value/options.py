"""The options of the data source ``pravega_kvt``, as validated settings of a read or a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidName, InvalidOption
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import translated
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.spark import option_values, options
from pravega_spark.spark.option_values import LogVersion, Option
from pravega_spark.spark.options import READ, WRITE, Format
from pravega_spark.spark.settings import (
    ReadBound,
    ReadSettings,
    WriteSettings,
    bound_of,
    group_of,
    path_of,
    root_of,
)
from pravega_spark.spark.target_options import TIMEOUTS
from pravega_spark.values.limits import GROUP_INTERVAL_MS
from pravega_spark.values.names import split_table, table_log

KEY_PREFIX, LOWEST_KEY, HIGHEST_KEY, PRIMARY_KEY = "prefix", "low", "high", "primary"

_OF_STREAMS = {option.name: option for option in (*WRITE, *READ)}
_TARGET = (
    _OF_STREAMS["root"],
    *TIMEOUTS,
    Option("scope", option_values.any_text, "-", "The scope of `table`, if that is a bare name."),
    Option(
        "table",
        option_values.any_text,
        "-",
        "The table as `scope/table`; also the path of load(), save() and start().",
    ),
)
_KEY_TEXT = "Keys of bytes are written in hexadecimal digits."

TABLE_READ: Final = (
    *_TARGET,
    Option(
        "versionAsOf",
        option_values.non_negative_integer,
        "the newest",
        "The version of the change log at which the table is read, such as `table.at().version`.",
        ("version",),
    ),
    Option(
        KEY_PREFIX,
        option_values.any_text,
        "-",
        f"Read the keys that begin with it. {_KEY_TEXT}",
    ),
    Option(LOWEST_KEY, option_values.any_text, "-", "Read the keys from this one on."),
    Option(HIGHEST_KEY, option_values.any_text, "-", "Read the keys up to this one, included."),
    Option(PRIMARY_KEY, option_values.any_text, "-", "Read the entries of one primary key."),
    _OF_STREAMS["columns"],
    Option(
        "readChangeFeed",
        option_values.boolean,
        "false; needed by readStream",
        "Read the changes of the table in place of its entries.",
        ("changelog",),
    ),
    Option(
        "startingOffsets",
        option_values.one_of("earliest", "latest"),
        "latest (streaming), earliest (batch)",
        "Where the changes begin: at the oldest one that the change log has, or at its tail.",
    ),
    Option(
        "startingVersion",
        option_values.non_negative_integer,
        "-",
        "The changes of this version of the change log and of all later ones, as in Delta.",
    ),
    Option(
        "endingVersion",
        option_values.non_negative_integer,
        "the newest",
        "The last version whose changes are read.",
    ),
    *(
        _OF_STREAMS[name]
        for name in (
            "startingStreamCut",
            "endingStreamCut",
            "startingTimestamp",
            "endingTimestamp",
            "startingOffsetsByTimestampStrategy",
            "maxOffsetsPerTrigger",
            "maxBytesPerTrigger",
            "minPartitions",
            "failOnDataLoss",
            "readerGroup",
            "readerGroupMode",
            "readerGroupInterval",
            "maintain",
        )
    ),
)

TABLE_WRITE: Final = (
    *_TARGET,
    Option(
        "duplicateKeys",
        option_values.one_of("fail", "last"),
        "fail",
        "Two rows of one key in one write: fail, with nothing written; or the last row in the "
        "order of the frame's partitions wins.",
    ),
    *(_OF_STREAMS[name] for name in ("txnAppId", "txnVersion", "restoredLives", "compression")),
    Option("columns", option_values.any_text, "-", "Ignored; a SQL view may set it for its reads."),
)

KEY_VALUE_TABLES: Final = Format("pravega_kvt", TABLE_READ, TABLE_WRITE)


_OF_ENTRIES = ("versionAsOf", KEY_PREFIX, LOWEST_KEY, HIGHEST_KEY, PRIMARY_KEY)
_OF_BOTH = ("root", "scope", "table", "columns", "readChangeFeed")


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
    found = options.parse(TABLE_READ, given, KEY_VALUE_TABLES)
    table, root = _table(found, given), root_of(found)
    columns = found.get("columns", ())
    if not found.get("readChangeFeed", False):
        wrong = sorted(set(found) - {*_OF_ENTRIES, *_OF_BOTH})
        if wrong:
            raise InvalidOption(
                f"option {wrong[0]} is for the changes of table {table}: set readChangeFeed to "
                "true, or remove it."
            )
        keys = {name: found[name] for name in _OF_ENTRIES[1:] if name in found}
        return TableReadSettings(root, table, found.get("versionAsOf"), keys, columns)
    wrong = sorted(set(found) & set(_OF_ENTRIES))
    if wrong:
        raise InvalidOption(
            f"option {wrong[0]} is for the entries of table {table}, not for its changes: remove "
            "readChangeFeed, or filter the frame."
        )
    changes = ReadSettings(
        root=root,
        streams=(table_log(*split_table(table)),),
        starting=_version_bound(found, "starting", 1) or bound_of(found, "starting"),
        ending=_version_bound(found, "ending", 0) or bound_of(found, "ending"),
        timestamp_strategy=found.get("startingOffsetsByTimestampStrategy", "error"),
        max_events=found.get("maxOffsetsPerTrigger"),
        max_bytes=found.get("maxBytesPerTrigger"),
        min_partitions=found.get("minPartitions", 0),
        fail_on_data_loss=found.get("failOnDataLoss", True),
        group=group_of(found, found.get("scope")),
        group_mode=found.get("readerGroupMode"),
        group_interval_ms=found.get("readerGroupInterval", GROUP_INTERVAL_MS),
        maintain=found.get("maintain"),
    )
    return TableReadSettings(root, table, columns=columns, changes=changes)


def table_write_settings(given: Mapping[str, str]) -> TableWriteSettings:
    """Parse the options of ``frame.write`` and ``frame.writeStream``; raise InvalidOption."""
    found = options.parse(TABLE_WRITE, given, KEY_VALUE_TABLES)
    table = _table(found, given)
    if ("txnAppId" in found) != ("txnVersion" in found):
        raise InvalidOption("options txnAppId and txnVersion need each other; set both or neither.")
    sink = WriteSettings(
        root=root_of(found),
        stream=table_log(*split_table(table)),
        application=(found["txnAppId"], found["txnVersion"]) if "txnAppId" in found else None,
        create_if_missing=False,
        compression=found.get("compression", "zstd"),
        checkpoint=given.get("checkpointlocation"),
        restored_lives=found.get("restoredLives", frozenset()),
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
