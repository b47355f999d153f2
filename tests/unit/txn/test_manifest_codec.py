from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks.chunk import ColumnBounds, StagedChunk
from pravega_spark.errors import CorruptLog
from pravega_spark.txn.manifests import Manifest, ManifestKind, decode_manifest

COUNTS = st.integers(0, 2**53)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
CHUNKS = st.builds(
    StagedChunk,
    TEXT,
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    st.integers(-(2**53), 2**53),
    COUNTS,
    COUNTS,
    TEXT,
    TEXT,
    st.none() | st.builds(ColumnBounds, TEXT, TEXT, TEXT),
)
MANIFESTS = st.builds(
    Manifest,
    st.sampled_from(ManifestKind),
    st.lists(CHUNKS, max_size=3).map(tuple),
    st.none() | TEXT,
    st.integers(-5, 2**53),
    COUNTS,
    st.none() | TEXT,
    st.none() | st.integers(-(2**53), 2**53),
    st.none() | TEXT,
    TEXT,
)


@pytest.mark.medium
@given(MANIFESTS)
def test_manifest_survives_encoding_and_decoding(manifest: Manifest) -> None:
    assert decode_manifest(manifest.encode(), "here") == manifest


@pytest.mark.parametrize("damage", [b"", b"{}", b"{}\nabc\n", b"torn"])
def test_damaged_manifest_is_refused_by_name(damage: bytes) -> None:
    intact = Manifest(
        ManifestKind.WRITE, (StagedChunk("a", 0, 1, 10, 1, 0, 0, 0),), token="t"
    ).encode()
    for data in (damage, intact[:-20], intact.replace(b'"a"', b'"b"')):
        with pytest.raises(CorruptLog, match="manifest 3 of x is torn or was modified; restore"):
            decode_manifest(data, "manifest 3 of x")
