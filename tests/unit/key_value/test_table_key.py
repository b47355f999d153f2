"""Keys and changes as they are stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.errors import CorruptChunk, InvalidConfiguration, InvalidInput
from pravega_spark.key_value.changes import decode_change, encode_change
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import KeyVersion
from pravega_spark.key_value.keys import Key, KeyCodec, KeyType, TableKey

CODECS: dict[KeyType, tuple[KeyCodec, st.SearchStrategy[Any]]] = {
    KeyType.BYTES: (KeyCodec("s/t", KeyType.BYTES), st.binary(min_size=1)),
    KeyType.STRING: (
        KeyCodec("s/t", KeyType.STRING),
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    ),
    KeyType.LONG: (KeyCodec("s/t", KeyType.LONG), st.integers(-(2**63), 2**63 - 1)),
}


@pytest.mark.parametrize("kind", KeyType)
@given(data=st.data())
def test_stored_keys_keep_their_value_and_their_order(kind: KeyType, data: st.DataObject) -> None:
    codec, keys = CODECS[kind]
    one: Key = data.draw(keys)
    other: Key = data.draw(keys)
    stored, stored_other = codec.encode(one), codec.encode(other)
    assert codec.decode(stored.primary) == one
    assert (one < other) == (stored < stored_other)  # type: ignore[operator]
    assert (codec.routing_key(stored.primary) == codec.routing_key(stored_other.primary)) == (
        one == other
    )


@given(st.binary(max_size=400), st.binary(max_size=400), st.none() | st.binary(max_size=300))
def test_a_change_is_what_was_encoded(
    primary: bytes, secondary: bytes, value: bytes | None
) -> None:
    key = TableKey(primary, secondary)
    assert decode_change(encode_change(key, value)) == (key, value)


@pytest.mark.parametrize(
    "payload", [b"", b"\x01", b"\x02\x01a\x00more", b"\x03\x01a\x00", b"\x01\x05ab", b"\x02\x81"]
)
def test_anything_else_is_damage(payload: bytes) -> None:
    with pytest.raises(CorruptChunk, match="not a change"):
        decode_change(payload)


@pytest.mark.parametrize(
    ("codec", "key", "message"),
    [
        (CODECS[KeyType.BYTES][0], 7, "must be bytes or str"),
        (CODECS[KeyType.STRING][0], b"bytes", "must be a str"),
        (CODECS[KeyType.STRING][0], "\ud800", "no UTF-8"),
        (CODECS[KeyType.LONG][0], 2**63, "64 bits"),
        (CODECS[KeyType.LONG][0], True, "whole number"),
        (CODECS[KeyType.BYTES][0], b"", "must not be empty"),
        (CODECS[KeyType.BYTES][0], bytes(8193), "at most 8192"),
        (KeyCodec("s/t", KeyType.BYTES, 4), b"abc", "must have 4 bytes"),
    ],
)
def test_a_key_that_the_table_cannot_hold(codec: KeyCodec, key: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        codec.encode(key)


def test_a_secondary_key_has_its_length() -> None:
    codec = KeyCodec("s/t", KeyType.BYTES, None, 2)
    assert codec.encode(b"a", b"01") == TableKey(b"a", b"01")
    with pytest.raises(InvalidInput, match="must have 2 bytes"):
        codec.encode(b"a")
    with pytest.raises(InvalidInput, match="the secondary part included"):
        codec.encode(bytes(8191), b"01")


def test_versions_have_a_text() -> None:
    version = KeyVersion(3, 1 << 32, 42)
    for one in (version, KeyVersion.NOT_EXISTS, KeyVersion.NO_VERSION):
        assert KeyVersion.parse(str(one)) == one
    assert str(version) == "3:0#1=42"
    with pytest.raises(InvalidInput):
        KeyVersion.parse("42")


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_type": "float"},
        {"primary_key_length": 0},
        {"primary_key_length": 4, "key_type": "string"},
        {"secondary_key_length": -1},
        {"secondary_key_length": 8192},
        {"partitions": 0},
        {"ttl": 0},
        {"max_value_bytes": "9 MB"},
        {"staleness": "soon"},
        {"scaling": 4},
        {"tags": "one"},
    ],
)
def test_a_configuration_that_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration):
        KeyValueTableConfiguration(**wrong)  # type: ignore[arg-type]


def test_a_configuration_is_what_was_encoded() -> None:
    for one in (
        KeyValueTableConfiguration(),
        KeyValueTableConfiguration(
            "string",
            secondary_key_length=4,
            scaling=ScalingPolicy.by_event_rate(100, minimum=3),
            ttl="2 days",
            max_value_bytes="2 MB",
            staleness=0.25,
            tags=frozenset({"a"}),
        ),
    ):
        read = KeyValueTableConfiguration.from_json(one.to_json())
        assert read == one
        assert read.tags == one.tags
        assert read.partitions == one.partitions
