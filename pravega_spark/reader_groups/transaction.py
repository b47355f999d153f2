"""The joint transaction in which a reader's application processes events."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import immutables

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.errors import IllegalState, ReinitializationRequired, TxnFailed
from pravega_spark.reader_groups.membership import ReaderMembership
from pravega_spark.reader_groups.selector import SegmentSelector
from pravega_spark.reader_groups.settlement import end_positions, prepared, update_settled
from pravega_spark.reader_groups.state import GroupState, PreparedPositions, SegmentKey
from pravega_spark.txn.decision_log import open_decisions


def check_may_move(state: GroupState) -> None:
    """Raise IllegalState in a group whose positions only transactions move."""
    if state.configuration.acknowledges_in_transactions:
        raise IllegalState(
            f"only transactions acknowledge events in reader group {state.group}, so a reader "
            "leaves at its acknowledged positions: give none, or reset the group to a cut."
        )


class ReaderTransaction:
    """Ties a reader to one joint transaction at a time, which acknowledges what it handed out.

    Everything that the reader has handed out since its last acknowledged positions belongs to the
    transaction. A commit acknowledges it. After an abort the reader goes back. Only the thread of
    the reader begins and commits, and its next call does the rest. Another process may end the
    transaction: the next begin and the next rewind ask the decision log.
    """

    def __init__(
        self,
        membership: ReaderMembership,
        selector: SegmentSelector,
        check_usable: Callable[[], None],
    ) -> None:
        """Begin without a transaction; ``check_usable`` raises ObjectClosed in a closed reader."""
        self._membership, self._selector = membership, selector
        self._check_usable = check_usable
        self._transaction: str | None = None
        self._held: Mapping[SegmentKey, tuple[int, int]] | None = None
        """What the reader held when its transaction was first committed; no event follows it."""
        self._must_rewind = self._must_refresh = False

    @property
    def is_used(self) -> bool:
        """Whether only transactions acknowledge events in the reader's group."""
        return self._membership.state.configuration.acknowledges_in_transactions

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._membership.state.group

    @property
    def reader_id(self) -> str:
        """The name of the reader in the group."""
        return self._membership.reader_id

    @property
    def url(self) -> str:
        """The root of the group."""
        return self._membership.sync.table.log.store.url

    def begin(self, transaction: str) -> None:
        """Tie the reader to a transaction, after its last one.

        Raises IllegalState if that has not ended, ReinitializationRequired, ObjectClosed.
        """
        self._check_usable()
        if not self.is_used:
            raise self._unused()
        if self._transaction == transaction:
            raise IllegalState(f"{self._membership} is given twice: name each reader once.")
        self._find_end()
        self._go_back()
        self._transaction = transaction

    def _find_end(self) -> None:
        """Untie the reader from its transaction, if it has one, when anybody has ended that.

        One look at the decision log. A decided commit is acknowledged before this returns. Raises
        IllegalState if nothing was decided.
        """
        transaction = self._transaction
        if transaction is None:
            return
        log = self._membership.sync.table.log
        record = open_decisions(log.store, log.runtime).find(transaction)
        if record is not None and record.order is None:
            raise IllegalState(
                f"{self._membership} takes part in joint transaction {transaction}, which has not "
                "ended: commit it, or abort it, and the reader goes back. Any process can abort it "
                f"with StreamManager.joint_transaction({transaction!r})."
            )
        if record is not None:
            self.carry_out(transaction)
        # Without a record, the group's state has what was acknowledged, after any outcome.
        self.end(transaction, is_committed=record is not None)

    def _unused(self) -> IllegalState:
        return IllegalState(
            f"{self._membership} has no transactions: its group has acknowledge="
            f"{self._membership.state.configuration.acknowledge.value!r}. Create the group with "
            "acknowledge='transaction', or update it to that."
        )

    def check_may_read(self) -> bool:
        """Go back if the last transaction was aborted; return whether to read the group's state.

        Raises IllegalState while the reader's transaction is being committed.
        """
        if self._held is not None:
            raise IllegalState(
                f"{self._membership} hands out nothing while joint transaction "
                f"{self._transaction} is being committed: commit it again, or abort it. If another "
                "process has ended it, `rewind()` or the next begin goes on."
            )
        self._go_back()
        is_due, self._must_refresh = self._must_refresh, False
        return is_due

    def rewind(self) -> None:
        """Go back to the last acknowledged positions.

        Raises IllegalState in a transaction that has not ended.
        """
        if not self.is_used:
            raise self._unused()
        self._find_end()
        self._must_rewind = True
        self._go_back()

    def _go_back(self) -> None:
        if self._must_rewind:
            self._membership.rewind(self._selector)
            self._must_rewind, self._must_refresh = False, True

    @property
    def is_at_unacknowledged_end(self) -> bool:
        """Whether the reader can go on only after a commit: its segments end where it is."""
        if not self.is_used:
            return False
        offsets, owned = self._selector.next_offsets, self._membership.state.assigned
        ended = self._selector.ended()
        is_ahead = any(k in owned and o > owned[k].offset for k, o in offsets.items())
        return is_ahead and all(key in ended for key in offsets)

    # -------------------------------------------------------------- called by the transaction

    def prepare(self) -> None:
        """Prepare the positions, by one commit of the group's log; the same again does nothing.

        Raises TxnFailed if the reader is no longer in the group or has lost one of the segments.
        """
        transaction, held = self._transaction, self._held
        assert transaction is not None
        if held is None:
            held = self._held = self._selector.held()

        def generator(state: GroupState) -> tuple[GroupState | None, None]:
            owned = state.owned_by(self.reader_id)
            moved = {
                key: offset
                for key, (_, offset) in held.items()
                if key not in owned or offset > owned[key].offset
            }
            number = self._membership.number
            positions = PreparedPositions(transaction, number, immutables.Map(moved))
            return prepared(state, self.reader_id, positions, held), None

        sync, parameters = self._membership.sync, {"transaction": transaction}
        parameters["reader"] = self.reader_id
        try:
            update_settled(sync, "PREPARE POSITIONS", generator, parameters)
        except (LookupError, ReinitializationRequired) as error:
            lost = f"it lost {error.args[0]}" if isinstance(error, LookupError) else str(error)
            raise TxnFailed(
                f"joint transaction {transaction} cannot acknowledge what {self._membership} has "
                f"handed out: {lost.rstrip('.')}. Others process these events again; begin "
                "another.",
                transaction_id=transaction,
                status=TransactionStatus.ABORTED,
            ) from error
        failpoint("positions.prepared")

    def carry_out(self, transaction: str) -> None:
        """Record a transaction's positions after the decision to commit; again does nothing."""
        end_positions(self._membership.sync, transaction, is_committed=True)

    def untie(self, transaction: str) -> None:
        """Take back :meth:`begin`; the reader goes on where it is."""
        if self._transaction == transaction:
            self._transaction = None

    def end(self, transaction: str, *, is_committed: bool) -> None:
        """Untie the reader from a transaction that has ended. Makes no storage call."""
        if self._transaction != transaction:
            return
        self._must_rewind, self._must_refresh = not is_committed, True
        self._held = None
        self._transaction = None  # last: an interrupted end is repeated
