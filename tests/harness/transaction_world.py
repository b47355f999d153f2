"""A stream with transactions and several processes, and helpers that inspect it."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.identity import open_session
from pravega_spark.txn import leases, lifecycle, sweeper
from pravega_spark.txn.manifests import Manifest, ManifestKind, Manifests, transaction_folder
from pravega_spark.txn.transaction import Transaction
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import all_events, make_stream, reopen
from tests.harness.spy_store import Spy

LEASE_MS = 60_000


class World:
    """A stream on a store that records its calls and fails by rules."""

    def __init__(self, segments: int = 2) -> None:
        self.runtime = FakeRuntime()
        self.store = Spy(memory(self.runtime))
        self.stream = make_stream(self.store, self.runtime, segments)

    def process(self) -> StreamLog:
        """Return the stream of another process, on storage without faults."""
        return reopen(self.stream, self.store.inner)

    def run_out(self) -> None:
        """Let the leases of all transactions run out, also the last ones that a judge begins."""
        self.runtime.sleep(LEASE_MS / 1_000 + 1)
        stream = self.process()
        assert not leases.expired_transactions(stream, stream.view(), 10**12)
        self.runtime.sleep(LEASE_MS / 1_000 + 1)

    def events(self) -> list[bytes]:
        return [event for _, event in all_events(self.process())]

    def commits(self, operation: str) -> list[Commit]:
        stream = self.process()
        span = stream.log.reader.span(-1, stream.view().version)
        return [commit for commit in span if commit.operation == operation]

    def folder(self, txn: Transaction) -> list[str]:
        """Return the names of the objects in a transaction's folder."""
        base = transaction_folder(self.stream, txn.id)
        return [entry.key.removeprefix(f"{base}/") for entry in self.store.inner.list(base)]

    def chunks(self, txn: Transaction) -> int:
        """Return the number of chunks in a transaction's data folder."""
        return len(self.store.inner.list(f"{self.stream.path}/data/t-{txn.id}"))

    def calls(self, action: Callable[[], object]) -> list[tuple[str, str]]:
        """Return the storage calls of an action, each with the kind of its object."""
        self.store.calls.clear()
        action()
        return [(operation, kind_of(key)) for operation, key in self.store.calls]


def kind_of(key: str) -> str:
    """Return the kind of object that a key names."""
    parts = {"/_delta_log": "log", "/data/": "chunk", "/transactions/": "manifest"}
    return next((kind for part, kind in parts.items() if part in key), key)


def begun(
    stream: StreamLog,
    *,
    lease_ms: int = LEASE_MS,
    execution_ms: int = 100 * LEASE_MS,
    writer: WriterRecord | None = None,
    **options: Any,
) -> Transaction:
    """Begin a transaction, without a thread that keeps it alive."""
    life = stream.view().life
    opened = lifecycle.begin(
        stream, life, lease_ms=lease_ms, execution_ms=execution_ms, writer=writer
    )
    made = Transaction(stream, opened.transaction_id, **options)
    made._manifests.is_shared = False  # as a writer does
    return made


def written(stream: StreamLog, events: Iterable[tuple[str | None, bytes]]) -> Transaction:
    """Begin a transaction and flush events into it."""
    txn = begun(stream)
    for key, event in events:
        txn.write_event(event, key)
    txn.flush()
    return txn


def kill_commit(runtime: FakeRuntime, commit: Callable[[], None], point: str) -> None:
    """Commit in a process that dies at a failpoint: nothing that waits in it runs any more."""
    waiting = list(runtime._later)
    with at_failpoint(point, kill), pytest.raises(Killed):
        commit()
    runtime._later[:] = waiting


def killed_after_deciding(store: Store, event: bytes, name: str = "s/t") -> None:
    """Leave a transaction of a very short lease whose process died after it decided a commit."""
    runtime = FakeRuntime()
    txn = begun(StreamLog(store, name, runtime), lease_ms=100)
    txn.write_event(event)
    kill_commit(runtime, txn.commit, "txn.decided")


def session(stream: StreamLog, writer_id: str = "w") -> WriterRecord:
    return open_session(stream, stream.view().life, writer_id)


def let_expire(lease: Path) -> None:
    """Date a lease on a disk as one that ran out a minute ago, and that nobody may begin again."""
    lease.write_text('{"last":2}\n')
    os.utime(lease, (time.time() - 660,) * 2)


def decide_abort(stream: StreamLog, transaction_id: str) -> None:
    """Put the closing manifest of an abort, without the commit."""
    manifests = Manifests(stream, transaction_id)
    manifests.read()
    lifecycle.put_closing_manifest(
        manifests, Manifest(ManifestKind.ABORTING, reason="decided elsewhere")
    )


def drive_to(
    state: TransactionStatus, stream: StreamLog, txn_id: str, *, delete_remains: bool
) -> None:
    """Bring a transaction to a status, as another process."""
    other = reopen(stream)
    handle = Transaction(other, txn_id)
    if state is TransactionStatus.PREPARED:
        handle.prepare()
    elif state is TransactionStatus.COMMITTING:
        handle.commit(wait=False)
    elif state is TransactionStatus.COMMITTED:
        handle.commit()
    elif state is TransactionStatus.ABORTING:
        decide_abort(other, txn_id)
    elif state is TransactionStatus.ABORTED:
        handle.abort()
    if delete_remains:
        sweeper.delete_remains(other)


def recorded_transactions(commit: Commit) -> list[dict[str, Any]]:
    """Return what a commit records of each transaction."""
    recorded: list[dict[str, Any]] = json.loads(commit.info["operationParameters"]["transactions"])
    return recorded


def results_of_child(
    child: Callable[[Any], None], count: int, lock: AbstractContextManager[Any]
) -> Any:
    """Return what a forked child puts into its queue while a thread of the parent holds a lock."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(300)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(120)
        process = context.Process(target=child, args=(results,), daemon=True)
        process.start()
        found = [results.get(timeout=120) for _ in range(count)]
        process.join()
        return found
    finally:
        release.set()
        holder.join()
