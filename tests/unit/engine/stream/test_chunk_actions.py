"""Lines of many chunks: the same bytes as those of an action object for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.files import FileCell
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.stream.commit_builder import AddedChunks, PlacedChunk, RemovedChunks
from tests.harness.fake_runtime import NOW_MS

TIMES_US = st.integers(-(2**62), 2**62) | st.integers(0, 2**52)
CHUNKS = st.builds(
    StagedChunk,
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**45),
    st.integers(0, 2**45),
    TIMES_US,
    TIMES_US,
    st.integers(0, 2**31 - 1),
    st.sampled_from(["", "718-00000000deadbeef"]),
)
PLACED = st.builds(PlacedChunk, CHUNKS, st.integers(0, 2**62), st.integers(0, 2**62))


@given(st.lists(PLACED, max_size=4))
def test_lines_of_added_chunks_are_those_of_their_actions(placed: list[PlacedChunk]) -> None:
    adds = AddedChunks(NOW_MS)
    adds.placed += placed
    assert list(adds.lines()) == [to_json(add.to_action()) for add in adds]
    assert list(adds.paths) == [add.path for add in adds]
    assert adds.size_bytes == sum(add.size for add in adds)
    assert Body("X", adds=adds).encode("t", 1) == Body("X", adds=list(adds)).encode("t", 1)


CELLS = st.tuples(
    st.integers(0, 2**62),
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**45),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    st.integers(0, 2**45),
)


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), CELLS), max_size=4))
def test_lines_of_removed_chunks_are_those_of_their_actions(
    cells: list[tuple[int, FileCell]],
) -> None:
    removes = RemovedChunks(NOW_MS)
    removes.cells += cells
    assert list(removes.lines()) == [to_json(remove.to_action()) for remove in removes]
    lazy, body = Body("X", removes=removes), Body("X", removes=list(removes))
    assert lazy.encode("t", 1) == body.encode("t", 1)
    assert list(lazy.committed(1, "t", 1).removes) == list(body.committed(1, "t", 1).removes)
    assert lazy.removed_bytes == body.removed_bytes
    assert removes.event_bytes == sum(cell[2] for _, cell in cells)
