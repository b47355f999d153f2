"""Transactions of streams, and of the root, as records of the command line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.errors import Damaged, NoSuchStream, NoSuchTransaction
from pravega_spark.reader_groups.position_settlement import GroupPositions
from pravega_spark.transactions import transaction_leases, transaction_listing
from pravega_spark.transactions.decision_log import open_decisions
from pravega_spark.transactions.joint_listing import joint_transactions
from pravega_spark.transactions.transaction_lifecycle import epoch_of

if TYPE_CHECKING:
    from pravega_spark.manager import StreamManager

Record = dict[str, Any]


def named_streams(manager: StreamManager, names: Iterable[str]) -> list[str]:
    """Return the streams of names, each of a stream or a scope; without any, all of the root."""

    def found(name: str) -> list[str]:
        return [name] if "/" in name else manager.list_streams(name)

    return list(dict.fromkeys(manager._in_scopes(found, list(names) or None)))


def stream_records(store: Store, name: str, *, completed: bool) -> Iterator[Record]:
    """Yield the open transactions of a stream, oldest first, and the completed ones if asked."""
    stream = open_stream(store, name)
    view = begun_view(stream)
    now_ms = stream.now_ms()
    extended_ms = transaction_leases.extended_ms(stream, view) if view.transactions else {}
    found = transaction_listing.open_transactions(stream, view) if view.transactions else []
    found += transaction_listing.completed_transactions(view) if completed else []
    for info in found:
        opened = view.transactions.get(info.transaction_id)
        extended = extended_ms.get(info.transaction_id)
        yield {
            "transaction": info.transaction_id,
            "status": info.status.value,
            "streams": [name],
            "writer": info.writer_id,
            "epoch": epoch_of(info.transaction_id),
            "joint": opened.token if opened is not None and opened.is_joint else None,
            "created_ms": info.created_ms,
            "age_seconds": _seconds(info.ended_ms or now_ms, info.created_ms),
            "lease_seconds": None if opened is None else opened.lease_ms / 1_000,
            "lease_age_seconds": None if extended is None else _seconds(now_ms, extended),
            "limit_seconds": None if opened is None else opened.limit_ms / 1_000,
            "events": info.events,
            "size_bytes": info.size_bytes,
            "ended_ms": info.ended_ms or None,
            "version": info.version or None,
            "reason": info.reason,
        }


def joint_records(store: Store) -> list[Record]:
    """Return the joint transactions of the root whose outcome is not in all streams yet."""
    return [
        {
            "transaction": info.transaction_id,
            "status": info.status.value,
            "streams": list(info.streams),
            "groups": list(info.groups),
            "pending": list(info.pending),
            "created_ms": info.created_ms,
            "age_seconds": info.age_seconds,
            "limit_seconds": info.limit_seconds,
            "decision": info.order,
        }
        for info in joint_transactions(open_decisions(store), GroupPositions(store))
    ]


def find_transaction(
    manager: StreamManager, store: Store, transaction: str, streams: Iterable[str]
) -> Record:
    """Return a transaction by its id, of the root or of one of the streams.

    Raises NoSuchTransaction.
    """
    given = list(streams)
    for record in [] if given else joint_records(store):
        if record["transaction"] == transaction:
            return record
    damage: Damaged | None = None
    for name in given or named_streams(manager, ()):
        with contextlib.suppress(*(() if given else (NoSuchStream,))):
            try:
                found = list(stream_records(store, name, completed=True))
            except Damaged as error:
                damage = damage or error
                continue
            for record in found:
                if record["transaction"] == transaction:
                    return record
    if damage is not None:  # it may be there
        raise damage
    where = ", ".join(given) if given else "the root, and no stream of it,"
    raise NoSuchTransaction(
        f"{where} has no transaction {transaction!r}: its outcome is no longer kept, or there was "
        "none. `pravega-spark txn ls -a` lists them.",
        transaction_id=transaction,
    )


def _seconds(later_ms: int, earlier_ms: int) -> float:
    return max(0.0, (later_ms - earlier_ms) / 1_000)
