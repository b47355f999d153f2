from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.errors import InvalidInput
from pravega_spark.spark.source_offsets import (
    OffsetOwner,
    StreamOffset,
    decode,
    encode,
    find_record,
    owner_of,
)
from pravega_spark.values.segments import END, NOT_REACHED, StreamCut, make_segment_id

_cells = st.dictionaries(
    st.builds(make_segment_id, st.integers(0, 99), st.integers(0, 9)),
    st.one_of(st.integers(0, 2**50), st.sampled_from([END, NOT_REACHED])),
    min_size=1,
    max_size=5,
)


@given(st.dictionaries(st.sampled_from(["a/x", "a/y", "b/z"]), st.tuples(_cells, _cells)))
def test_offset_survives_sparks_json_byte_for_byte(
    cells: dict[str, tuple[dict[int, int], dict[int, int]]],
) -> None:
    offsets = {
        name: StreamOffset(f"id-{name}", StreamCut(name, 3, origin), StreamCut(name, 3, cut))
        for name, (origin, cut) in cells.items()
    }
    text = json.dumps(encode(offsets))
    assert decode(json.loads(text)) == offsets
    assert json.dumps(encode(decode(json.loads(text)))) == text
    backwards = {
        name: StreamOffset(
            offset.stream_id,
            StreamCut(name, 3, dict(reversed(list(offset.origin.positions.items())))),
            StreamCut(name, 3, dict(reversed(list(offset.cut.positions.items())))),
        )
        for name, offset in reversed(offsets.items())
    }
    assert json.dumps(encode(backwards)) == text


@pytest.mark.parametrize("owner", [None, OffsetOwner("/r"), OffsetOwner("s3://b/r", "a/g", 3, 7)])
def test_offset_names_its_owner(owner: OffsetOwner | None) -> None:
    record = json.loads(json.dumps(encode({"a/b": _at(5)}, owner)))
    assert owner_of(record) == owner
    assert decode(record) == {"a/b": _at(5)}


def _at(offset: int, *, origin: int = 0, life: int = 1, stream_id: str = "i") -> StreamOffset:
    return StreamOffset(
        stream_id, StreamCut("a/b", life, {0: origin}), StreamCut("a/b", life, {0: offset})
    )


def test_batch_begins_at_the_start_unless_the_end_has_another_origin() -> None:
    assert _at(5).batch_start(_at(9)).positions == {0: 5}
    assert _at(9, origin=9).batch_start(_at(7, origin=3)).positions == {0: 3}
    assert _at(9, life=1).batch_start(_at(7, life=2)).life == 2
    assert _at(9).batch_start(_at(7, stream_id="j")).positions == {0: 0}


@pytest.mark.parametrize("record", [{}, {"v": 2, "streams": {}}, {"partition": 3}, []])
def test_offset_of_another_source_or_version_is_refused(record: object) -> None:
    with pytest.raises(InvalidInput, match="not an offset of this version"):
        decode(record)  # type: ignore[arg-type]


def test_record_in_a_report_is_found_in_its_json_and_in_the_text_of_older_sparks() -> None:
    offset = StreamOffset("id", StreamCut("s/a", 1, {0: 0}), StreamCut("s/a", 1, {0: 5}))
    record = {**encode({"s/a": offset}), "held_by": None, "on": True}
    for text in (json.dumps(record), str(record), record):
        assert find_record(text) == record
    for other in ("", "None", "{'streams': ", "{'a': b()}", '{"0": 1}', "[1]", None, 7):
        assert find_record(other) is None
