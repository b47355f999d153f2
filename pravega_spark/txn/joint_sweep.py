"""Lists and sweeps the root's joint transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.log.clock import ClockReading
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import NoSuchStream, PravegaSparkError, StaleIdentity
from pravega_spark.txn import settlement
from pravega_spark.txn.decision_log import DecisionLog, JointRecord
from pravega_spark.txn.settlement import PositionParticipants
from pravega_spark.values.limits import MAX_LEASE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
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
                transaction_id=token,
                status=_status(record, pending),
                streams=streams,
                groups=tuple(record.groups),
                pending=tuple(pending),
                created_ms=created_ms,
                age_seconds=max(0.0, (ages.now_ms - created_ms) / 1_000),
                limit_seconds=record.limit_ms / 1_000,
                order=record.order,
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


logger = own_logger(__name__)


def sweep_joint_transactions(
    decisions: DecisionLog,
    open_stream: Callable[[str], StreamLog],
    now: ClockReading,
    positions: PositionParticipants,
) -> int:
    """Settle what dead processes left of joint transactions; return how many records went.

    A decided one is carried out in each of its streams and reader groups. An undecided one is
    aborted when it is older than its maximum execution time and the longest lease together, by the
    storage's clock; until then the leases of its parts decide. A root without joint transactions
    costs one call.
    """
    records = decisions.read()
    if not records:
        return 0
    ages = VersionAges(decisions.log, now)
    for record in sorted(records.values(), key=lambda r: (r.order is None, r.order or r.version)):
        if record.order is not None:
            _finish(decisions, record, open_stream, positions)
        elif ages.now_ms - ages.written_ms(record.version) > record.limit_ms + MAX_LEASE_MS:
            decisions.abort(record.token, "it was not decided in time")
    decisions.remove_finished()
    return len(records.keys() - decisions.read().keys())


OnFailure = Callable[[JointRecord, PravegaSparkError], object]
"""Takes a decision that a stream or a group could not carry out, and why."""


def carry_out_decided(
    decisions: DecisionLog,
    open_stream: Callable[[str], StreamLog],
    positions: PositionParticipants,
    failed: OnFailure | None = None,
) -> None:
    """Carry out what is decided, in order; a root without joint transactions costs one call.

    For a copy of the root, which cannot ask later what was decided. ``failed`` takes what a stream
    or a group raises that cannot be changed or read, and the others go on; without it that is
    raised.
    """
    decisions.read()
    for record in decisions.decided():
        for step in _steps(decisions, record, open_stream, positions):
            try:
                step()
            except PravegaSparkError as error:
                if failed is None:
                    raise
                failed(record, error)


def _finish(
    decisions: DecisionLog,
    record: JointRecord,
    open_stream: Callable[[str], StreamLog],
    positions: PositionParticipants,
) -> None:
    """Carry a decision out everywhere; one that fails waits for the next sweep."""
    try:
        carry_out_everywhere(decisions, record, open_stream, positions)
    except PravegaSparkError as error:
        logger.warning(
            "could not carry out joint transaction %s: %s",
            record.token,
            error,
            extra=log_fields("commit transaction", transaction=record.token),
        )


def carry_out_everywhere(
    decisions: DecisionLog,
    record: JointRecord,
    open_stream: Callable[[str], StreamLog],
    positions: PositionParticipants,
) -> None:
    """Carry a decision out in its streams and groups, so that its record can go; or raise."""
    for step in _steps(decisions, record, open_stream, positions):
        step()
    decisions.add_finished(record.token)


def _steps(
    decisions: DecisionLog,
    record: JointRecord,
    open_stream: Callable[[str], StreamLog],
    positions: PositionParticipants,
) -> Iterator[Callable[[], object]]:
    """Yield what carries a decision out in each of its streams, then in each of its groups."""
    for name, _ in record.participants:
        yield partial(_carry_out_part, open_stream, name, decisions, record)
    for group in record.groups:
        yield partial(positions.carry_out, record.token, group)


def _carry_out_part(
    open_stream: Callable[[str], StreamLog], name: str, decisions: DecisionLog, record: JointRecord
) -> None:
    settlement.carry_out(open_stream(name), decisions, record)
