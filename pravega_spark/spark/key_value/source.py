"""The data source ``pravega_kvt``: reads and writes key-value tables as DataFrames.

Imports little: Spark imports this module in every session and in several processes per query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pravega_spark.errors import InvalidOption
from pravega_spark.spark.key_value.settings import (
    TableReadSettings,
    TableWriteSettings,
    table_read_settings,
    table_write_settings,
)
from pravega_spark.spark.versions import DataSource, check_spark

if TYPE_CHECKING:
    from pravega_spark.key_value.configuration import KeyValueTableConfiguration
    from pravega_spark.spark.versions import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class KeyValueDataSource(DataSource):
    """Key-value tables under a root as DataFrames.

    Examples::

        spark.read.format("pravega_kvt").option("root", root).load("shop/stock")
        spark.readStream.format("pravega_kvt").option("root", root)
             .option("readChangeFeed", "true").load("shop/stock")
        frame.write.format("pravega_kvt").mode("append").option("root", root).save("shop/stock")

    ``pravega_spark.spark.options`` lists all options.
    """

    options: Mapping[str, str]  # type: ignore[assignment]

    def __init__(self, options: dict[str, str]) -> None:
        """Take the options of a read or a write; raise IllegalState for an unknown Spark."""
        check_spark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format()`` takes."""
        return "pravega_kvt"

    def _read(self) -> tuple[TableReadSettings, KeyValueTableConfiguration]:
        from pravega_spark.spark.key_value.settings import configuration_of

        settings = table_read_settings(dict(self.options.items()))
        return settings, configuration_of(settings.root, settings.log)

    def schema(self) -> StructType:
        """Return the columns of a read, by the keys of the table."""
        from pravega_spark.spark.key_value.columns import change_schema, entry_schema

        settings, configuration = self._read()
        of = entry_schema if settings.changes is None else change_schema
        return of(configuration, settings.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader, of entries or of changes."""
        from pravega_spark.spark.key_value.change_feed import TableChangeReader, TableChanges
        from pravega_spark.spark.key_value.columns import (
            change_schema,
            check_table_schema,
            entry_schema,
        )
        from pravega_spark.spark.key_value.scan import KeyValueTableReader

        settings, configuration = self._read()
        if settings.changes is None:
            check_table_schema(entry_schema(configuration), schema)
            return KeyValueTableReader(settings, configuration, schema)
        if settings.changes.group is not None:
            raise InvalidOption(
                f"option readerGroup={settings.changes.group} is for readStream; a batch read "
                f"keeps no position. Remove it from the read of table {settings.table}."
            )
        check_table_schema(change_schema(configuration), schema)
        return TableChangeReader(TableChanges(settings.changes, configuration, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming reader, which is of changes."""
        from pravega_spark.spark.key_value.change_feed import TableChanges, TableChangeStream
        from pravega_spark.spark.key_value.columns import change_schema, check_table_schema

        settings, configuration = self._read()
        if settings.changes is None:
            raise InvalidOption(
                f"readStream of table {settings.table} reads its changes, which have other columns "
                "than its entries: set the option readChangeFeed to true."
            )
        check_table_schema(change_schema(configuration), schema)
        return TableChangeStream(TableChanges(settings.changes, configuration, schema))

    def _write(self, overwrite: bool) -> TableWriteSettings:
        if overwrite:
            raise InvalidOption(
                "a write to a key-value table puts and removes the keys of the frame: write with "
                ".mode('append'), a streaming query with .outputMode('append'). A query in "
                "complete or update mode writes by foreachBatch(upsert_batches(...))."
            )
        return table_write_settings(dict(self.options.items()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer."""
        from pravega_spark.spark.key_value.sink import TableBatchWriter

        return TableBatchWriter(self._write(overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the streaming writer."""
        from pravega_spark.spark.key_value.sink import TableStreamWriter

        return TableStreamWriter(self._write(overwrite), schema)
