from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.spark.key_encoding import (
    decode_keys,
    encode_keys,
    first_foreign,
    to_bytes,
    to_text,
)


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_every_key_comes_back_and_no_two_share_a_text(keys: list[bytes]) -> None:
    texts = [to_text(key) for key in keys]
    assert [to_bytes(text) for text in texts] == keys
    assert len(set(texts)) == len(set(keys))
    assert encode_keys(pa.array(keys, pa.binary())).to_pylist() == texts
    assert decode_keys(pa.array(texts, pa.string())).to_pylist() == keys


@given(st.text(alphabet=st.characters(exclude_characters="%", exclude_categories=["Cs"])))
def test_key_of_valid_utf8_without_percent_is_its_own_text(key: str) -> None:
    assert to_text(key.encode()) == key


@pytest.mark.parametrize(
    ("key", "text"),
    [(b"\xff", "%FF"), (b"50%", "50%25"), (b"\xc3\x28", "%C3("), (b"%\x80", "%25%80")],
)
def test_text_of_a_key_is_the_documented_one(key: bytes, text: str) -> None:
    assert to_text(key) == text


def test_null_keys_stay_null() -> None:
    keys = pa.array([None, b"\xfe", b"a", None], pa.binary())
    assert encode_keys(keys).to_pylist() == [None, "%FE", "a", None]
    assert decode_keys(encode_keys(keys)).equals(keys)


def test_first_key_that_is_not_utf8_is_found() -> None:
    assert first_foreign(pa.array([None, b"a", b"\xfe", b"\xff"], pa.binary())) == 2
    assert first_foreign(pa.array([b"a"], pa.binary())) is None
