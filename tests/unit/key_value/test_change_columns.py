from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.errors import CorruptChunk
from pravega_spark.key_value import rows as key_value_rows
from pravega_spark.key_value.changes import decode_change, encode_change
from pravega_spark.key_value.keys import KeyType, TableKey
from pravega_spark.key_value.rows import ChangeSorter, RowLayout, entries_of_events

KEYS = st.builds(TableKey, st.binary(min_size=1, max_size=4), st.binary(max_size=2))
LONG_KEYS = st.builds(TableKey, st.binary(min_size=120, max_size=140), st.binary(max_size=200))
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=9)), max_size=30)


def events(payloads: list[bytes], first: int = 0) -> pa.RecordBatch:
    offsets = range(first, first + len(payloads))
    return pa.record_batch(
        {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array([1_000 + at for at in offsets], pa.timestamp("us", "UTC")),
            "event": pa.array(payloads, pa.binary()),
        }
    )


def decoded(payloads: list[bytes]) -> list[tuple[bytes, bytes, bytes | None]]:
    found = (decode_change(payload) for payload in payloads)
    return [(key.primary, key.secondary, value) for key, value in found]


@given(CHANGES | st.lists(st.tuples(KEYS | LONG_KEYS, st.none() | st.binary(max_size=9))))
def test_columns_of_changes_are_what_the_codec_decodes(changes: Any) -> None:
    payloads = [encode_change(key, value) for key, value in changes]
    batch = events([b"\x01\x01a\x00first", *payloads]).slice(1)
    table = entries_of_events(7, batch)
    names = ("key", "secondary_key", "value")
    assert list(zip(*(table.column(n).to_pylist() for n in names), strict=True)) == decoded(
        payloads
    )
    assert table.column("segment_id").to_pylist() == [7] * len(payloads)
    assert table.column("offset").to_pylist() == list(range(1, 1 + len(payloads)))


def test_short_keys_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_value_rows, "decode_change", None)
    keys = [TableKey(b"%d" % n, b"\x00" * (n % 3)) for n in range(1_000)]
    payloads = [encode_change(k, None if n % 7 == 0 else b"v%d" % n) for n, k in enumerate(keys)]
    table = entries_of_events(0, events(payloads), np.full(1_000, 5))
    monkeypatch.undo()
    assert table.column("key").to_pylist() == [key.primary for key in keys]
    assert table.column("value").to_pylist() == [decode_change(p)[1] for p in payloads]
    assert set(table.column("timestamp").cast(pa.int64()).to_pylist()) == {5}


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=5))
def test_what_the_codec_refuses_is_refused_here(payloads: list[bytes]) -> None:
    try:
        expected = decoded(payloads)
    except CorruptChunk:
        with pytest.raises(CorruptChunk, match="not a change"):
            entries_of_events(0, events(payloads))
        return
    table = entries_of_events(0, events(payloads))
    assert table.column("value").to_pylist() == [value for _, _, value in expected]


@given(st.lists(CHANGES, max_size=8), st.sampled_from([200, 2_000, 1 << 20]))
def test_any_number_of_runs_gives_the_newest_change_of_each_key(parts: Any, run: int) -> None:
    layout, first = RowLayout(KeyType.BYTES, True), 0
    expected: dict[TableKey, bytes | None] = {}
    with ChangeSorter(run) as sorter:
        for part in parts:
            payloads = [encode_change(key, value) for key, value in part]
            sorter.add(layout.rows_of_entries(entries_of_events(0, events(payloads, first))))
            first += len(part)
            expected |= dict(part)
        found = [layout.entries_of_rows(rows).to_pylist() for rows in sorter.sorted()]
    rows = [row for part in found for row in part]
    assert [TableKey(row["key"], row["secondary_key"]) for row in rows] == sorted(expected)
    assert [row["value"] for row in rows] == [expected[key] for key in sorted(expected)]


def test_changes_that_do_not_fit_are_spilled_and_the_runs_deleted() -> None:
    layout = RowLayout(KeyType.LONG, False)
    with ChangeSorter(20_000) as sorter:
        for begin in range(0, 5_000, 500):
            keys = ((n * 7_919 % 5_000) + (1 << 63) for n in range(begin, begin + 500))
            payloads = [encode_change(TableKey(k.to_bytes(8, "big")), b"value") for k in keys]
            sorter.add(layout.rows_of_entries(entries_of_events(0, events(payloads, begin))))
        assert sorter.runs > 3
        folder = sorter._runs[0].parent
        found = [rows.column("k").to_pylist() for rows in sorter.sorted()]
        assert folder.exists()
    assert not folder.exists()
    assert [key for part in found for key in part] == list(range(5_000))
