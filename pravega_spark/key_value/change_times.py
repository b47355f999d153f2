"""The time of a change: that of the commit that holds it, as its chunk's ``add`` names it.

Whoever reads the log finds the same time, so all processes, and the fold, agree when an entry ends.
The clock of the writer has no part in it. A committer never writes a time before that of the commit
before it (``CommitBuilder``), and logs of tables with a ttl are never compacted, so it stays.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import numbers
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.file_index import position_of, rows_of
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.model import SegmentRange


class ChangeTimes:
    """When the changes of one range of a table's log were committed."""

    def __init__(self, stream: StreamLog, rng: SegmentRange) -> None:
        """Look up the chunks of the range; raise NoSuchStream or StaleIdentity."""
        view = stream.view(refresh=False, life=rng.life)
        adds = _adds(stream, rng)
        if not adds or position_of(adds[-1])[1] + rows_of(adds[-1]) < rng.end:
            view = stream.view(life=rng.life)
            adds = _adds(stream, rng)
        self._offsets = np.array([position_of(add)[1] for add in adds], np.int64)
        # Truncated meanwhile: the read fails, or a later time stands for those that are left.
        times_ms = [add.modified_ms for add in adds] or [view.timestamp_ms]
        self._times = np.array(times_ms, np.int64) * 1_000

    def of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the times of the events of a batch, in microseconds."""
        found = np.searchsorted(self._offsets, numbers(batch.column("offset")), side="right") - 1
        return self._times[np.maximum(found, 0)]


def _adds(stream: StreamLog, rng: SegmentRange) -> list[Add]:
    with stream.log.files() as files:
        return files.find(rng.segment_id, rng.start, rng.end)
