"""The open tables of this process: all handles of a table share one index and its updates."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pravega_spark.engine.kinds import TABLE_DOMAIN
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.folded_table import LogFold
from pravega_spark.key_value.index import TableIndex
from pravega_spark.key_value.keys import KeyCodec, KeyType
from pravega_spark.key_value.updates import UpdateCombiner


@dataclass(frozen=True, eq=False)
class SharedTable:
    """What the handles of one life of a table share in this process."""

    life: int
    configuration: KeyValueTableConfiguration
    codec: KeyCodec
    index: TableIndex
    combiner: UpdateCombiner


def table_configuration(view: StreamView) -> KeyValueTableConfiguration:
    """Return the configuration of the table whose change log this is."""
    text = view.snapshot.domains.get(TABLE_DOMAIN)
    if text is None:
        raise CorruptLog(
            f"{view.snapshot.where}: version {view.version} of the log holds no {TABLE_DOMAIN}. "
            "Restore the log from a copy.",
            path=view.snapshot.where,
            version=view.version,
        )
    record = json.loads(text)
    return KeyValueTableConfiguration.from_json(
        {**record, "tags": sorted(view.record.configuration.tags)}
    )


def key_codec(table: str, configuration: KeyValueTableConfiguration) -> KeyCodec:
    """Return the codec of the keys of a table with this configuration."""
    lengths = configuration.primary_key_length, configuration.secondary_key_length
    return KeyCodec(table, KeyType(configuration.key_type), *lengths)


def open_table(stream: StreamLog, table: str, view: StreamView) -> SharedTable:
    """Return what the handles of the table share, which is made by the first of them."""
    known = stream.shared.get(view.life)
    if known is None:
        configuration = table_configuration(view)
        codec = key_codec(table, configuration)
        index = TableIndex(stream, view.life, configuration, LogFold(stream, configuration))
        combiner = UpdateCombiner(stream, index, codec)
        made = SharedTable(view.life, configuration, codec, index, combiner)
        known = stream.shared.setdefault(view.life, made)
    assert isinstance(known, SharedTable)
    return known
