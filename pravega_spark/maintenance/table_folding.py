"""The maintenance of key-value tables: folds that are due, and the sweep of folded tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from pravega_spark.engine.log.clock_record import Now, read_now
from pravega_spark.engine.log.sweep_preview import preview_sweep
from pravega_spark.engine.log.table_sweep import SweepResult, sweep_table
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.scopes import TABLE_DOMAIN
from pravega_spark.key_value.fold import ensure_subscribed, fold
from pravega_spark.key_value.fold_due import NEVER, fold_due
from pravega_spark.key_value.folded_source import folded_log, folded_table
from pravega_spark.key_value.folded_table import end_folded_life
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.model import MaintenanceKind
from pravega_spark.names import TABLES_FOLDER
from pravega_spark.units import count_text, size_text

Kinds = Sequence[MaintenanceKind]


class FoldingDone(NamedTuple):
    """What folding did at a stream, and when it is due again; None: with the next change."""

    did: str
    figures: Mapping[str, int]
    due_ms: int | None


def is_table(view: StreamView) -> bool:
    """Return whether a stream is the change log of a key-value table."""
    return TABLE_DOMAIN in view.snapshot.domains


def kinds_of(name: str, kinds: Kinds) -> Kinds:
    """Return the kinds of work that a stream may need, by its path in the scope."""
    if name.startswith(f"{TABLES_FOLDER}/"):
        return kinds
    return tuple(kind for kind in kinds if kind is not MaintenanceKind.FOLDING)


def by_kinds(kinds: Kinds, names: Collection[str]) -> Iterator[tuple[Kinds, list[str]]]:
    """Yield the kinds that plain streams and tables need, each with their names."""
    tables = [name for name in names if name.startswith(f"{TABLES_FOLDER}/")]
    plain = [name for name in names if not name.startswith(f"{TABLES_FOLDER}/")]
    for some in (plain, tables):
        if some and (wanted := kinds_of(some[0], kinds)):
            yield wanted, some


def fold_if_due(stream: StreamLog, view: StreamView, *, dry_run: bool = False) -> FoldingDone:
    """Fold the table of a change log if that is due. Raises what a fold raises."""
    nothing = {"folds": 0, "keys": 0, "bytes_written": 0}
    if not is_table(view):
        return FoldingDone("", nothing, None)
    configuration = table_configuration(view)
    table, ttl_ms = folded_table(stream, configuration), configuration.ttl_ms
    due = fold_due(view, table.record(), ttl_ms, stream.now_ms())
    if not due.is_due:
        return FoldingDone("", nothing, None if due.at_ms == NEVER else due.at_ms)
    if dry_run:
        changes = count_text(due.changes, "change")
        return FoldingDone(f"folds {changes}, {size_text(due.changed_bytes)}", nothing, 0)
    done = fold(stream, table, ttl_ms=ttl_ms, life=view.life)
    merged = done.merge
    if merged is None or not merged.is_committed:
        return FoldingDone("", nothing, 0)
    figures = {"folds": 1, "keys": merged.changes, "bytes_written": merged.bytes_written}
    did = f"folded {count_text(done.events, 'change')} of {merged.changes:,} keys, wrote "
    return FoldingDone(did + size_text(merged.bytes_written), figures, 0)


def keep_unfolded(stream: StreamLog, view: StreamView) -> None:
    """Make sure that retention waits for the fold of a table, before it decides."""
    if is_table(view) and view.record.state in (StreamState.ACTIVE, StreamState.SEALED):
        ensure_subscribed(stream, view)


def sweep_folded(
    stream: StreamLog, view: StreamView, grace_ms: int, retain_ms: int
) -> list[SweepResult]:
    """Sweep the folded table of a change log; nothing for another stream."""
    if not is_table(view):
        return []
    log = folded_table(stream, table_configuration(view)).log
    return [sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms)]


def preview_folded(
    stream: StreamLog, view: StreamView, grace_ms: int, retain_ms: int
) -> list[SweepResult]:
    """Return what :func:`sweep_folded` would do; writes nothing."""
    if not is_table(view):
        return []
    log, now = folded_log(stream), read_now(stream.store, stream.runtime, keep=False)
    if log.refresh() is None:
        return []
    return [preview_sweep(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)]


def sweep_deleted_folded(stream: StreamLog, grace_ms: int, retain_ms: int, now: Now) -> SweepResult:
    """Remove the rows that the deletion of a table left, if it was killed, and sweep them."""
    log = folded_log(stream)
    snapshot = stream.log.snapshot
    if snapshot is not None and StreamView(snapshot).record.state is StreamState.DELETED:
        end_folded_life(log, StreamView(snapshot).life)
    return sweep_table(log, grace_ms=grace_ms, retain_ms=retain_ms, now=now)
