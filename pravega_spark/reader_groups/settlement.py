"""Settlement of prepared positions: a group follows the root's decisions of joint transactions.

A transaction that acknowledges a reader's positions prepares them by one commit of the group's log.
From then on only the decision log decides. A change that takes segments from the reader, such as a
takeover, a reset or a deletion, carries the decision out first, or decides to abort.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.synchronizer import Generator, Synchronizer
from pravega_spark.engine.store import Store
from pravega_spark.reader_groups.state import (
    GroupState,
    PreparedPositions,
    SegmentKey,
    UndecidedPositions,
)
from pravega_spark.reader_groups.table import open_group_state
from pravega_spark.txn.decision_log import open_decisions

_Value = TypeVar("_Value")


def prepared(
    state: GroupState,
    reader: str,
    positions: PreparedPositions,
    held: Mapping[SegmentKey, tuple[int, int]],
) -> GroupState:
    """Return the state with a reader's positions prepared; ``held`` has its ownership numbers.

    Raises ReinitializationRequired if the reader is no longer in the group, UndecidedPositions if
    another transaction has prepared positions of it, and LookupError with the segment that it no
    longer owns.
    """
    state.reader_entry(reader, positions.number)
    known = state.prepared.get(reader)
    if known is not None and known.transaction != positions.transaction:
        raise UndecidedPositions([known.transaction])
    for key in positions.offsets:
        owned = state.assigned.get(key)
        if owned is None or (owned.reader, owned.number) != (reader, held[key][0]):
            raise LookupError(key)
    return replace(state, prepared={**state.prepared, reader: positions})


def without_prepared(state: GroupState, transaction: str, *, is_committed: bool) -> GroupState:
    """Return the state without a transaction's prepared positions, recorded if it is committed.

    A segment that the reader has lost to a truncation stays where that moved it.
    """
    assigned = dict(state.assigned)
    for reader, positions in state.prepared.items():
        if not is_committed or positions.transaction != transaction:
            continue
        for key, offset in positions.offsets.items():
            owned = assigned.get(key)
            if owned is not None and owned.reader == reader:
                assigned[key] = replace(owned, offset=max(owned.offset, offset))
    kept = {r: p for r, p in state.prepared.items() if p.transaction != transaction}
    return replace(state, assigned=assigned, prepared=kept)


def end_positions(sync: Synchronizer[GroupState], transaction: str, *, is_committed: bool) -> None:
    """Carry out a decided transaction in a group's log, or remove what an aborted one prepared."""

    def generator(state: GroupState) -> tuple[GroupState, None]:
        return without_prepared(state, transaction, is_committed=is_committed), None

    operation = "COMMIT POSITIONS" if is_committed else "ABORT POSITIONS"
    sync.update(operation, generator, {"transaction": transaction})


def settle_positions(
    sync: Synchronizer[GroupState], transactions: Collection[str], reason: str
) -> None:
    """Carry out the transactions that were decided to commit; abort the others with a reason.

    These have prepared positions in the group. An absent record is an abort: a record stays until
    the group's log has the outcome.
    """
    log = sync.table.log
    decisions = open_decisions(log.store, log.runtime)
    for transaction in sorted(transactions):
        record = decisions.abort(transaction, f"reader group: {reason}")
        failpoint("positions.settling")
        end_positions(sync, transaction, is_committed=record is not None)


def update_settled(
    sync: Synchronizer[GroupState],
    operation: str,
    generator: Generator[GroupState, _Value],
    parameters: Mapping[str, Any] | None = None,
) -> _Value:
    """Change a group's state, after the prepared positions that the change must not pass."""
    while True:
        try:
            return sync.update(operation, generator, parameters)
        except UndecidedPositions as found:
            settle_positions(sync, found.transactions, operation)


class GroupPositions:
    """The prepared positions of a root's groups, for transactions that this process only opened."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        """Name the root; nothing is read yet."""
        self._open: Callable[[str], Synchronizer[GroupState]] = lambda group: open_group_state(
            store, group, runtime
        )

    def prepared_readers(
        self, transaction: str, groups: Iterable[str]
    ) -> frozenset[tuple[str, str]]:
        """Return the readers, each with its group, whose positions the transaction has prepared."""
        found = set[tuple[str, str]]()
        for group in groups:
            known = self._open(group).fetch()
            rows = {} if known is None else known.state.prepared
            found |= {(group, r) for r, p in rows.items() if p.transaction == transaction}
        return frozenset(found)

    def carry_out(self, transaction: str, group: str) -> None:
        """Record the positions of a decided transaction; nothing happens if that was done."""
        sync = self._open(group)
        if sync.fetch() is not None:
            end_positions(sync, transaction, is_committed=True)
