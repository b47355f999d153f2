"""Transaction: the handle of one transaction, in the process that began it or in another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

import pyarrow as pa

from pravega_spark.config import WRITER_BATCH_BYTES, WRITER_BATCH_EVENTS
from pravega_spark.engine.batches import Routed, stage_routed
from pravega_spark.engine.chunk import StagedChunk, encode_events
from pravega_spark.engine.crashpoints import crash_point
from pravega_spark.engine.encoding import Encoder, Serializer
from pravega_spark.engine.records import OpenTransaction, Outcome
from pravega_spark.engine.routing import Router
from pravega_spark.engine.runtime import ProcessGuard
from pravega_spark.engine.stream import Stream
from pravega_spark.errors import InvalidInput, PingFailed, PravegaSparkError, TxnFailed
from pravega_spark.model import TransactionStatus
from pravega_spark.txn import controller, leases
from pravega_spark.txn.manifests import Kind, Manifest, Manifests, chunk_folder

_FINAL = (TransactionStatus.COMMITTED, TransactionStatus.ABORTED)


class Transaction:
    """Events that become visible together, in every segment, or never; thread-safe.

    ``with`` commits at the end, and aborts if the block raises. Any number of processes may write
    into one transaction by its ``id``; each flushes what it wrote before the commit. Events are
    routed by the epoch in which the transaction began, whatever scales come in between, and those
    without a key stay together in one segment (both as in Pravega).
    """

    def __init__(
        self,
        stream: Stream,
        transaction_id: str,
        *,
        serializer: Serializer | None = None,
        on_end: Callable[[Transaction], object] = lambda transaction: None,
    ) -> None:
        """Take up a transaction by its id; raise NoSuchTransaction if the stream knows none."""
        self._stream = stream
        view = stream.view(refresh=stream.log.snapshot is None)
        if transaction_id not in view.transactions:
            view = stream.view()
        found = controller.find(view, transaction_id)
        self._life = view.life
        self._opened: OpenTransaction | None = None
        self._router: Router | None = None
        if isinstance(found, OpenTransaction):
            self._opened, self._router = found, Router(view.epoch(found.epoch).segments)
        self._id = transaction_id
        self._final: TransactionStatus | None = None
        self._manifests = Manifests(stream, transaction_id)
        self._encoder = Encoder(stream.name, serializer)
        self._on_end = on_end
        self._lock = threading.RLock()
        self._guard = ProcessGuard(f"transaction {transaction_id}")
        self._clear()

    def _clear(self) -> None:
        self._events: list[bytes] = []
        self._keys: list[str | None] = []
        self._times_us: list[int] = []
        self._size_bytes = 0

    @property
    def id(self) -> str:
        """The id, by which another process takes the transaction up; 32 hexadecimal digits."""
        return self._id

    @property
    def epoch(self) -> int:
        """The epoch that routes its events: the active one when it began."""
        return int(self._id[:8], 16)

    @property
    def is_open(self) -> bool:
        """Whether it had no outcome when last seen; no storage is asked."""
        return self._opened is not None and self._final is None

    @property
    def lease_ms(self) -> int:
        """How long it lives without a ping, in milliseconds."""
        return self._require_open().lease_ms

    @property
    def status(self) -> TransactionStatus:
        """Where the transaction is now: asked of the storage, until it is final."""
        if self._final is None:
            with self._lock:
                found = controller.status(self._stream, self._manifests, self._id)
            if found in _FINAL:
                self._end(found)
            return found
        return self._final

    def write_event(self, event: Any, routing_key: str | None = None) -> None:
        """Write one event; it is durable after ``flush`` or ``commit``, and visible after commit.

        Raises TxnFailed if this handle knows that the transaction has ended.
        """
        self.write_events((event,), routing_key)

    def write_events(self, events: Iterable[Any], routing_key: str | None = None) -> None:
        """Write events with one routing key, in order."""
        data = [self._encoder.event(event) for event in events]
        self._encoder.check_key(routing_key)
        with self._lock:
            self._require_open()
            now_us = self._stream.runtime.now_us()
            self._events += data
            self._keys += [routing_key] * len(data)
            self._times_us += [now_us] * len(data)
            self._size_bytes += sum(map(len, data))
            full = len(self._events) >= WRITER_BATCH_EVENTS
            if full or self._size_bytes >= WRITER_BATCH_BYTES:
                self.flush()

    def flush(self) -> None:
        """Make what was written durable in the transaction; TxnFailed if it takes no more."""
        with self._lock:
            self._require_open()
            chunks = self._stage()
            if chunks:
                self.add(chunks)

    def add(
        self, chunks: Sequence[StagedChunk], *, writer: str | None = None, number: int = 0
    ) -> bool:
        """Enter staged chunks of this transaction's folder, all or none; they are one write.

        With a ``writer`` a write whose number is not above that writer's last is left out
        (False): it is a repetition. Raises TxnFailed if the transaction takes no more.
        """

        def decide(entries: Sequence[Manifest]) -> Manifest | None:
            if entries and entries[-1].kind is not Kind.WRITE:
                raise self._closed(entries[-1].kind)
            done = (e.number for e in entries if writer is not None and e.writer == writer)
            if number <= max(done, default=number - 1):
                return None
            return Manifest(Kind.WRITE, tuple(chunks), writer, number)

        with self._lock:
            crash_point("txn.staged")
            if writer is not None:
                self._manifests.read()
            entered = self._manifests.append(decide) is not None
            # Were the folder gone, with the marks in it, the log would say how it ended.
            found = controller.find(self._stream.view(), self._id)
            if isinstance(found, Outcome):
                controller.ended(self._stream.view(refresh=False), found, Kind.WRITE)
            return entered

    def _closed(self, kind: Kind) -> TxnFailed:
        return TxnFailed(
            f"transaction {self._id} of stream {self._stream.name} is {kind.name}: no event can "
            "be written into it any more. Begin another."
        )

    def _stage(self) -> list[StagedChunk]:
        """Store what is in the buffer; it is empty afterwards."""
        if not self._events:
            return []
        assert self._router is not None
        events = encode_events(self._keys, self._times_us, self._events)
        # Events without a key stay together: they are routed by the transaction's id.
        keys = [self._id if key is None else key for key in self._keys]
        places = self._router.places(pa.array(keys, pa.string()), start=0)
        routed = Routed(self._router.segment_ids, places)
        self._clear()
        folder = chunk_folder(self._id)
        return stage_routed(self._stream, self.epoch, events, routed, folder=folder)

    def ping(self) -> None:
        """Begin the lease anew. Raises PingFailed when that cannot be.

        A writer does so by itself, in the background, for the transactions it began; the call is
        for handles taken up by id. Beyond the maximum execution time the lease is not extended.
        """
        with self._lock:
            opened = self._opened
            if opened is None or self.status is not TransactionStatus.OPEN:
                raise PingFailed(
                    f"transaction {self._id} of stream {self._stream.name} is "
                    f"{self.status.value}: it has no lease to extend."
                )
            if self._stream.runtime.now_ms() + opened.lease_ms > opened.limit_ms:
                raise PingFailed(
                    f"transaction {self._id} of stream {self._stream.name} reaches its maximum "
                    f"execution time before another lease of {opened.lease_ms // 1000} s ends: "
                    "commit it, or begin another with a longer max_execution."
                )
            leases.extend(self._stream, opened)

    def keep_alive(self) -> bool:
        """Begin the lease anew without asking whether there is one; False if that is of no use.

        For the background: takes no lock, so a long write cannot let the lease run out.
        """
        opened = self._opened
        if opened is None or self._final is not None or self._guard.pid != os.getpid():
            return False
        if self._stream.runtime.now_ms() + opened.lease_ms > opened.limit_ms:
            return False
        leases.extend(self._stream, opened)
        return True

    def prepare(self) -> None:
        """First phase of two: flush, take no more events, and wait for the decision.

        A prepared transaction has no lease and outlives its writer: any process may commit or
        abort it by its id. Again: nothing.
        """

        def decide(entries: Sequence[Manifest]) -> Manifest | None:
            last = entries[-1].kind if entries else Kind.WRITE
            if last is Kind.PREPARED:
                return None
            if last.is_closing:
                raise self._closed(last)
            return Manifest(Kind.PREPARED, time_ms=self._stream.runtime.now_ms())

        with self._lock:
            self.flush()
            self._manifests.append(decide)
            self._check_open_in_log()

    def _check_open_in_log(self) -> None:
        found = controller.find(self._stream.view(), self._id)
        if isinstance(found, Outcome):
            controller.ended(self._stream.view(refresh=False), found, Kind.WRITE)

    def commit(
        self,
        note: str | None = None,
        timestamp: datetime | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Make all events visible, at once, in every segment; they are when this returns.

        ``note`` (such as a source position) is what ``last_note`` gives to the next writer of
        this writer's id, kept in the same commit. ``timestamp`` is kept with it, for watermarks.
        ``wait=False`` returns once it is decided, as Pravega's commit does; the events become
        visible with the next commit of a transaction, or when the stream is tended. Again after
        a commit: nothing. Raises TxnFailed if it was aborted; CommitUnknown when nobody can tell
        yet, and the call can be repeated.
        """
        if note is not None:
            self._check_note(note)
        timestamp_us = None if timestamp is None else _microseconds(timestamp)
        with self._lock:
            opened = self._take_up(Kind.COMMITTING)
            if opened is None:
                return
            chunks = self._stage()
            controller.close(
                self._stream,
                self._manifests,
                opened,
                Kind.COMMITTING,
                chunks=chunks,
                note=note,
                timestamp_us=timestamp_us,
            )
            if wait:
                self._settle(Kind.COMMITTING, chunks)

    def abort(self) -> None:
        """Drop all events, for good. Again: nothing. Raises TxnFailed if it was committed."""
        with self._lock:
            self._clear()
            opened = self._take_up(Kind.ABORTING)
            if opened is not None:
                reason = "the application asked for it"
                controller.close(
                    self._stream, self._manifests, opened, Kind.ABORTING, reason=reason
                )
                self._settle(Kind.ABORTING)

    def _take_up(self, wanted: Kind) -> OpenTransaction | None:
        """Return the transaction if it is open in the log; None if it ended as wanted."""
        self._guard.check()
        view = self._stream.view(refresh=self._id not in self._stream.view(False).transactions)
        found = controller.find(view, self._id)
        if isinstance(found, OpenTransaction):
            return found
        controller.ended(view, found, wanted)
        return None

    def _settle(self, wanted: Kind, last: Sequence[StagedChunk] = ()) -> None:
        """Carry the decision out, and see that it is what was wanted, with the last write in it."""
        view = controller.carry_out(self._stream, self._manifests)
        found = controller.find(view, self._id)
        assert isinstance(found, Outcome), f"transaction {self._id} was decided and is still open"
        if found.committed and last and found.decision != self._manifests.entries[-1].token:
            raise controller.without(f"transaction {self._id} of stream {self._stream.name}", last)
        self._end(TransactionStatus.COMMITTED if found.committed else TransactionStatus.ABORTED)
        controller.ended(view, found, wanted)

    def _end(self, status: TransactionStatus) -> None:
        if self._final is None:
            self._final = status
            self._on_end(self)

    def _require_open(self) -> OpenTransaction:
        self._guard.check()
        if self._opened is None or self._final is not None:
            raise TxnFailed(
                f"transaction {self._id} of stream {self._stream.name} is {self.status.value}. "
                "Begin another."
            )
        return self._opened

    def _check_note(self, note: str) -> None:
        self._encoder.check_note(note)
        if self._opened is not None and self._opened.writer_id is None:
            raise InvalidInput(
                f"commit(note=...) on stream {self._stream.name} needs a writer with an id of your "
                "own: create_transactional_writer(stream, writer_id=...), since the note is kept "
                "by that id."
            )

    def __enter__(self) -> Transaction:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, unless the block has ended the transaction itself; abort if it raised."""
        if kind is None:
            if self._final is None and not self._manifests.is_closed:
                self.commit()
        else:
            with suppress(PravegaSparkError):
                self.abort()

    def __repr__(self) -> str:
        """Name the transaction; no storage is asked."""
        state = self._final.value if self._final else "not known to have ended"
        return f"<Transaction {self._id} of {self._stream.name}: {state}>"

    def __reduce__(self) -> Any:
        """Refuse pickling: another process takes the transaction up by its id."""
        raise TypeError("a Transaction cannot be pickled; pass its id, and take it up by that.")


def _microseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise InvalidInput(f"the timestamp {time!r} has no time zone; give it one, such as UTC.")
    since = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
