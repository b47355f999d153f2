"""Routes events to segments by the position of their routing keys in [0, 1).

The position is the top 53 bits of ``xxhash64(key)`` (XXH64 with seed 42 over the UTF-8 bytes),
divided by 2^53: exact in a double and never 1. In Spark SQL the same number is::

    shiftrightunsigned(xxhash64(routing_key), 11) / 9007199254740992D

Events without a key go round-robin over the segments. There are two exceptions: the events of one
atomic ``write_events`` share a segment, and so do those that one process adds to a transaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import column, mask, numbers
from pravega_spark.engine.chunks.format import as_events
from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import shown
from pravega_spark.values.segments import Segment

SEED: Final = 42
"""The seed of Spark's ``xxhash64``."""
POSITIONS: Final = 1 << 53
"""The number of positions: as many as a double distinguishes evenly in [0, 1)."""
_SHIFT: Final = 64 - 53
_REORDER_BYTES: Final = 1 << 30
"""Larger tables are filtered: in one reordered array they could overflow its 31-bit offsets."""


def position(routing_key: str) -> float:
    """Return the key's position in [0, 1); raise InvalidInput for text that is not Unicode."""
    try:
        data = routing_key.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"the routing key {shown(routing_key)} has no UTF-8 form: {error}."
        ) from None
    return (xxhash.xxh64_intdigest(data, SEED) >> _SHIFT) / POSITIONS


def positions(keys: pa.Array | pa.ChunkedArray) -> NDArray[np.float64]:
    """Return each key's position in [0, 1), NaN for null; each distinct key is hashed once."""
    codes, hashed = _encoded(keys)
    return np.append(hashed, np.nan)[codes]


class Router:
    """The segments of an epoch as a function from routing keys to segment ids."""

    __slots__ = ("_ids", "_lows", "_lows_list")

    def __init__(self, segments: Sequence[Segment]) -> None:
        """Take the segments of one epoch, which tile [0, 1)."""
        ordered = sorted(segments, key=lambda segment: segment.key_range.low)
        highs = [0.0, *(segment.key_range.high for segment in ordered)]
        self._lows_list = [segment.key_range.low for segment in ordered]
        assert [*self._lows_list, 1.0] == highs, "the segments do not tile [0, 1)"
        self._lows = np.array(self._lows_list)
        self._ids = np.array([segment.segment_id for segment in ordered], np.int64)

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """The ids in range order, which is the round-robin order."""
        return tuple(self._ids.tolist())

    def segment_of(self, routing_key: str) -> int:
        """Return the id of the segment that the key is routed to."""
        return int(self._ids[bisect_right(self._lows_list, position(routing_key)) - 1])

    def assign(self, keys: pa.Array | pa.ChunkedArray, *, start: int = 0) -> NDArray[np.int64]:
        """Return each key's segment id; the i-th null key gets segment ``start + i``, round-robin.

        To continue, a caller passes ``start`` plus the number of nulls so far.
        """
        found: NDArray[np.int64] = self._ids[self.segment_indexes(keys, start=start)]
        return found

    def segment_indexes(self, keys: pa.Array | pa.ChunkedArray, *, start: int = 0) -> NDArray[Any]:
        """Return for each key its index into ``segment_ids``, in the smallest unsigned type."""
        count = len(self._ids)
        small = np.min_scalar_type(count - 1)
        codes, hashed = _encoded(keys)
        of_code = (np.searchsorted(self._lows, hashed, side="right") - 1).astype(small)
        found = np.append(of_code, small.type(0))[codes]
        nulls = np.flatnonzero(codes == len(hashed))
        if len(nulls):
            found[nulls] = (start + np.arange(len(nulls))) % count
        return found


def split(table: pa.Table, router: Router, start: int = 0) -> list[tuple[int, pa.Table]]:
    """Split events by segment, in range order; each part keeps the order of the table.

    ``table`` has the columns of ``EVENT_SCHEMA`` (others are left out; dictionary and large types
    are cast), or exactly those of typed events. Segments without an event have no part. If all
    events are of one segment, its part shares the table's memory; otherwise the parts are slices of
    one reordered copy.
    """
    events = as_events(table)
    ids = router.segment_ids
    if events.num_rows == 0:
        return []
    if len(ids) == 1:
        return [(ids[0], events)]
    return group(events, router.segment_indexes(events.column("routing_key"), start=start), ids)


def group(
    events: pa.Table, indexes: NDArray[Any], ids: Sequence[int]
) -> list[tuple[int, pa.Table]]:
    """Split events by segment; ``indexes`` holds for each event its segment's index in ``ids``."""
    import pyarrow.compute as pc  # takes as long to import as the rest of Arrow

    counts = np.bincount(indexes, minlength=len(ids))
    taken = np.flatnonzero(counts)
    if len(taken) == 1:
        return [(ids[taken[0]], events)]
    if events.nbytes > _REORDER_BYTES:
        return [(ids[int(i)], events.filter(mask(indexes == i))) for i in taken]
    # A stable sort of 8 or 16 bits is a radix sort; one take is faster than a filter per segment.
    # For Arrow's own allocator the system clears huge pages, which costs more than the copy.
    order = column(np.argsort(indexes, kind="stable"), pa.int64())
    ordered = pc.take(events, order, boundscheck=False, memory_pool=pa.system_memory_pool())
    ends = np.cumsum(counts)
    return [(ids[int(i)], ordered.slice(int(ends[i] - counts[i]), int(counts[i]))) for i in taken]


def coded_keys(keys: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.int64], list[bytes]]:
    """Return a code for each key, and the distinct keys by code; null has the code after them."""
    chunked = keys if isinstance(keys, pa.ChunkedArray) else pa.chunked_array([keys])
    if chunked.type != pa.string():
        chunked = chunked.cast(pa.string())
    chunks = chunked.dictionary_encode().unify_dictionaries().chunks
    if not chunks:
        return np.empty(0, np.int64), []
    distinct = chunks[0].dictionary.cast(pa.binary()).to_pylist()
    codes = np.concatenate([_codes(chunk, len(distinct)) for chunk in chunks])
    return codes.astype(np.int64, copy=False), distinct


def _encoded(
    keys: pa.Array | pa.ChunkedArray,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a code for each key and each code's position; null has the code after the last."""
    codes, distinct = coded_keys(keys)
    digest = xxhash.xxh64_intdigest
    hashes = np.array([digest(key, SEED) for key in distinct], np.uint64)
    return codes, (hashes >> np.uint64(_SHIFT)) / np.float64(POSITIONS)


def _codes(chunk: pa.DictionaryArray, null: int) -> NDArray[np.int64]:
    """Return the codes of a chunk's keys; a null key has the code ``null``."""
    indices = chunk.indices
    if not indices.null_count:
        return numbers(indices)
    rows = slice(indices.offset, indices.offset + len(indices))
    codes = np.frombuffer(indices.buffers()[1], np.int32)[rows]
    return np.where(numbers(indices.is_null().cast(pa.int8())) == 1, np.int32(null), codes)
