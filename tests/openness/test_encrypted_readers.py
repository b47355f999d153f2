"""What other readers see of an encrypted stream: offsets, times and counts, and no event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow.parquet.encryption import CryptoFactory, KmsClient, KmsConnectionConfig
from pyspark.sql import SparkSession

from pravega_spark import EncryptionPolicy, StreamConfiguration, StreamManager, set_kms
from tests.harness.delta_engines import connect_duckdb, spark_frame
from tests.harness.file_kms import FileKms, MasterKeys

EVENTS = 1_001


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Path]:
    """The table of a stream of a lone event and of a batch."""
    keys = MasterKeys(tmp_path / "keys.json").path
    set_kms(lambda connection: FileKms(keys))
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(encryption=EncryptionPolicy("first")))
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"lone", "key").result()
        writer.write_events([b"%d" % n for n in range(EVENTS - 1)], "key")
    yield tmp_path / "root/s/t/events"
    set_kms(None)


def test_delta_rs_reads_all_but_the_events(table: Path) -> None:
    query = "SELECT count(*) AS rows, max(offset_delta) AS last FROM t"
    found: Any = QueryBuilder().register("t", DeltaTable(table)).execute(query).read_all()
    assert (found["rows"].to_pylist(), found["last"].to_pylist()) == ([EVENTS], [EVENTS - 2])
    dataset = DeltaTable(table).to_pyarrow_dataset()
    assert dataset.to_table(columns=["base_offset", "offset_delta", "timestamp"]).num_rows == EVENTS
    with pytest.raises(OSError, match="decrypt"):
        dataset.to_table(columns=["event"])


def test_duckdb_reads_all_but_the_events(table: Path) -> None:
    with connect_duckdb() as connection:
        query = "SELECT count(*), count(timestamp), max(offset_delta) FROM delta_scan('{}')"
        assert connection.execute(query.format(table)).fetchall() == [(EVENTS, EVENTS, 999)]
        for column in ("event", "routing_key"):
            with pytest.raises(duckdb.Error):  # its text is that of a torn file
                connection.execute(f"SELECT {column} FROM delta_scan('{table}')").fetchall()


def test_polars_reads_all_but_the_events(table: Path) -> None:
    frame = polars.scan_delta(str(table))
    assert frame.select("offset_delta", "timestamp").collect().height == EVENTS
    with pytest.raises(polars.exceptions.ComputeError, match=r"[Ee]ncrypt"):
        frame.select("event").collect()


def test_delta_spark_reads_all_but_the_events(table: Path, spark: SparkSession) -> None:
    frame = spark_frame(spark, str(table))
    assert frame.where("offset_delta >= 0 AND timestamp IS NOT NULL").count() == EVENTS
    with pytest.raises(Exception, match=r"[Cc]rypt|ParquetCryptoRuntimeException|[Dd]ecryptor"):
        frame.select("event").collect()


def test_pyarrow_reads_the_events_with_a_client_of_the_kms(table: Path, tmp_path: Path) -> None:
    class Client(KmsClient):
        def __init__(self, connection: Any) -> None:
            super().__init__()
            self.kms = FileKms(tmp_path / "keys.json")

        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
            return self.kms.wrap_key(key_bytes, master_key_identifier)

        def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
            return self.kms.unwrap_key(wrapped_key, master_key_identifier)

    keys = CryptoFactory(Client).file_decryption_properties(KmsConnectionConfig())
    events = [
        event.as_py()
        for path in table.rglob("data/**/*.parquet")
        for event in pq.ParquetFile(path, decryption_properties=keys).read()["event"]
    ]
    assert sorted(events) == sorted([b"lone", *(b"%d" % n for n in range(EVENTS - 1))])
