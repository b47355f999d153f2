"""Settlement: a stream's part of a joint transaction follows the decision.

The part is a transaction of the stream that was begun as joint. Until it is prepared it may be
aborted like any other. From then on only the root's decision log decides, and a process that needs
the outcome, to seal the stream or because the preparation is old, decides there to abort first.

Parts are committed in the order of the decisions: before its part of one transaction a stream gets
its parts of all that were decided earlier. So streams that two transactions have in common hold
them in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.stream.records import OUTCOME_PREFIX, OpenTransaction
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, NoSuchStream, StaleIdentity
from pravega_spark.txn import commit, lifecycle
from pravega_spark.txn.commit import known_decisions
from pravega_spark.txn.decision_log import DecisionLog, JointRecord, open_decisions
from pravega_spark.txn.manifests import Manifest, ManifestKind, Manifests


def part_of(view: StreamView, token: str) -> OpenTransaction | None:
    """Return a stream's part of a joint transaction while the log holds it as open."""
    name = next((name for name in view.snapshot.open if name.endswith(token)), None)
    return None if name is None else view.transaction(name)


def find_part(stream: StreamLog, record: JointRecord) -> str | None:
    """Return the id of a stream's part of a joint transaction; None if the stream has none."""
    try:
        view = stream.view(life=record.life_of(stream.name))
    except (NoSuchStream, StaleIdentity):
        return None
    opened = part_of(view, record.token)
    return opened.transaction_id if opened is not None else ended_part(view, record.token)


def ended_part(view: StreamView, token: str) -> str | None:
    """Return the id of a stream's part of a joint transaction whose outcome the log has."""
    outcomes = (name.removeprefix(OUTCOME_PREFIX) for name in view.snapshot.names(OUTCOME_PREFIX))
    return next((name for name in outcomes if name.endswith(token)), None)


def carry_out(stream: StreamLog, decisions: DecisionLog, record: JointRecord) -> StreamView | None:
    """Commit a stream's part of a decided transaction, after those that were decided earlier.

    ``record`` is a decision to commit that the known state of ``decisions`` holds. Returns the
    stream's view with the outcome; None if the life that took part has ended, which carried it out.
    """
    life = record.life_of(stream.name)
    assert record.order is not None, record
    assert life is not None, (stream.name, record)
    due = [r for r in decisions.decided() if (r.order or 0) < record.order] + [record]
    try:
        return _commit_parts(stream, life, due)
    except (NoSuchStream, StaleIdentity):
        return None


def _commit_parts(stream: StreamLog, life: int, records: Iterable[JointRecord]) -> StreamView:
    """Close the parts of decided transactions in their order, and commit them."""
    view, closed = stream.view(life=life), list[Manifests]()
    for record in records:
        opened = part_of(view, record.token)
        if opened is None:
            continue
        manifests = Manifests(stream, opened.transaction_id)
        manifests.read()
        if not manifests.is_prepared:
            _check_ended(stream, opened, life)
            continue
        closing = Manifest(
            ManifestKind.COMMITTING,
            order=commit.next_commit_order(stream, view, opened.transaction_id),
            timestamp_us=record.timestamp_us,
        )
        lifecycle.put_closing_manifest(manifests, closing)
        known_decisions(stream).add(manifests)
        closed.append(manifests)
        failpoint("joint.closed")
    return commit.commit_decided(stream, *closed, life=life)


def _check_ended(stream: StreamLog, opened: OpenTransaction, life: int) -> None:
    """Raise CorruptLog if a decided part has lost its manifests and has not ended meanwhile.

    Each part was prepared before the decision, and its manifests stay until it has ended.
    """
    if opened.transaction_id in stream.view(life=life).transactions:
        raise CorruptLog(
            f"stream {stream.name}: a joint transaction was decided to commit, but manifests of "
            f"its part {opened.transaction_id} are missing. Copy the folder "
            f"{stream.name}/transactions back from a copy, or restore the stream without the part.",
            stream=stream.name,
        )


def settle(
    stream: StreamLog, view: StreamView, *, reasons: Mapping[str, str] | None = None
) -> None:
    """Carry out what the decision log says of a stream's parts in a view.

    ``reasons`` are the parts, by id, that are aborted with a reason if they are undecided. A part
    whose transaction has no record is aborted.
    """
    parts = [opened for _, opened in sorted(view.transactions.items()) if opened.is_part]
    if not parts:
        return
    decisions, reasons = open_decisions(stream.store, stream.runtime), reasons or {}
    records = decisions.read()  # after the view: the record was there before the part
    for opened in parts:
        record, reason = records.get(opened.token), reasons.get(opened.transaction_id)
        if record is not None and record.order is None:
            if reason is None:
                continue
            record = decisions.abort(opened.token, reason)
        if record is None:
            abort_part(stream, opened.transaction_id, reason or "the joint transaction was aborted")
        else:
            carry_out(stream, decisions, record)


def carry_out_decided(stream: StreamLog, view: StreamView, names: Iterable[str]) -> None:
    """Carry out those of a view's open transactions that are parts of decided joint ones.

    Nothing is decided, and without a part nothing is read.
    """
    opened = (view.transaction(name) for name in sorted(names))
    parts = [one for one in opened if one is not None and one.is_part]
    if not parts:
        return
    decisions = open_decisions(stream.store, stream.runtime)
    records = decisions.read()
    for part in parts:
        record = records.get(part.token)
        if record is not None and record.order is not None:
            carry_out(stream, decisions, record)


def end_parts(
    stream: StreamLog, parts: Iterable[OpenTransaction], reason: str
) -> list[JointRecord]:
    """End parts that a view of a stream holds as open: the decision log is asked to abort each.

    Those whose commit was decided before are carried out; returns their records.
    """
    decisions, decided = open_decisions(stream.store, stream.runtime), list[JointRecord]()
    for opened in parts:
        record = decisions.find(opened.token)  # after the view: the record was there before
        if record is not None:
            record = decisions.abort(opened.token, reason)
        if record is None:
            abort_part(stream, opened.transaction_id, reason)
        else:
            carry_out(stream, decisions, record)
            decided.append(record)
    return decided


def abort_part(stream: StreamLog, transaction_id: str, reason: str) -> None:
    """Abort a part whose joint transaction can no longer be decided to commit.

    The log of the stream is read again before: it may hold the outcome of a transaction that was
    committed, and whose record was removed, since.
    """
    if transaction_id not in stream.view().transactions:
        return
    manifests = Manifests(stream, transaction_id)
    manifests.read()
    closing = Manifest(ManifestKind.ABORTING, reason=reason)
    lifecycle.put_closing_manifest(manifests, closing)
    commit.commit_decided(stream, manifests)


class ReaderParticipant(Protocol):
    """A reader in a joint transaction: everything that it has handed out is acknowledged."""

    @property
    def group(self) -> str:
        """The name of the group."""

    @property
    def reader_id(self) -> str:
        """The name of the reader in the group."""

    @property
    def url(self) -> str:
        """The root of the group."""

    def begin(self, transaction: str, /) -> None:
        """Tie the reader to a transaction, after its last one.

        Raises IllegalState if that has not ended, ReinitializationRequired, ObjectClosed.
        """

    def prepare(self) -> None:
        """Prepare the positions. Raises TxnFailed if the reader has lost them."""

    def carry_out(self, transaction: str, /) -> None:
        """Record a transaction's positions after the decision to commit; again does nothing."""

    def untie(self, transaction: str, /) -> None:
        """Take back :meth:`begin`; the reader goes on where it is."""

    def end(self, transaction: str, /, *, is_committed: bool) -> None:
        """Untie the reader; after an abort it goes back. Makes no storage call."""


class PositionParticipants(Protocol):
    """The prepared positions of a root's groups, as any process finds them."""

    def prepared_readers(
        self, transaction: str, groups: Iterable[str], /
    ) -> frozenset[tuple[str, str]]:
        """Return the readers, each with its group, whose positions the transaction has prepared."""

    def carry_out(self, transaction: str, group: str, /) -> None:
        """Record the positions of a decided transaction; nothing happens if that was done."""
