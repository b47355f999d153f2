"""Transactions, and their writers, in the hands of several threads."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from pravega_spark import StreamConfiguration
from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.errors import CommitUnknown, IllegalState, ObjectClosed, StoreError, TxnFailed
from tests.harness.shared_handles import Call, Errors, World


class TransactionWorld(World):
    """A transactional writer, and transactions of it that all threads use."""

    verbs = ("write", "write", "write", "many", "flush", "commit", "abort", "leave", "status",
             "ping", "begin", "leave_by_error", "close")  # fmt: skip
    errors = (TxnFailed, ObjectClosed, StoreError, CommitUnknown)
    streams: ClassVar[tuple[str, ...]] = ("s/t",)
    segments = 2

    def prepare(self) -> None:
        policy = ScalingPolicy.fixed(self.segments)
        for stream in self.streams:
            self.manager.create_stream(stream, StreamConfiguration(policy))
        self.open()
        self.transactions: list[Any] = []
        self.transactions.append(self.writer.begin_transaction())

    def open(self) -> None:
        self.writer: Any = self.manager.create_transactional_writer("s/t")

    def chosen(self, call: Call, dice: random.Random) -> Any:
        number = dice.randrange(len(self.transactions))
        call.answer = number
        return self.transactions[number]

    def put(self, txn: Any, call: Call, dice: random.Random) -> None:
        txn.write_event(call.values[0], call.key)

    def put_many(self, txn: Any, call: Call, dice: random.Random) -> None:
        txn.write_events(call.values, call.key)

    def write(self, call: Call, dice: random.Random) -> int:
        txn, call.key = self.chosen(call, dice), dice.choice((None, "a", "b"))
        call.values = (self.value(),)
        self.put(txn, call, dice)
        return int(call.answer)

    def many(self, call: Call, dice: random.Random) -> int:
        txn, call.key = self.chosen(call, dice), dice.choice((None, "a", "b"))
        call.values = tuple(self.value() for _ in range(dice.randint(1, 3)))
        self.put_many(txn, call, dice)
        return int(call.answer)

    def begin(self, call: Call, dice: random.Random) -> None:
        self.transactions.append(self.writer.begin_transaction())

    def flush(self, call: Call, dice: random.Random) -> None:
        self.chosen(call, dice).flush()

    def commit(self, call: Call, dice: random.Random) -> int:
        self.chosen(call, dice).commit()
        return int(call.answer)

    def leave(self, call: Call, dice: random.Random) -> int:
        self.chosen(call, dice).__exit__(None, None, None)
        return int(call.answer)

    def leave_by_error(self, call: Call, dice: random.Random) -> int:
        self.chosen(call, dice).__exit__(KeyError, KeyError("x"), None)
        return int(call.answer)

    def abort(self, call: Call, dice: random.Random) -> int:
        self.chosen(call, dice).abort()
        return int(call.answer)

    def status(self, call: Call, dice: random.Random) -> tuple[int, Any]:
        txn = self.chosen(call, dice)
        return int(call.answer), txn.status

    def ping(self, call: Call, dice: random.Random) -> None:
        self.chosen(call, dice).ping()

    def close(self, call: Call, dice: random.Random) -> None:
        self.writer.close()

    def allowed(self, call: Call) -> Errors:
        return (*super().allowed(call), *((IllegalState,) if call.verb == "ping" else ()))

    def finish(self) -> None:
        self.store.fault = None
        self.ends = [self.end(txn) for txn in self.transactions]
        super().finish()

    def end(self, txn: Any) -> bool:
        """Commit what is open; return whether it is committed."""
        try:
            txn.commit()
        except TxnFailed:
            txn.abort()
        found = txn.status
        assert found in (TransactionStatus.COMMITTED, TransactionStatus.ABORTED), found
        return bool(found is TransactionStatus.COMMITTED)

    def check(self) -> None:
        super().check()
        events = self.events()
        counts = Counter(events)
        twice = [value for value, count in counts.items() if count > 1]
        assert not twice, f"doubled: {twice}"
        at = {value: place for place, value in enumerate(events)}
        writes = self.of("write", "many")
        for call in writes:
            there = [value in counts for value in call.values]
            if call.is_good:
                assert all(there) if self.ends[call.answer] else not any(there), (
                    f"{call} in transaction {call.answer}, committed {self.ends[call.answer]}: "
                    f"{there}"
                )
            elif isinstance(call.error, (TxnFailed, ObjectClosed)):
                assert not any(there), f"{call} was refused, and is there"
        for call in self.of("commit", good=True):
            assert self.ends[call.answer], f"{call} was told, and it is not committed"
        for call in self.of("abort", good=True):
            assert not self.ends[call.answer], f"{call} was told, and it is committed"
        for call in self.of("status", good=True):
            number, said = call.answer
            is_right = {"COMMITTED": self.ends[number], "ABORTED": not self.ends[number]}
            assert is_right.get(said.name, True), f"{call} said {said}"
        for end in self.of("commit", "abort", good=True):
            for call in self.of("write", "many", good=True):
                if call.answer == end.answer:
                    assert not end.before(call), f"{call} was accepted after {end}"
        for first, second in itertools.permutations(self.of("write", "many", good=True), 2):
            is_ordered = first.key is not None and first.key == second.key and first.before(second)
            is_ordered &= first.answer == second.answer and self.ends[first.answer or 0]
            if is_ordered and self.stream_of(first) == self.stream_of(second):
                assert at[first.values[-1]] < at[second.values[0]], f"{first} behind {second}"

    def stream_of(self, call: Call) -> str:
        return "s/t"

    def events(self) -> list[str]:
        return [e.data.decode() for name in self.streams for e in self.manager.read(name)]

    def child_calls(self) -> dict[str, Callable[[], object]]:
        txn = self.transactions[0]
        return {
            "write": lambda: txn.write_event(b"child"),
            "flush": txn.flush,
            "commit": txn.commit,
            "abort": txn.abort,
            "status": lambda: txn.status,
            "ping": txn.ping,
            "begin": self.writer.begin_transaction,
        }


class JointWorld(TransactionWorld):
    streams = ("s/t", "s/u")

    def open(self) -> None:
        self.writer = self.manager.create_joint_writer(self.streams)

    def stream_of(self, call: Call) -> str:
        return self.streams[int(call.values[0]) % 2]

    def put(self, txn: Any, call: Call, dice: random.Random) -> None:
        txn.write_event(self.stream_of(call), call.values[0], call.key)

    def put_many(self, txn: Any, call: Call, dice: random.Random) -> None:
        txn.write_events(self.stream_of(call), call.values, call.key)

    def child_calls(self) -> dict[str, Callable[[], object]]:
        txn = self.transactions[0]
        return {
            "write": lambda: txn.write_event("s/t", b"child"),
            "flush": txn.flush,
            "commit": txn.commit,
            "abort": txn.abort,
            "status": lambda: txn.status,
            "begin": self.writer.begin_transaction,
        }
