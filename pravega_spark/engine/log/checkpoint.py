"""Write state files, their parts, checkpoints and the hint that names them, after commits.

This maintenance of a log runs in the background, off the path of an append.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.delta_checkpoint import (
    add_rows,
    checkpoint_key,
    digest_key,
    encode_checkpoint,
    encode_digest,
    rows_without,
)
from pravega_spark.engine.log.files import FileChanges, Layer, RecentLayer
from pravega_spark.engine.log.reader import Hint, LogReader, snapshot_at
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.stored_state import (
    Passed,
    Span,
    StatePart,
    encode_state,
    part_key,
    state_key,
)
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store.base import StoreEnded
from pravega_spark.errors import CorruptLog
from pravega_spark.values.limits import CHECKPOINT_COMMITS, CHECKPOINT_GROWTH

logger = own_logger(__name__)

_DOMAINS_A_COMMIT = 8
"""State files are at least a commit apart for this many domains that they hold."""
_workers: dict[int, ThreadPoolExecutor] = {}


def maintain_in_background(log: Log, version: int) -> Future[None] | None:
    """Run :func:`maintain` on the one background thread of this process; never raises."""
    worker = _workers.get(os.getpid())
    if worker is None:
        worker = ThreadPoolExecutor(1, thread_name_prefix="pravega-log-maintenance")
        _workers[os.getpid()] = worker
    try:
        return worker.submit(_maintain_quietly, log, version, log.snapshot)
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


def _maintain_quietly(log: Log, version: int, known: Snapshot | None = None) -> None:
    reader = log.reader
    try:
        if known is not None and known.version != version:  # another commit came between
            known = None
        maintain(reader, version, known=known)
    except StoreEnded:
        return
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


def maintain(
    reader: LogReader,
    version: int,
    *,
    known: Snapshot | None = None,
    checkpoint: bool | None = None,
) -> None:
    """Write the state file of a committed version, or a part; and a checkpoint if one is due.

    A state file is due after as many commits as pay for its domains; until then the version gets a
    part. Several processes may do so concurrently: all write the same contents under a name.
    ``known`` is the state of the version if the caller has it. ``checkpoint`` forces or forbids the
    checkpoint.
    """
    hint = reader.hint()
    if hint.newest >= version and not checkpoint:
        return
    if checkpoint and reader.checkpoint(version) is not None:
        return
    base, spans = _find_base(reader, hint, version)
    change, newest = _read_on(reader, base, version)
    if known is None:
        state = base.snapshot
        known = snapshot_at(reader, version) if state is None else state.after(change)
    follows = bool(spans) or base.version == hint.state >= 0
    # A state file repeats all domains, so it waits until as many commits pay for them (ADR 2); a
    # part holds what changed.
    is_late = version - hint.state >= len(known.domains) // _DOMAINS_A_COMMIT
    is_whole = checkpoint or is_late or not follows
    left, change, newest = _behind_parts(reader, spans, change, newest, all_of_them=bool(is_whole))
    is_torn = bool(left) and left[-1].length <= change.span.length
    # Without fsync a power cut may tear the file. Its digest does not match then.
    if is_whole or is_torn:
        data = encode_state(known, newest, change.files, change.passed)
        reader.store.put(state_key(reader.path, version), data, durable=False)
        hint = Hint(version, hint.checkpoint)
    else:
        key = part_key(reader.path, change.span)
        reader.store.put(key, change.encode(newest), durable=False)
        hint = hint._replace(parts=(*(span.version for span in left), version))
    failpoint("maintain.state")
    due = checkpoint
    if due is None and hint.state == version:
        sizes = {"live": change.files.files, "domains": len(known.domains)}
        due = checkpoint_due(reader, version, hint.checkpoint, CHECKPOINT_COMMITS, **sizes)
    if due:
        _write_checkpoint(reader, known, newest)
        hint = hint._replace(checkpoint=version)
    reader.store.put(reader.hint_key, hint.encode(), durable=False)


class _Base(NamedTuple):
    """What is stored of a version below the one to maintain: the commits after it are read."""

    version: int
    """-1 if it is only in commits."""
    token: str
    files: FileTotals | None = None
    """The files that are live in it, where the last part says so."""
    snapshot: Snapshot | None = None
    """Its state, if that was read."""


def _find_base(reader: LogReader, hint: Hint, version: int) -> tuple[_Base, list[Span]]:
    """Return the base below a version, and the spans of the parts at whose end it is.

    An intact last part shows that as cheaply as may be: it is decoded, the state file is not.
    """
    if hint.parts and hint.newest < version:
        (last,) = reader.parts(hint.spans[-1:])
        if last is not None:
            return _Base(last.version, last.token, last.files), hint.spans
    snapshot, since = reader.open_known(below=version)
    return _Base(since, snapshot.token, None, snapshot), []


def _read_on(reader: LogReader, base: _Base, version: int) -> tuple[StatePart, RecentLayer]:
    """Return what the commits from a base up to a version changed, and their file actions."""
    layer, changes = RecentLayer(base.version), FileChanges(base.version, base.version)
    domains: dict[str, str | None] = {}
    protocol = metadata = None
    for commit in reader.span(base.version, version, kept=True):
        layer.apply(commit)
        changes.apply(commit)
        domains.update(commit.domains)
        protocol, metadata = commit.protocol or protocol, commit.metadata or metadata
    files = reader.files(layer).totals() if base.files is None else base.files + layer.net
    part = StatePart(
        span=Span(version, base.version),
        since_token=base.token,
        token=commit.token,
        timestamp_ms=commit.timestamp_ms,
        domains=domains,
        protocol=protocol,
        metadata=metadata,
        files=files,
        passed=Passed.of(changes),
    )
    return part, layer


def _behind_parts(
    reader: LogReader,
    spans: Iterable[Span],
    change: StatePart,
    layer: RecentLayer,
    *,
    all_of_them: bool,
) -> tuple[list[Span], StatePart, RecentLayer]:
    """Join a change with the parts before it: with those that are not longer, or with all.

    Returns the spans that are left; the last one is to be joined, too, if its part is torn.
    """
    # As in a binary counter: few parts stay, and each change is written again only a few times.
    left = list(spans)
    while left and (all_of_them or left[-1].length <= change.span.length):
        (older,) = reader.parts(left[-1:])
        if older is None:
            break
        left.pop()
        change, joined = change.behind(older), older.layer()
        joined.extend(layer)
        layer = joined
    return left, change, layer


def checkpoint_due(
    reader: LogReader,
    version: int,
    last: int,
    distance: int,
    *,
    live: int | None = None,
    domains: int,
) -> bool:
    """Return whether a checkpoint of a version is worth its cost; ``last`` is the newest one.

    A reader that opens the table from the last checkpoint reads the commits since, and rows of
    files that were removed since. Both are waste. One commit costs readers as much as
    CHECKPOINT_GROWTH rows. So a checkpoint is due when the waste reaches ``distance`` commits, or
    for a large table, what its own rows cost. Each commit and each removed file then pays for a
    fixed number of rows, however large the table is. Without ``live`` files the last checkpoint's
    number of files counts.
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
    # In this order: we trust a checkpoint by its digest, and other Delta readers open what the hint
    # names, so neither may come before the file.
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
