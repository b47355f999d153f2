"""A sink that hands rows to pyarrow and does nothing else: the least that one in Python costs.

Each task writes one Parquet file, without routing, checks, statistics of a log, or an fsync.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pravega_spark.values.limits import ROW_GROUP_EVENTS


class ArrowParquet(DataSource):
    """Rows as Arrow into Parquet files of pyarrow, zstd 1."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "arrow_parquet"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a frame."""
        return _Writer(self.options["path"])


@dataclass
class _Writer(DataSourceArrowWriter):
    folder: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        os.makedirs(self.folder, exist_ok=True)
        writer: Any = None
        held: list[pa.RecordBatch] = []
        for batch in iterator:
            if writer is None:
                path = f"{self.folder}/{os.urandom(8).hex()}.parquet"
                writer = pq.ParquetWriter(
                    path, batch.schema, compression="zstd", compression_level=1
                )
            held.append(batch)
            if sum(part.num_rows for part in held) >= ROW_GROUP_EVENTS:
                writer.write_table(pa.Table.from_batches(held))
                held = []
        if held:
            writer.write_table(pa.Table.from_batches(held))
        if writer is not None:
            writer.close()
        return WriterCommitMessage()
