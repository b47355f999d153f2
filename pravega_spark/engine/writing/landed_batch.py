"""Where a batch is that another process committed: its offsets, from the adds of its own chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.stream.stream_log import StreamLog, chunk_ref
from pravega_spark.engine.writing.append_draft import AppendedRange, AppendResult, StagedBatch

_OFFERED = re.compile(rb'\n\{"add":\{"path":"[^"]*/o\d{20}-')


def landed(stream: StreamLog, batch: StagedBatch, newest: tuple[int, bytes] | None) -> AppendResult:
    """Return the offsets of a batch that an earlier commit holds.

    Without offsets if that commit does not name its chunks, or is not stored any more. ``newest``
    is a version that the caller has read, with its commit, which saves a call.
    """
    view = stream.known_view()
    record = view.writer(batch.identity.writer_id)
    if record is None or record.last != batch.identity.last:
        return AppendResult(view.version, duplicate=True)
    version, paths = record.version, [chunk.path for chunk in batch.chunks]
    adds = _newest_adds(newest, version, paths) or _adds(stream, version)
    found = {add.path: chunk_ref(add, stream.log.reader.where) for add in adds}
    if not all(path in found for path in paths):
        return AppendResult(version, duplicate=True)
    refs = [found[path] for path in paths]
    ranges = (
        AppendedRange(ref.segment_id, ref.base_offset, ref.rows, ref.base_bytes + ref.event_bytes)
        for ref in refs
    )
    return AppendResult(version, False, tuple(ranges))


def offers_in(commit: bytes | None) -> int:
    """Return how many offered chunks a commit holds, without decoding it.

    A process that commits any is contended, so it lists and takes the offers of others.
    """
    return 0 if commit is None else len(_OFFERED.findall(commit))


def _newest_adds(
    newest: tuple[int, bytes] | None, version: int, paths: Sequence[str]
) -> Sequence[Add] | None:
    """Return the adds of the files, from their lines alone; None if not all are there.

    The commit was decoded before, and it may hold the batches of very many writers.
    """
    if newest is None or newest[0] != version:
        return None
    found: list[Add] = []
    for path in paths:
        at = newest[1].find(b'\n{"add":{"path":"%b"' % path.encode()) + 1
        if not at:
            return None
        line = newest[1][at : newest[1].index(b"\n", at)]
        found.append(Add.from_action(json.loads(line.decode())["add"]))
    return found


def _adds(stream: StreamLog, version: int) -> Sequence[Add]:
    found = stream.log.reader.commit(version, light=False)
    return () if found is None else found.adds
