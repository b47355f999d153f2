"""``pravega-spark txn``: transactions of streams and of the root."""

from __future__ import annotations

import json

import pytest

from pravega_spark.cli.exit_status import FAILED, MISUSED
from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.manager import StreamManager
from pravega_spark.txn.writer import TransactionalWriter
from tests.unit.cli.conftest import CommandLine

COMMITTED, ABORTED = TransactionStatus.COMMITTED, TransactionStatus.ABORTED


@pytest.fixture
def writer(manager: StreamManager) -> TransactionalWriter:
    """A writer of transactions of the stream s/a."""
    for name in ("s/a", "other/b"):
        manager.create_stream(name)
    return manager.create_transactional_writer("s/a", "ingest-1")


def begun(writer: TransactionalWriter, *events: bytes) -> str:
    """Begin a transaction with flushed events; return its id."""
    transaction = writer.begin_transaction()
    for event in events:
        transaction.write_event(event, "k")
    transaction.flush()
    return transaction.id


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_open_transactions_are_listed_and_completed_ones_with_all(
    run: CommandLine, manager: StreamManager, writer: TransactionalWriter
) -> None:
    assert run("txn", "ls", "--output", "json")[1] == "[]\n"
    first, second = begun(writer, b"x", b"yz"), begun(writer)
    manager.transaction("s/a", second).abort()
    heading, row = rows(run("txn", "ls", "s/a")[1])
    assert heading == [
        *("TRANSACTION", "STATUS", "STREAMS", "WRITER"),
        *("AGE", "EVENTS", "SIZE", "JOINT"),
    ]
    assert (row[:4], row[6:]) == ([first, "OPEN", "s/a", "ingest-1"], ["2", "3", "B", "-"])
    every = run("txn", "ls", "-a", "-q")[1]
    assert every.splitlines() == [first, second]
    for where in ("s", "s/a"):
        found = json.loads(run("txn", "ls", where, "-a", "--output=json")[1])
        assert [(r["transaction"], r["status"]) for r in found] == [
            (first, "OPEN"),
            (second, "ABORTED"),
        ]
        assert found[1]["reason"] == "the application asked for it"
    assert run("txn", "ls", "other", "-q")[1] == ""
    for status, wrong in ((FAILED, "s/none"), (FAILED, "none"), (MISUSED, "a/b/c")):
        assert run("txn", "ls", wrong)[0] == status


def test_a_transaction_is_described_by_its_id_alone(
    run: CommandLine, writer: TransactionalWriter
) -> None:
    one = begun(writer, b"x")
    shown = dict(line.split(maxsplit=1) for line in run("txn", "describe", one)[1].splitlines())
    assert (shown["TRANSACTION"], shown["STREAMS"], shown["EVENTS"]) == (one, "s/a", "1")
    assert {"LEASE", "LIMIT", "CREATED"} <= shown.keys()
    assert "ENDED" not in shown
    found = json.loads(run("txn", "describe", one, "--stream", "s/a", "--output=json")[1])
    assert (found["lease_seconds"], found["ended_ms"]) == (writer_lease(writer, one), None)
    for stream in ((), ("--stream", "other/b")):
        status, _, err = run("txn", "describe", "0" * 32, *stream)
        assert (status, "NoSuchTransaction" in err, err.count("\n")) == (FAILED, True, 1)
    assert run("txn", "describe", one, "--stream", "other/b")[0] == FAILED


def writer_lease(writer: TransactionalWriter, transaction: str) -> float:
    return writer.get_transaction(transaction).lease_ms / 1_000


def test_a_commit_makes_the_flushed_events_visible(
    run: CommandLine, manager: StreamManager, writer: TransactionalWriter
) -> None:
    one = begun(writer, b"x", b"y")
    assert list(manager.read("s/a")) == []
    assert run("txn", "commit", one)[:2] == (0, f"Committed {one} in s/a.\n")
    assert [event.data for event in manager.read("s/a")] == [b"x", b"y"]
    assert run("txn", "commit", one)[0] == 0, "a repeated commit does nothing"
    status, _, err = run("txn", "abort", one)
    assert (status, "TxnFailed" in err) == (FAILED, True)
    assert len(list(manager.read("s/a"))) == 2


def test_an_abort_needs_yes_and_discards_the_events(
    run: CommandLine, manager: StreamManager, writer: TransactionalWriter
) -> None:
    one = begun(writer, b"x")
    status, _, err = run("txn", "abort", one)
    assert (status, f"Abort {one} of s/a with 1 event?" in err) == (MISUSED, True)
    assert manager.transaction("s/a", one).status is TransactionStatus.OPEN
    status, out, _ = run("txn", "abort", one, "--yes", "--output", "json")
    assert json.loads(out) == {"transaction": one, "streams": ["s/a"], "status": "ABORTED"}
    assert manager.transaction("s/a", one).status is ABORTED
    assert run("txn", "abort", one)[0] == 0, "a repeated abort does nothing"
    assert run("txn", "commit", one)[0] == FAILED
    assert list(manager.read("s/a")) == []


def test_joint_transactions_of_the_root_are_listed_and_ended(
    run: CommandLine, manager: StreamManager, writer: TransactionalWriter
) -> None:
    joint = manager.create_joint_writer(["s/a", "other/b"])
    kept, dropped = joint.begin_transaction(), joint.begin_transaction()
    for one in (kept, dropped):
        one.write_event("s/a", b"x", "k")
        one.write_event("other/b", b"y", "k")
        one.flush()
    found = json.loads(run("txn", "ls", "--output", "json")[1])
    assert [r["transaction"] for r in found if len(r["streams"]) == 2] == [kept.id, dropped.id]
    parts = [r for r in found if r["joint"] == kept.id]
    assert sorted(r["streams"][0] for r in parts) == ["other/b", "s/a"]
    shown = run("txn", "describe", kept.id)[1]
    assert "PENDING      other/b,s/a" in shown
    status, _, err = run("txn", "commit", parts[0]["transaction"])
    assert (status, kept.id in err) == (FAILED, True), "a part names its joint transaction"
    assert run("txn", "commit", kept.id)[0] == 0
    assert run("txn", "abort", dropped.id, "-y")[:2] == (
        0,
        f"Aborted {dropped.id} of other/b,s/a.\n",
    )
    assert [[event.data for event in manager.read(name)] for name in ("s/a", "other/b")] == [
        [b"x"],
        [b"y"],
    ]
    assert [kept.status, dropped.status] == [COMMITTED, ABORTED]
