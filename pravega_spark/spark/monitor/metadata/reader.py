"""The batch reader of metadata frames (option ``metadata``).

The driver lists the names of streams and groups and spreads them over tasks. Each task reads the
state of its names, on an object store of many at the same time. Nothing is written, except to
repair a half-made stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import NoSuchStream
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.reader_groups import description
from pravega_spark.spark.monitor.metadata.root import (
    JOINT_TRANSACTIONS,
    KEY_VALUE_TABLES,
    LAG,
    MAINTENANCE,
    READER_GROUPS,
)
from pravega_spark.spark.monitor.metadata.streams import (
    EPOCHS,
    SCHEMAS,
    SEGMENTS,
    SETTINGS,
    STORAGE,
    STREAM_CUTS,
    STREAM_INFO,
    STREAMS,
    TRANSACTIONS,
    WATERMARKS,
)
from pravega_spark.spark.monitor.metadata.table import Row, RowsOfGroup, RowsOfStream
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.versions import DataSourceReader, InputPartition, arrow_schema
from pravega_spark.values.limits import NAMES_PER_TASK

TABLES = {
    "Streams": STREAMS,
    "StreamInfo": STREAM_INFO,
    "Segments": SEGMENTS,
    "Epochs": EPOCHS,
    "Schemas": SCHEMAS,
    "Transactions": TRANSACTIONS,
    "JointTransactions": JOINT_TRANSACTIONS,
    "StreamCuts": STREAM_CUTS,
    "Watermarks": WATERMARKS,
    "KeyValueTables": KEY_VALUE_TABLES,
    "ReaderGroups": READER_GROUPS,
    "Lag": LAG,
    "Settings": SETTINGS,
    "Storage": STORAGE,
    "Maintenance": MAINTENANCE,
}


class NamesPartition(InputPartition):
    """Names of streams, or of reader groups, that one task reads."""

    def __init__(self, names: tuple[str, ...], of_groups: bool) -> None:
        super().__init__(None)
        self.names = names
        self.of_groups = of_groups


class RootPartition(InputPartition):
    """The only partition of a table about the root."""


class MetadataReader(DataSourceReader):
    """Reads one of the metadata tables."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        """Take the settings and the schema that Spark requests."""
        assert settings.metadata is not None
        self.settings = settings
        self._table_name = settings.metadata
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the names of the streams and groups that the options select, split over tasks.

        The options select streams by name, scope or pattern, and groups by their own scope or by
        the streams that they read. Raises NoSuchStream if a named stream does not exist.
        """
        table = TABLES[self._table_name]
        found: list[InputPartition] = []
        if table.rows_of_stream is not None:
            found += _partitions(self._stream_names(), of_groups=False)
        if table.rows_of_group is not None:
            found += _partitions(self._group_names(), of_groups=True)
        if table.rows_of_root is not None:
            found.append(RootPartition(None))
        return found

    def _stream_names(self) -> list[str]:
        if self.settings.streams:
            return list(self.settings.streams)
        manager = StreamManager(self.settings.root)
        scopes = None if self.settings.scope is None else [self.settings.scope]
        return list(
            filter(self._is_selected, root_of(manager).in_scopes(manager.list_streams, scopes))
        )

    def _group_names(self) -> list[str]:
        settings, manager = self.settings, StreamManager(self.settings.root)
        store = open_store(settings.root)
        # A typo must not read as "no rows".
        in_rounds(store, lambda name: begun_view(open_stream(store, name)), settings.streams)
        # A group may read streams of any scope, so only its own rows can be selected by scope.
        if settings.scope is None or settings.streams or self._has_rows_of_streams:
            scopes = None
        else:
            scopes = [settings.scope]
        return root_of(manager).in_scopes(manager.list_reader_groups, scopes)

    @property
    def _has_rows_of_streams(self) -> bool:
        return TABLES[self._table_name].rows_of_stream is not None

    def _is_selected(self, stream: str) -> bool:
        settings = self.settings
        if settings.streams:
            return stream in settings.streams
        return settings.pattern is None or bool(re.fullmatch(settings.pattern, stream))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's streams or groups; runs in a task."""
        table = TABLES[self._table_name]
        rows, store = list[Row](), open_store(self.settings.root)
        if not isinstance(partition, NamesPartition):
            if not isinstance(partition, RootPartition):
                return
            assert table.rows_of_root is not None
            rows += table.rows_of_root(StreamManager(self.settings.root))
        elif partition.of_groups:
            of_group = table.rows_of_group
            assert of_group is not None
            found = in_rounds(store, lambda n: self._rows_of_group(of_group, n), partition.names)
            rows += [row for some in found for row in some]
        else:
            of_stream = table.rows_of_stream
            assert of_stream is not None
            found = in_rounds(store, lambda n: self._rows_of_stream(of_stream, n), partition.names)
            rows += [row for some in found for row in some]
        arrow = arrow_schema(self._schema)
        yield pa.RecordBatch.from_pylist(rows, schema=arrow)

    def _rows_of_stream(self, rows_of: RowsOfStream, name: str) -> list[Row]:
        try:
            return list(rows_of(StreamManager(self.settings.root), name))
        except NoSuchStream:
            if self.settings.streams:
                raise
            return []  # deleted since the names were listed

    def _rows_of_group(self, rows_of: RowsOfGroup, name: str) -> list[Row]:
        store = open_store(self.settings.root)
        group = description.find_group(store, name)
        if group is None:
            return []  # deleted since the names were listed
        scope = self.settings.scope if self._has_rows_of_streams else None
        streams = [s for s in group.state.lives if self._is_selected(s)]
        if scope is not None:
            streams = [s for s in streams if s.startswith(f"{scope}/")]
        return list(rows_of(store, group, streams)) if streams else []


def _partitions(names: Sequence[str], *, of_groups: bool) -> Iterator[NamesPartition]:
    for i in range(0, len(names), NAMES_PER_TASK):
        yield NamesPartition(tuple(names[i : i + NAMES_PER_TASK]), of_groups)
