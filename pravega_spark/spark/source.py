"""The data source ``pravega``: reads streams as batch or streaming DataFrames, and writes them.

Imports little: Spark imports this module in every session and in several processes per query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pravega_spark.errors import InvalidOption
from pravega_spark.spark.settings import (
    ReadSettings,
    check_batch,
    read_settings,
    write_settings,
)
from pravega_spark.spark.versions import HAS_FILTERS, DataSource, check_spark, spark_release

if TYPE_CHECKING:
    from pravega_spark.spark.read.columns import Column
    from pravega_spark.spark.versions import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class PravegaDataSource(DataSource):
    """Streams under a root as DataFrames.

    Examples::

        spark.read.format("pravega").option("root", root).load("nyc/flights")
        spark.readStream.format("pravega").option("root", root).load("nyc/flights")
        frame.write.format("pravega").mode("append").option("root", root).save("nyc/flights")
        frame.writeStream.format("pravega").option("root", root)
             .option("checkpointLocation", folder).start("nyc/flights")

    In a session of ``pravega_spark.session()`` every action on a frame or view of ``load()`` plans
    anew, and so does every micro-batch that joins it. In others Spark keeps what the first action
    planned: call ``load()`` for each action, and inside ``foreachBatch`` for a join.

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
        return "pravega"

    def _read_settings(self) -> ReadSettings:
        return read_settings(dict(self.options.items()))

    def schema(self) -> StructType:
        """Return the columns of a read."""
        settings = self._read_settings()
        if settings.metadata is not None:
            from pravega_spark.spark.monitor.metadata.reader import TABLES

            return TABLES[settings.metadata].schema
        from pravega_spark.spark.read.columns import frame_schema

        own: tuple[Column, ...] = ()
        if settings.schema != "raw":  # or nothing of the engine is imported here
            from pravega_spark.spark.read.typed_reads import typed_columns

            own = typed_columns(settings)
        return frame_schema(settings, own)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        settings = self._read_settings()
        check_batch(settings)
        if settings.metadata is not None:
            from pravega_spark.spark.monitor.metadata.reader import MetadataReader

            return MetadataReader(settings, schema)
        from pravega_spark.spark.read.batch import PravegaBatchReader
        from pravega_spark.spark.read.typed_reads import check_request

        kind = PravegaBatchReader
        if settings.push_filters:
            if not HAS_FILTERS:
                raise InvalidOption(
                    f"option pushFilters needs Spark 4.1, and this is Spark {spark_release()}, "
                    "which tells a source none of the conditions. Remove it, and name the keys by "
                    "routingKeys or the segments by assign."
                )
            from pravega_spark.spark.read.pushdown import PravegaFilteredReader

            kind = PravegaFilteredReader
        reader = kind(settings, schema)
        check_request(settings, schema, reader.since)
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the streaming reader."""
        settings = self._read_settings()
        if settings.metadata is not None:
            raise InvalidOption(
                f"option metadata={settings.metadata} is for spark.read; readStream reads events."
            )
        if settings.push_filters:
            raise InvalidOption(
                "option pushFilters is for spark.read: Spark tells a streaming source none of the "
                "conditions. Remove it, and name the keys by routingKeys or the segments by "
                "assign."
            )
        from pravega_spark.spark.read.micro_batch import PravegaStreamReader
        from pravega_spark.spark.read.typed_reads import check_request

        reader = PravegaStreamReader(settings, schema)
        check_request(settings, schema, reader.since)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer."""
        from pravega_spark.spark.write.sink import check_mode
        from pravega_spark.spark.write.writers import batch_writer

        check_mode(overwrite)
        return batch_writer(write_settings(dict(self.options.items())), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the streaming writer."""
        from pravega_spark.spark.write.sink import check_mode
        from pravega_spark.spark.write.writers import stream_writer

        check_mode(overwrite)
        return stream_writer(write_settings(dict(self.options.items())), schema)
