"""A source of ready batches yields its rows, and really decodes the files that it is given."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.harness.ready_source import ReadyBatches


def _options(folder: Path, **options: str) -> dict[str, str]:
    batch = pa.record_batch({"number": pa.array(range(5), pa.int64())})
    path = str(folder / "batch.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return {"file": path, "times": "3", **options}


def _rows(options: dict[str, str]) -> list[int]:
    source = ReadyBatches(options)
    reader = source.reader(source.schema())
    return [
        sum(batch.num_rows for batch in reader.read(part))  # type: ignore[union-attr]
        for part in reader.partitions()
    ]


def test_each_task_has_the_rows_of_its_batches_with_and_without_decoding(tmp_path: Path) -> None:
    files = [str(tmp_path / f"{number}.parquet") for number in range(9)]
    for file in files:
        pq.write_table(pa.table({"text": ["a", "b"]}), file, write_page_checksum=True)
    assert _rows(_options(tmp_path)) == [15] * 4
    assert _rows(_options(tmp_path, decoded=json.dumps(files))) == [15] * 4


def test_a_damaged_page_of_a_file_to_decode_is_found(tmp_path: Path) -> None:
    file = tmp_path / "damaged.parquet"
    table = pa.table({"text": ["word"] * 100})
    pq.write_table(table, file, write_page_checksum=True, compression="none", use_dictionary=False)
    data = file.read_bytes()
    second = data.index(b"word" + (4).to_bytes(4, "little") + b"word")
    file.write_bytes(data[:second] + b"work" + data[second + 4 :])
    with pytest.raises(OSError, match="CRC"):
        _rows(_options(tmp_path, decoded=json.dumps([str(file)])))
