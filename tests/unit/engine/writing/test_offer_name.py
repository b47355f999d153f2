from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.stream.records import anonymous_id
from pravega_spark.engine.writing.identity import SessionBatch
from pravega_spark.engine.writing.stage import (
    MAX_NAME_BYTES,
    OfferedPart,
    offer_name,
    offer_prefix,
    parse_offer,
)

FOLDER = f"data/{version_folder(64)}"
COUNTS = st.integers(1, 1 << 40)
NUMBERS = st.integers(0, 1 << 62)
TIMES = st.integers(-(1 << 62), 1 << 62)
TOKENS = st.binary(min_size=12, max_size=12).map(bytes.hex)
WRITERS = st.one_of(
    st.from_regex(r"[A-Za-z0-9.-]{1,40}", fullmatch=True),
    st.builds(anonymous_id, NUMBERS, TOKENS),
    st.sampled_from(["ab", "00", "0.1", "deadbeef", "_7.token00000001"]),
)
FOOTERS = st.one_of(
    st.just(""),
    st.builds(
        "{}-{}".format, st.integers(1, 10**9), st.binary(min_size=8, max_size=8).map(bytes.hex)
    ),
)
EXAMPLE = OfferedPart(
    "0" * 24, 0, 1, 1,
    SessionBatch(anonymous_id(70, "a" * 24), 0, 5, 8),
    StagedChunk("", 1 << 32, 3, 900, 12, 1_700_000_000_000_000, 1_700_000_000_000_009, 1,
                "88-0123456789abcdef"),
)  # fmt: skip


@st.composite
def parts(draw: st.DrawFn) -> OfferedPart:
    count = draw(st.integers(1, 64))
    low = draw(TIMES)
    chunk = StagedChunk(
        "", draw(NUMBERS), draw(COUNTS), draw(COUNTS), draw(NUMBERS),
        low, draw(TIMES), draw(NUMBERS), draw(FOOTERS),
    )  # fmt: skip
    previous = draw(NUMBERS)
    identity = SessionBatch(draw(WRITERS), draw(NUMBERS), previous, previous + draw(COUNTS))
    part = draw(st.integers(0, count - 1))
    return OfferedPart(draw(TOKENS), part, count, draw(COUNTS), identity, chunk)


def named(part: OfferedPart, version: int = 70) -> str:
    name = offer_name(version, part)
    assert name is not None
    return f"{FOLDER}/{name}"


@given(parts(), st.integers(0, 1 << 60))
def test_name_holds_all_of_an_offer_and_sorts_by_the_version_seen(
    part: OfferedPart, version: int
) -> None:
    name = offer_name(version, part)
    assert name is not None
    assert len(name.encode()) <= MAX_NAME_BYTES
    assert offer_prefix(version) < name < offer_prefix(version + 1)
    path = f"{FOLDER}/{name}"
    assert parse_offer(path) == replace(part, chunk=replace(part.chunk, path=path))


def test_staging_version_is_that_of_the_folder_not_the_one_seen() -> None:
    found = parse_offer(named(EXAMPLE))
    assert found is not None
    assert found.staging_version == 64


def test_name_with_any_changed_character_is_no_offer() -> None:
    path = named(EXAMPLE)
    first = len(FOLDER) + 1
    for at in range(first, len(path)):
        for other in "Aa0_":
            if path[at] != other:
                changed = path[:at] + other + path[at + 1 :]
                assert parse_offer(changed) is None, changed


@pytest.mark.parametrize(
    "path",
    [
        f"{FOLDER}/0123456789abcdef-0-0.parquet",
        f"{FOLDER}/o{70:020d}-.parquet",
        f"{FOLDER}/o{70:020d}-AAAA.parquet",
        f"data/t-x/{named(EXAMPLE).rpartition('/')[2]}",
        f"{FOLDER}/below/{named(EXAMPLE).rpartition('/')[2]}",
        named(EXAMPLE).rpartition("/")[2],
    ],
)
def test_other_files_are_no_offers(path: str) -> None:
    assert parse_offer(path) is None


def test_what_does_not_fit_into_a_name_is_not_offered() -> None:
    long = replace(EXAMPLE, identity=replace(EXAMPLE.identity, writer_id="w" * 150))
    noted = replace(EXAMPLE, identity=replace(EXAMPLE.identity, note="n"))
    assert offer_name(70, long) is None
    assert offer_name(70, noted) is None
    assert offer_name(70, replace(EXAMPLE, parts=65)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        replace(EXAMPLE, part=1),
        replace(EXAMPLE, chunk=replace(EXAMPLE.chunk, rows=0)),
        replace(EXAMPLE, chunk=replace(EXAMPLE.chunk, size=0)),
        replace(EXAMPLE, identity=replace(EXAMPLE.identity, last=5)),
    ],
)
def test_name_of_an_impossible_offer_is_refused(wrong: OfferedPart) -> None:
    assert parse_offer(named(wrong)) is None
