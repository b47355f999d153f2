"""Write state files, checkpoints and the hint that names the newest of both, after commits.

This maintenance of a log runs in the background, off the path of an append.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.delta_checkpoint import (
    add_rows,
    checkpoint_key,
    digest_key,
    encode_checkpoint,
    encode_digest,
    rows_without,
)
from pravega_spark.engine.log.file_index import Layer, RecentLayer
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot, first_snapshot
from pravega_spark.engine.log.state_file import encode_state, state_key
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.errors import CorruptLog
from pravega_spark.limits import CHECKPOINT_COMMITS, CHECKPOINT_GROWTH

logger = own_logger(__name__)

_workers: dict[int, ThreadPoolExecutor] = {}


def maintain_in_background(log: Log, version: int) -> Future[None] | None:
    """Run :func:`maintain` on the one background thread of this process; never raises."""
    worker = _workers.get(os.getpid())
    if worker is None:
        worker = ThreadPoolExecutor(1, thread_name_prefix="pravega-log-maintenance")
        _workers[os.getpid()] = worker
    try:
        return worker.submit(_maintain_quietly, log, version)
    except RuntimeError as error:
        # The interpreter is shutting down, or cannot start a thread. The commit is valid anyway.
        where = log.reader.where
        logger.warning(
            "skipped maintenance of %s at version %d: %s",
            where,
            version,
            error,
            extra=log_fields("checkpoint", log.path, version),
        )
        return None


def _maintain_quietly(log: Log, version: int) -> None:
    reader = log.reader
    try:
        maintain(reader, version)
    except Exception as error:
        if isinstance(error, CorruptLog):
            log.forget()  # this detects an object store that was emptied under an open writer
        # Missing maintenance costs time, never data: the next run catches up.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        logger.warning(
            "maintenance of %s at version %d failed: %s",
            reader.where,
            version,
            reason,
            extra=log_fields("checkpoint", reader.path, version),
        )
        logger.debug(
            "maintenance of %s at version %d failed",
            reader.where,
            version,
            exc_info=True,
            extra=log_fields("checkpoint", reader.path, version),
        )


def maintain(reader: LogReader, version: int, *, checkpoint: bool | None = None) -> None:
    """Write the state file of a committed version, and a checkpoint if one is due.

    Several processes may do so concurrently: all write the same contents for a version.
    ``checkpoint`` forces or forbids the checkpoint.
    """
    hint_state, hint_checkpoint = reader.hint()
    if hint_state >= version and not checkpoint:
        return
    if checkpoint and reader.checkpoint(version) is not None:
        return
    snapshot, layer = _replay(reader, version)
    if version - layer.older < len(snapshot.domains) // 8 and not checkpoint:
        return
    # Without fsync a power cut may tear the file. Its digest does not match then.
    files = reader.files(layer).totals()
    state = encode_state(snapshot, layer, files)
    reader.store.put(state_key(reader.path, version), state, durable=False)
    failpoint("maintain.state")
    due = checkpoint
    if due is None:
        sizes = {"live": files.files, "domains": len(snapshot.domains)}
        due = checkpoint_due(reader, version, hint_checkpoint, CHECKPOINT_COMMITS, **sizes)
    if due:
        _write_checkpoint(reader, snapshot, layer)
        hint_checkpoint = version
    hint = {"state": version, "checkpoint": hint_checkpoint}
    reader.store.put(reader.hint_key, to_json(hint).encode(), durable=False)


def _replay(reader: LogReader, version: int) -> tuple[Snapshot, RecentLayer]:
    """Return the snapshot of a version, and the file actions since the last state file."""
    opened = reader.open(below=version)
    assert opened is not None, f"{reader.where} has a version {version} but no log"
    since = opened[1]
    snapshot = opened[0] if since >= 0 else None
    layer = RecentLayer(since)
    for commit in reader.span(since, version, kept=True):
        snapshot = (
            first_snapshot(commit, reader.where) if snapshot is None else snapshot.apply(commit)
        )
        layer.apply(commit)
    assert snapshot is not None
    return snapshot, layer


def checkpoint_due(
    reader: LogReader,
    version: int,
    last: int,
    distance: int,
    *,
    live: int | None = None,
    domains: int = 0,
) -> bool:
    """Return whether a checkpoint of a version is worth its cost; ``last`` is the newest one.

    A reader that opens the table from the last checkpoint reads the commits since, and rows of
    files that were removed since. Both are waste. One commit costs readers as much as
    CHECKPOINT_GROWTH rows. So a checkpoint is due when the waste reaches ``distance`` commits, or
    for a large table, what its own rows cost. Each commit and each removed file then pays for a
    fixed number of rows, however large the table is. Without ``live`` files and ``domains`` the
    last checkpoint's number of files counts.
    """
    listed = 0
    if last >= 0:
        try:
            listed = int(json.loads(reader.store.get(digest_key(reader.path, last)))["files"])
        except (FileNotFoundError, *DECODE_ERRORS):
            last = -1
    live = listed if live is None else live
    waste = version - max(last, 0) + max(0, listed - live) // CHECKPOINT_GROWTH
    return waste >= max(distance, (live + domains) // CHECKPOINT_GROWTH)


def _write_checkpoint(reader: LogReader, snapshot: Snapshot, newest: RecentLayer) -> None:
    data, actions = encode_checkpoint(snapshot, _live_rows(reader, newest))
    reader.store.put(checkpoint_key(reader.path, snapshot.version), data)
    failpoint("maintain.checkpoint")
    reader.store.put(
        digest_key(reader.path, snapshot.version), encode_digest(snapshot, data, actions)
    )
    hint = {"version": snapshot.version, "size": actions}
    reader.store.put(f"{reader.folder}/_last_checkpoint", to_json(hint).encode())


def _live_rows(reader: LogReader, newest: RecentLayer) -> Iterator[pa.StructArray]:
    """Yield the live files as rows, newest layer first; holds one layer or row group at a time."""
    removed: set[str] = set()
    layer: Layer = newest
    while True:
        yield add_rows(add for add in layer.all() if add.path not in removed)
        removed |= layer.removed
        if layer.older < 0:
            return
        checkpoint = reader.checkpoint(layer.older)
        if checkpoint is not None:
            for rows in checkpoint.row_groups():
                yield rows_without(rows, removed)
            return
        layer = reader.layer(layer.older)
