"""``pravega-spark txn``: list, describe, commit and abort transactions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import click

from pravega_spark.cli.lazy_commands import Group
from pravega_spark.cli.many_names import look_at_each
from pravega_spark.cli.output import (
    TableColumn,
    confirm,
    count,
    duration,
    examples,
    moment,
    names,
    output_option,
    show_done,
    show_record,
    show_records,
    size,
    yes_option,
)
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import Damaged, NoSuchStream, NoSuchTransaction
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.reader_groups.settlement import GroupPositions
from pravega_spark.txn import leases, lifecycle
from pravega_spark.txn.decision_log import open_decisions
from pravega_spark.txn.joint_sweep import joint_transactions
from pravega_spark.txn.lifecycle import epoch_of
from pravega_spark.values.units import count_text

Record = dict[str, Any]


def named_streams(manager: StreamManager, names: Iterable[str]) -> list[str]:
    """Return the streams of names, each of a stream or a scope; without any, all of the root."""

    def found(name: str) -> list[str]:
        return [name] if "/" in name else manager.list_streams(name)

    return list(dict.fromkeys(root_of(manager).in_scopes(found, list(names) or None)))


def stream_records(store: Store, name: str, *, completed: bool) -> Iterator[Record]:
    """Yield the open transactions of a stream, oldest first, and the completed ones if asked."""
    stream = open_stream(store, name)
    view = begun_view(stream)
    now_ms = stream.now_ms()
    extended_ms = leases.extended_ms(stream, view) if view.transactions else {}
    found = lifecycle.open_transactions(stream, view) if view.transactions else []
    found += lifecycle.completed_transactions(view) if completed else []
    for info in found:
        opened = view.transactions.get(info.transaction_id)
        extended = extended_ms.get(info.transaction_id)
        yield {
            "transaction": info.transaction_id,
            "status": info.status.value,
            "streams": [name],
            "writer": info.writer_id,
            "epoch": epoch_of(info.transaction_id),
            "joint": opened.token if opened is not None and opened.is_part else None,
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


_COLUMNS = (
    TableColumn("TRANSACTION", "transaction"),
    TableColumn("STATUS", "status"),
    TableColumn("STREAMS", "streams", names),
    TableColumn("WRITER", "writer"),
    TableColumn("AGE", "age_seconds", duration),
    TableColumn("EVENTS", "events", count),
    TableColumn("SIZE", "size_bytes", size),
    TableColumn("JOINT", "joint"),
)
_DETAILS = (
    *_COLUMNS,
    TableColumn("EPOCH", "epoch"),
    TableColumn("CREATED", "created_ms", moment),
    TableColumn("LEASE", "lease_seconds", duration),
    TableColumn("LEASE-AGE", "lease_age_seconds", duration),
    TableColumn("LIMIT", "limit_seconds", duration),
    TableColumn("GROUPS", "groups", names),
    TableColumn("PENDING", "pending", names),
    TableColumn("DECISION", "decision"),
    TableColumn("ENDED", "ended_ms", moment),
    TableColumn("VERSION", "version"),
    TableColumn("REASON", "reason"),
)
_FINAL = (TransactionStatus.COMMITTED.value, TransactionStatus.ABORTED.value)
_stream_option = click.option(
    "--stream", "streams", multiple=True, metavar="STREAM", help="Look only in this stream."
)


@click.group("txn", cls=Group)
def txn() -> None:
    """Transactions of streams, and joint ones over several streams of the root."""


@txn.command("ls", epilog=examples("txn ls", "txn ls nyc/flights -a"))
@click.argument("where", nargs=-1, metavar="[STREAM|SCOPE]...")
@click.option("-a", "--all", "completed", is_flag=True, help="Also completed ones.")
@click.option("-q", "--quiet", is_flag=True, help="Ids only.")
@root_option
@output_option
def list_transactions(
    where: Sequence[str], completed: bool, quiet: bool, root: str | None, output: str
) -> None:
    """List the transactions without an outcome of streams, or of the root, joint ones first.

    The age of a completed one is how long it was open. JOINT is the transaction over several
    streams of which it is a part.
    """
    manager, store = open_root(root)
    joint = [] if where else joint_records(store)

    def look(name: str) -> list[Record]:
        with contextlib.suppress(*(() if name in where else (NoSuchStream,))):
            return list(stream_records(store, name, completed=completed))
        return []  # deleted since it was listed

    with look_at_each(look, named_streams(manager, where), "streams") as found:
        records = [*joint, *chain.from_iterable(found)]
        rows = [{**dict.fromkeys(c.key for c in _COLUMNS), **record} for record in records]
        show_records(rows, _COLUMNS, output, quiet=quiet)


@txn.command(epilog=examples("txn describe 000000012c4f... --stream nyc/flights"))
@click.argument("transaction")
@_stream_option
@root_option
@output_option
def describe(transaction: str, streams: Sequence[str], root: str | None, output: str) -> None:
    """Show a TRANSACTION by its id, of a stream or joint, open or completed."""
    manager, store = open_root(root)
    record = find_transaction(manager, store, transaction, streams)
    columns = [column for column in _DETAILS if record.get(column.key) not in (None, [])]
    show_record(record, columns, output)


@txn.command(epilog=examples("txn commit 000000012c4f... --stream nyc/flights"))
@click.argument("transaction")
@_stream_option
@root_option
@output_option
def commit(transaction: str, streams: Sequence[str], root: str | None, output: str) -> None:
    """Make the flushed events of an open TRANSACTION visible.

    For a prepared transaction whose coordinator is gone. A joint one commits in all its streams.
    """
    manager, store = open_root(root)
    record = find_transaction(manager, store, transaction, streams)
    _end(manager, record, TransactionStatus.COMMITTED)
    done = {"transaction": transaction, "streams": record["streams"], "status": "COMMITTED"}
    show_done(done, f"Committed {transaction} in {names(record['streams'])}.", output)


@txn.command(epilog=examples("txn abort 000000012c4f... --yes"))
@click.argument("transaction")
@_stream_option
@yes_option
@root_option
@output_option
def abort(
    transaction: str, streams: Sequence[str], yes: bool, root: str | None, output: str
) -> None:
    """Discard the events of an open TRANSACTION, in all streams of a joint one."""
    manager, store = open_root(root)
    record = find_transaction(manager, store, transaction, streams)
    events = f" with {count_text(record['events'], 'event')}" if record.get("events") else ""
    where = names(record["streams"])
    if record["status"] not in _FINAL:
        confirm(f"Abort {transaction} of {where}{events}?", yes=yes)
    _end(manager, record, TransactionStatus.ABORTED)
    done = {"transaction": transaction, "streams": record["streams"], "status": "ABORTED"}
    show_done(done, f"Aborted {transaction} of {where}.", output)


def _end(manager: StreamManager, record: Mapping[str, Any], to: TransactionStatus) -> None:
    """Commit or abort; does nothing if that is the outcome already."""
    if record["status"] == to.value:
        return
    if "pending" in record:
        joint = manager.joint_transaction(record["transaction"])
        change = joint.commit if to is TransactionStatus.COMMITTED else joint.abort
    else:
        single = manager.transaction(record["streams"][0], record["transaction"])
        change = single.commit if to is TransactionStatus.COMMITTED else single.abort
    change()
