"""Lists the transactions over several streams of a root, for users."""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import NoSuchStream, StaleIdentity
from pravega_spark.model import TransactionStatus
from pravega_spark.transactions import settlement
from pravega_spark.transactions.decision_log import DecisionLog, JointRecord
from pravega_spark.transactions.position_participants import PositionParticipants


@dataclass(frozen=True, slots=True)
class JointTransactionInfo:
    """A transaction over several streams, from its begin until all of them hold its outcome.

    ``groups`` are the reader groups whose positions it acknowledges, ``pending`` the streams and
    groups that do not hold the outcome yet. ``order`` is its place among the decisions to commit;
    None while it is undecided. It is aborted if it is undecided for ``limit_seconds``.
    """

    transaction_id: str
    status: TransactionStatus
    streams: tuple[str, ...]
    groups: tuple[str, ...]
    pending: tuple[str, ...]
    created_ms: int
    age_seconds: float
    limit_seconds: float
    order: int | None


def joint_transactions(
    decisions: DecisionLog, positions: PositionParticipants
) -> list[JointTransactionInfo]:
    """Return the joint transactions whose outcome is not everywhere yet, the oldest first."""
    records = decisions.read()
    if not records:
        return []
    ages = VersionAges.read(decisions.log, keep=False)
    found = []
    for token, record in sorted(records.items(), key=lambda item: item[1].version):
        created_ms = ages.written_ms(record.version)
        streams = tuple(name for name, _ in record.participants)
        pending = [name for name in streams if _is_pending(decisions.store, record, name)]
        prepared = positions.prepared_readers(token, record.groups)
        pending += sorted({group for group, _ in prepared})
        found.append(
            JointTransactionInfo(
                token,
                _status(record, pending),
                streams,
                tuple(record.groups),
                tuple(pending),
                created_ms,
                max(0.0, (ages.now_ms - created_ms) / 1_000),
                record.limit_ms / 1_000,
                record.order,
            )
        )
    return found


def _is_pending(store: Store, record: JointRecord, name: str) -> bool:
    """Return whether a stream's part is open: its log does not hold the outcome yet."""
    try:
        view = open_stream(store, name).view(life=record.life_of(name))
    except (NoSuchStream, StaleIdentity):  # the end of the life settled the part
        return False
    return settlement.part_of(view, record.token) is not None


def _status(record: JointRecord, pending: list[str]) -> TransactionStatus:
    if record.order is None:
        return TransactionStatus.OPEN
    return TransactionStatus.COMMITTING if pending else TransactionStatus.COMMITTED
