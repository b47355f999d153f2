"""Joint transactions: events of several streams and positions of readers, all or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import ProcessGuard, Runtime
from pravega_spark.engine.runtime.tracing import span
from pravega_spark.engine.stream.records import TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.encode import Serializer
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    NoSuchStream,
    NoSuchTransaction,
    PravegaSparkError,
    StaleIdentity,
    TxnFailed,
)
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.txn import settlement
from pravega_spark.txn.decision_log import DECISIONS_TABLE, DecisionLog, JointRecord
from pravega_spark.txn.lifecycle import ASKED_BY_APPLICATION
from pravega_spark.txn.owed import owed_decisions, told_as_decided
from pravega_spark.txn.settlement import PositionParticipants, ReaderParticipant
from pravega_spark.txn.transaction import (
    Transaction,
    abort_part,
    carry_out_part,
    end_part,
    find_record,
)
from pravega_spark.txn.writer import (
    TransactionalWriter,
    begin_part,
    check_session,
    inherited_of,
    life_of,
    parse_limits,
)
from pravega_spark.values.checks import check_list, check_text, check_timestamp_us, shown
from pravega_spark.values.handles import ClosedByBlock, CommittedByBlock, NotPicklable
from pravega_spark.values.limits import DEFAULT_LEASE

_WITHOUT_PART = "its begin failed on {}, or the stream was deleted since"
_FINAL = (TransactionStatus.COMMITTED, TransactionStatus.ABORTED)


class JointTransaction(CommittedByBlock, NotPicklable):
    """Events for streams of a root that become visible together, or never; thread-safe.

    If it was begun with readers of groups, its commit acknowledges everything that they have handed
    out, in the same decision; after an abort they go back. Commit it in their thread.

    Each stream has a part, which is a transaction. ``commit`` prepares all parts, decides in the
    root's log of decisions, and carries the decision out in each stream and group. A process that
    dies on the way leaves nothing half done: before the decision its leases run out and everything
    is aborted, after it any process carries out the rest. A reader of one stream sees all events of
    its part at once; a reader of several may see one stream's part before another's, but none
    before the decision. Streams that two transactions have in common hold them in the same order.
    Made by ``JointWriter.begin_transaction``, or opened by its id with
    ``StreamManager.joint_transaction``.

    As a context manager it commits at the end of the block, and aborts if the block raised.
    """

    _NOT_PICKLABLE = "a JointTransaction cannot be pickled; pass its id, and open it by that."

    def __init__(
        self,
        decisions: DecisionLog,
        record: JointRecord,
        parts: Mapping[str, Transaction],
        runtime: Runtime,
        positions: PositionParticipants,
        readers: Sequence[ReaderParticipant] = (),
        *,
        check_session: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the parts by the names of their streams; makes no storage call.

        ``readers`` are those of the record, in the process that began the transaction with them;
        ``check_session`` raises WriterFenced if a newer writer of the writer's id is open.
        """
        self._check_session = check_session
        self._decisions = decisions
        self._record = record
        self._parts = dict(parts)
        self._positions, self._readers = positions, tuple(readers)
        self._each: Callable[..., list[Any]] = runtime.each
        self._status: TransactionStatus | None = None
        """The final status, once this handle knows it."""
        self._guard = ProcessGuard(self._name)
        self._lock = new_rlock()

    @property
    def id(self) -> str:
        """The id, with which another process opens the transaction; 24 hexadecimal digits."""
        for part in self._parts.values():
            _ = part.id  # from now on the leases are kept for the id, without this handle
        return self._record.token

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the streams, sorted."""
        return tuple(name for name, _ in self._record.participants)

    @property
    def part_ids(self) -> dict[str, str]:
        """The id of each stream's part, by stream: for the option ``transaction`` of Spark."""
        return {name: part.id for name, part in self._parts.items()}

    def write_event(self, stream: str, event: Any, routing_key: str | None = None) -> None:
        """Write one event to one of the streams; see :meth:`Transaction.write_event`."""
        self._part(stream).write_event(event, routing_key)

    def write_events(
        self, stream: str, events: Iterable[Any], routing_key: str | None = None
    ) -> None:
        """Write events to one of the streams; see :meth:`Transaction.write_events`."""
        self._part(stream).write_events(events, routing_key)

    def write_table(
        self,
        stream: str,
        table: Any,
        *,
        routing_key: str | None = None,
        event_time: str | None = None,
    ) -> None:
        """Write the rows of a table to one of the streams; see :meth:`Transaction.write_table`."""
        self._part(stream).write_table(table, routing_key=routing_key, event_time=event_time)

    def _part(self, stream: str) -> Transaction:
        self._guard.check()
        if self._status is TransactionStatus.ABORTED:
            raise self._ended()
        part = self._parts.get(stream)
        if part is None and stream in self.streams:
            raise self._failed(_WITHOUT_PART.format(stream))
        if part is None:
            raise InvalidInput(
                f"stream {shown(stream)} is not one of the streams of this transaction: "
                f"{', '.join(self.streams)}. Name all of them when the writer is created."
            )
        return part

    def flush(self) -> None:
        """Make the written events durable in the transaction. Raises TxnFailed if it has ended."""
        self._each(Transaction.flush, list(self._parts.values()))

    def ping(self) -> None:
        """Restart the leases of all parts, as the writer does in the background."""
        self._each(Transaction.ping, list(self._parts.values()))

    @property
    def status(self) -> TransactionStatus:
        """The present status, read from the storage until it is final.

        COMMITTING means that the commit is decided and some stream does not show its part yet,
        ABORTING that a stream has aborted its part, or has none: ``commit`` and ``abort`` then
        abort the others. While nothing is decided this costs one look at the decisions, and one at
        each stream, side by side.
        """
        self._guard.check()
        with self._lock:
            if self._status is not None:
                return self._status
            found = self._find_status()
            if found in _FINAL:
                self._end(found)
            return found

    @property
    def _done(self) -> bool:
        """Whether a call of this handle has ended it, or found it ended."""
        return self._status is not None

    def _end(self, status: TransactionStatus) -> None:
        """Untie the readers, and set the final status, after which nothing is left to do."""
        for reader in self._readers:
            reader.end(self._record.token, is_committed=status is TransactionStatus.COMMITTED)
        self._status = status

    def _find_status(self) -> TransactionStatus:
        """Return the status as stored; the parts are read after the decision."""
        record = self._decisions.find(self._record.token)
        if record is not None and record.order is None:
            is_lost = len(self._parts) < len(self.streams)
            is_lost = is_lost or any(self._each(_is_aborted, list(self._parts.values())))
            return TransactionStatus.ABORTING if is_lost else TransactionStatus.OPEN
        found = {_part_status(part) for part in self._parts.values()} - {None}
        if record is None:
            is_committed = TransactionStatus.COMMITTED in found
            return TransactionStatus.COMMITTED if is_committed else TransactionStatus.ABORTED
        is_done = found <= {TransactionStatus.COMMITTED} and not self._prepared_readers()
        return TransactionStatus.COMMITTED if is_done else TransactionStatus.COMMITTING

    def _prepared_readers(self) -> frozenset[tuple[str, str]]:
        return self._positions.prepared_readers(self._record.token, self._record.groups)

    def commit(self, timestamp: int | datetime | None = None) -> None:
        """Make the events of all streams visible; they are when this returns.

        ``timestamp``, in ms since 1970 or a datetime with a time zone, is stored with each part, as
        :meth:`Transaction.commit` stores it, and noted
        in each stream if the writer has an id. After an
        error call it again: if the commit was decided, that carries out the rest. A second commit
        does nothing. Raises TxnFailed if the transaction was aborted, or if a part can no longer be
        committed, which aborts all of it; WriterFenced instead, if a newer writer of the writer's
        id is open; CommitUnknown if the outcome is unknown.
        """
        timestamp_us = check_timestamp_us("a commit's timestamp", timestamp)
        token = self._record.token
        self._guard.check()
        with self._lock, span("commit joint transaction", DECISIONS_TABLE, transaction=token):
            if self._status is TransactionStatus.COMMITTED:
                return
            record = self._decide(timestamp_us)
            if record is None:
                if self._find_status() is not TransactionStatus.COMMITTED:
                    self._abort_parts()
                    self._end(TransactionStatus.ABORTED)
                    self._check_session()
                    raise self._ended()
            else:
                with told_as_decided(self._name):
                    self._carry_out(record)
            left_out = [error for part in self._parts.values() for error in _left_out(part)]
            self._end(TransactionStatus.COMMITTED)
            if left_out:
                raise left_out[0]

    def _decide(self, timestamp_us: int | None) -> JointRecord | None:
        """Prepare all parts and decide; None if there is no record of the transaction any more."""
        known = self._decisions.find(self._record.token)
        if known is None or known.order is not None:
            return known
        missing = set(self.streams) - set(self._parts)
        try:
            if missing:
                raise self._failed(_WITHOUT_PART.format(", ".join(sorted(missing))))
            self._check_prepared_elsewhere()
            prepare = [part.prepare for part in self._parts.values()]
            self._each(_call, [*prepare, *(reader.prepare for reader in self._readers)])
        except TxnFailed as error:
            known = self._decisions.abort(self._record.token, f"a part failed: {error}")
            if known is None and self._find_status() is not TransactionStatus.COMMITTED:
                self._abort_parts()
                self._end(TransactionStatus.ABORTED)
                self._check_session()
                raise
            return known
        failpoint("joint.prepared")
        with self._owed_if_it_fails():
            decided = self._decisions.commit(self._record.token, timestamp_us)
            failpoint("joint.decided")
        return decided

    @contextmanager
    def _owed_if_it_fails(self) -> Iterator[None]:
        """Leave to the background what a call has decided, or may have, and has not carried out."""
        try:
            yield
        except BaseException:
            owed_decisions(self._decisions).add(self._record.token, self._positions)
            raise

    def _check_prepared_elsewhere(self) -> None:
        """Raise IllegalState if positions of readers of another process are not prepared."""
        missing = set(self._record.readers) - {(r.group, r.reader_id) for r in self._readers}
        missing -= self._prepared_readers() if missing else set()
        if missing:
            names = ", ".join(f"{reader} of {group}" for group, reader in sorted(missing))
            raise IllegalState(
                f"{self._name} acknowledges events that {names} handed out, and only the process "
                "of that reader can prepare them. Commit it there, or abort it."
            )

    def _carry_out(self, record: JointRecord) -> None:
        token = record.token
        mine = {reader.group: partial(reader.carry_out, token) for reader in self._readers}
        other = [group for group in record.groups if group not in mine]
        calls = [
            partial(carry_out_part, part, self._decisions, record) for part in self._parts.values()
        ]
        calls += [partial(self._positions.carry_out, token, group) for group in other]
        with self._owed_if_it_fails():
            self._each(_call, [*calls, *mine.values()])
        failpoint("joint.carried-out")
        self._decisions.add_finished(record.token)

    def abort(self) -> None:
        """Discard the events of all streams. A second call does nothing.

        Raises TxnFailed if the commit was decided.
        """
        token = self._record.token
        self._guard.check()
        with self._lock, span("abort joint transaction", DECISIONS_TABLE, transaction=token):
            if self._status is TransactionStatus.ABORTED:
                return
            record = self._decisions.abort(self._record.token, ASKED_BY_APPLICATION)
            if record is None and self._find_status() is TransactionStatus.ABORTED:
                self._abort_parts()
                self._end(TransactionStatus.ABORTED)
                return
            raise TxnFailed(
                f"{self._name} was committed; that is final. Begin another.",
                transaction_id=self._record.token,
                status=self.status,
            )

    def _abort_parts(self) -> None:
        """Abort what is open of an aborted transaction; a sweep does what fails here."""

        def abort(part: Transaction) -> None:
            with suppress(PravegaSparkError):
                abort_part(part, "the joint transaction was aborted")
                find_record(part)

        self._each(abort, list(self._parts.values()))

    @property
    def _name(self) -> str:
        return f"joint transaction {self._record.token} of {', '.join(self.streams)}"

    def _failed(self, why: str) -> TxnFailed:
        return TxnFailed(
            f"{self._name} cannot be committed: {why}. Begin another.",
            transaction_id=self._record.token,
            status=TransactionStatus.ABORTED,
        )

    def _ended(self) -> TxnFailed:
        return TxnFailed(
            f"{self._name} was aborted; that is final. Begin another.",
            transaction_id=self._record.token,
            status=TransactionStatus.ABORTED,
        )

    def __repr__(self) -> str:
        """Show the id and the last known status; makes no storage call."""
        state = self._status.value if self._status else "not known to have ended"
        return f"<JointTransaction {self._record.token} of {', '.join(self.streams)}: {state}>"


def _call(function: Callable[[], object]) -> object:
    return function()


def _part_status(part: Transaction) -> TransactionStatus | None:
    """Return the status of a part; None if its life of the stream ended, which settled it."""
    try:
        return part.status
    except (NoSuchStream, StaleIdentity):
        return None


def _is_aborted(part: Transaction) -> bool:
    """Read whether an undecided part has ended; one storage call if nothing changed."""
    try:
        found = find_record(part)
    except (NoSuchStream, NoSuchTransaction, StaleIdentity):
        return True
    return isinstance(found, TransactionOutcome) and not found.committed


def _left_out(part: Transaction) -> list[TxnFailed]:
    """End the handle of a committed part; return the error if events of it were left out."""
    try:
        found = find_record(part)
    except (NoSuchStream, StaleIdentity):
        return []
    if isinstance(found, TransactionOutcome):
        try:
            end_part(part, found)
        except TxnFailed as error:
            return [error]
    return []


class JointWriter(ClosedByBlock, NotPicklable):
    """Begins transactions over several streams; thread-safe. Made by ``create_joint_writer``.

    With a writer id, what older writers of the id left in its streams has ended when it is open.
    """

    _NOT_PICKLABLE = "a JointWriter cannot be pickled; create it where it is used."

    def __init__(
        self,
        decisions: DecisionLog,
        writers: Mapping[str, TransactionalWriter],
        positions: PositionParticipants,
    ) -> None:
        """Join open writers, by the names of their streams; makes no storage call."""
        self._decisions, self._positions = decisions, positions
        self._writers = dict(writers)
        self._runtime = decisions.log.runtime

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the streams, sorted."""
        return tuple(sorted(self._writers))

    @property
    def writer_id(self) -> str | None:
        """The id that the user gave, the same in all streams, or None."""
        return next(iter(self._writers.values())).writer_id

    def begin_transaction(
        self,
        lease: str | float = DEFAULT_LEASE,
        *,
        max_execution: str | float | None = None,
        readers: Iterable[Any] = (),
    ) -> JointTransaction:
        """Begin a transaction over all streams: a commit in each, and one in the root's decisions.

        ``readers`` are readers of groups with ``acknowledge="transaction"``: the commit
        acknowledges everything that they have handed out since their last acknowledged positions,
        and after an abort they hand it out again. The other arguments are those of
        ``TransactionalWriter.begin_transaction``. Raises InvalidConfiguration; StreamSealed,
        StaleIdentity or NoSuchStream if a stream cannot take part; WriterFenced if a newer writer
        of the id is open in one of them; InvalidInput, IllegalState, ObjectClosed or
        ReinitializationRequired if a reader cannot.
        """
        tied = [self._participant(reader) for reader in check_list("readers", readers)]
        limits = parse_limits(lease, max_execution)
        lives = {name: life_of(writer) for name, writer in self._writers.items()}
        token = self._runtime.token()
        begun: dict[str, Transaction] = {}

        def begin(name: str) -> None:
            begun[name] = begin_part(self._writers[name], limits, token)

        try:
            for reader in tied:
                reader.begin(token)
            # First the record: a part whose transaction has none is aborted by the process that
            # finds it.
            pairs = [(reader.group, reader.reader_id) for reader in tied]
            record = self._decisions.begin(token, lives, limits[1], pairs)
            self._runtime.each(begin, list(self._writers))
        except BaseException:
            for reader in tied:
                reader.untie(token)
            with suppress(PravegaSparkError):
                self._decisions.abort(token, "its begin failed")
                for part in begun.values():
                    abort_part(part, "its begin failed")
            raise
        return JointTransaction(
            decisions=self._decisions,
            record=record,
            parts=begun,
            runtime=self._runtime,
            positions=self._positions,
            readers=tied,
            check_session=self._check_session,
        )

    def _check_session(self) -> None:
        """Raise WriterFenced if a newer writer of the id is open in one of the streams."""
        for writer in self._writers.values():
            with suppress(NoSuchStream, StaleIdentity):
                check_session(writer)

    def _participant(self, reader: Any) -> ReaderParticipant:
        """Return what a reader of this root does in a transaction. Raises InvalidInput."""
        found: ReaderParticipant | None = getattr(reader, "participant", None)
        if found is None or not hasattr(found, "reader_id"):
            raise InvalidInput(
                f"{shown(reader)} is not a reader of a group; pass what ReaderGroup.create_reader "
                "returned."
            )
        if found.url != self._decisions.store.url:
            raise InvalidInput(
                f"reader {found.reader_id} of {found.group} is of the root {found.url}, and the "
                f"transaction of {self._decisions.store.url}: one root decides a transaction."
            )
        return found

    def close(self) -> None:
        """Stop extending leases; open transactions expire unless another handle extends them.

        Carries out what this process has decided. A writer that has noted times leaves, in each
        stream as a transactional writer does.
        """
        owed_decisions(self._decisions).carry_out()
        for writer in self._writers.values():
            writer.close()
        with suppress(PravegaSparkError):
            self._decisions.remove_finished()


def open_joint_writer(
    decisions: DecisionLog,
    writers: Mapping[str, TransactionalWriter],
    positions: PositionParticipants,
) -> JointWriter:
    """Join open writers, and carry out in the groups what older sessions of the id decided.

    The writers have done so in their streams; other streams of such a transaction are not touched.
    """
    inherited = {record.token: record for one in writers.values() for record in inherited_of(one)}
    for record in inherited.values():
        for group in record.groups:
            positions.carry_out(record.token, group)
        if {name for name, _ in record.participants} <= writers.keys():
            decisions.add_finished(record.token)
    return JointWriter(decisions, writers, positions)


def find_joint_record(decisions: DecisionLog, transaction_id: str) -> JointRecord:
    """Return the record of a transaction by its id. Raises NoSuchTransaction."""
    check_text("a joint transaction's id", transaction_id)
    record = decisions.find(transaction_id)
    if record is None:
        raise NoSuchTransaction(
            f"the root has no joint transaction {shown(transaction_id)}: it was aborted, or each "
            "of its streams holds its outcome, which Stream.completed_transactions lists under an "
            "id that ends so.",
            transaction_id=transaction_id,
        )
    return record


def open_joint_transaction(
    decisions: DecisionLog,
    record: JointRecord,
    streams: Sequence[StreamLog],
    positions: PositionParticipants,
    *,
    serializer: Serializer | None = None,
) -> JointTransaction:
    """Open a transaction by its record, in any process; ``streams`` are those of the record."""
    parts: dict[str, Transaction] = {}
    for stream in streams:
        name = settlement.find_part(stream, record)
        if name is not None:
            life = record.life_of(stream.name)
            parts[stream.name] = Transaction(stream, name, serializer=serializer, life=life)
    return JointTransaction(decisions, record, parts, decisions.log.runtime, positions)
