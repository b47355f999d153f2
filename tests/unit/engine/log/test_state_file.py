"""State files: round trips, the older format, and damage."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.files import RecentLayer
from pravega_spark.engine.log.snapshot import PROTOCOL, Snapshot, first_snapshot, new_table
from pravega_spark.engine.log.stored_state import (
    decode_state,
    encode_state,
    state_key,
    state_version,
)
from pravega_spark.engine.runtime.json_codec import to_json
from tests.harness.small_streams import make_stream, scale
from tests.harness.small_tables import event_add

FILES = FileTotals(3, 30)


def sample() -> tuple[Snapshot, RecentLayer]:
    body = Body("CREATE", domains={"b": "1", "a": "2"}, protocol=PROTOCOL,
                metadata=new_table({"a": "long"}, [], "id", "s/t", 1))  # fmt: skip
    layer = RecentLayer(-1)
    for n in range(4):
        layer.add(event_add(f"f{n}", n % 2, n // 2, 1))
    for path in ("f1", "older"):
        layer.remove(path)
    return first_snapshot(body.committed(0, "token", 9), "t"), layer


def test_state_file_reads_back_as_it_was_written() -> None:
    snapshot, layer = sample()
    state = decode_state(0, encode_state(snapshot, layer, FILES))

    assert state is not None
    assert state.snapshot == snapshot
    assert state.since == -1
    assert state.files == FILES
    assert sorted(add.path for add in state.layer().all()) == ["f0", "f2", "f3"]
    assert state.layer().removed == {"older"}
    assert state.layer().find(1, 0, 9) == layer.find(1, 0, 9)


def test_state_file_of_the_first_format_is_read() -> None:
    snapshot, layer = sample()
    new = encode_state(snapshot, layer, FILES)
    header = json.loads(new.partition(b"\n")[0])
    plain = pa.decompress(new.partition(b"\n")[2], header["size"], codec="zstd", asbytes=True)
    old = {name: header[name] for name in ("version", "token", "timestamp", "since")}
    line = to_json({"format": 1, **old})
    digest = xxhash.xxh3_128(line.encode())
    digest.update(plain)
    written = to_json({"format": 1, **old, "digest": digest.hexdigest()}).encode()
    assert decode_state(0, written + b"\n" + plain) == decode_state(0, new)


@pytest.mark.parametrize("segments", [20, 200])
def test_state_file_does_not_grow_with_epochs_times_segments(segments: int) -> None:
    stream = make_stream(segments=segments)
    sizes = []
    for scales in (4, 36):
        for n in range(scales):
            sealed = stream.view().active.segments[n % segments]
            low, high = sealed.key_range.low, sealed.key_range.high
            scale(stream, [sealed.segment_id], [(low, (low + high) / 2), ((low + high) / 2, high)])
        sizes.append(len(encode_state(stream.view().snapshot, RecentLayer(-1), FILES)))
    assert sizes[1] < 2.5 * sizes[0]


@given(st.data())
def test_state_file_with_any_changed_byte_or_length_is_not_used(data: st.DataObject) -> None:
    good = encode_state(*sample(), FILES)
    at = data.draw(st.integers(0, len(good) - 1))
    bit = 1 << data.draw(st.integers(0, 7))

    assert decode_state(0, good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :]) is None
    assert decode_state(0, good[:at]) is None
    assert decode_state(1, good) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[]\n", b"null\nnull\n", b'{"digest":1}\n{}\n'])
def test_bytes_that_are_no_state_file_are_not_used(data: bytes) -> None:
    assert decode_state(0, data) is None


def test_version_is_minus_1_for_keys_of_other_objects() -> None:
    assert state_version(state_key("s/t", 77)) == 77
    for name in ("latest.json", "00000000000000000010.checkpoint.parquet", "_last_checkpoint", "1"):
        assert state_version(f"s/t/_delta_log/{name}") == -1
