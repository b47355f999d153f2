"""Which writer a write has: of one stream, with dead letters, or of the streams of its rows.

Each is imported on use.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.versions import DataSourceArrowWriter, DataSourceStreamArrowWriter


def batch_writer(settings: WriteSettings, schema: StructType) -> DataSourceArrowWriter:
    """Return the writer of a batch write; raise InvalidOption for a frame that does not fit."""
    if not settings.stream:
        from pravega_spark.spark.write.many_streams import ManyStreamsBatchWriter

        return ManyStreamsBatchWriter(settings, schema)
    if settings.bad_records == "dlq":
        from pravega_spark.spark.write.dead_letter_sink import DeadLetterBatchWriter

        return DeadLetterBatchWriter(settings, schema)
    from pravega_spark.spark.write.sink import PravegaBatchWriter

    return PravegaBatchWriter(settings, schema)


def stream_writer(settings: WriteSettings, schema: StructType) -> DataSourceStreamArrowWriter:
    """Return the writer of a query's micro-batches; raise InvalidOption for unusable settings."""
    if not settings.stream:
        from pravega_spark.spark.write.many_streams import ManyStreamsStreamWriter

        return ManyStreamsStreamWriter(settings, schema)
    if settings.bad_records == "dlq":
        from pravega_spark.spark.write.dead_letter_sink import DeadLetterStreamWriter

        return DeadLetterStreamWriter(settings, schema)
    from pravega_spark.spark.write.sink import PravegaStreamWriter

    return PravegaStreamWriter(settings, schema)
