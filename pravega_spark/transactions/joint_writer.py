"""JointWriter: begins transactions over several streams of one root."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pravega_spark.arguments import check_list, check_text, shown
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.event_encoder import Serializer
from pravega_spark.errors import (
    InvalidInput,
    NoSuchStream,
    NoSuchTransaction,
    PravegaSparkError,
    StaleIdentity,
)
from pravega_spark.handles import ClosedByBlock, NotPicklable
from pravega_spark.limits import DEFAULT_LEASE
from pravega_spark.transactions import settlement
from pravega_spark.transactions.decision_log import DecisionLog, JointRecord
from pravega_spark.transactions.joint_transaction import JointTransaction
from pravega_spark.transactions.position_participants import (
    PositionParticipants,
    ReaderParticipant,
)
from pravega_spark.transactions.transaction import Transaction
from pravega_spark.transactions.transactional_writer import TransactionalWriter, parse_limits


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
        """The id of the user's own, the same in all streams, or None."""
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
        for writer in self._writers.values():
            writer._check_usable()
        token = self._runtime.token()
        lives = {name: writer._life for name, writer in self._writers.items()}
        begun: dict[str, Transaction] = {}

        def begin(name: str) -> None:
            begun[name] = self._writers[name]._begin(*limits, token)

        try:
            for reader in tied:
                reader.begin(token)
            # First the record: a part whose transaction has none is aborted by whoever finds it.
            pairs = [(reader.group, reader.reader_id) for reader in tied]
            record = self._decisions.begin(token, lives, limits[1], pairs)
            self._runtime.each(begin, list(self._writers))
        except BaseException:
            for reader in tied:
                reader.untie(token)
            with suppress(PravegaSparkError):
                self._decisions.abort(token, "its begin failed")
                for part in begun.values():
                    settlement.abort_part(part._stream, part._id, "its begin failed")
            raise
        return JointTransaction(
            self._decisions,
            record,
            begun,
            self._runtime,
            self._positions,
            tied,
            check_session=self._check_session,
        )

    def _check_session(self) -> None:
        """Raise WriterFenced if a newer writer of the id is open in one of the streams."""
        for writer in self._writers.values():
            with suppress(NoSuchStream, StaleIdentity):
                writer._check_session()

    def _participant(self, reader: Any) -> ReaderParticipant:
        """Return what a reader of this root does in a transaction. Raises InvalidInput."""
        found: ReaderParticipant | None = getattr(reader, "_transaction", None)
        if found is None or not hasattr(found, "reader_id"):
            raise InvalidInput(
                f"{shown(reader)} is no reader of a group; pass what ReaderGroup.create_reader "
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

        A writer that has noted times leaves, in each stream as a transactional writer does.
        """
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
    inherited = {record.token: record for one in writers.values() for record in one._inherited}
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
