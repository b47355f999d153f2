"""A key-value table in the hands of several threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from pravega_spark.errors import BadKeyVersion, CommitUnknown, NoSuchKey, ObjectClosed, StoreError
from pravega_spark.key_value.updates import TableInsert, TablePut
from tests.harness.shared_handles import CALLBACK, Call, Place, World
from tests.harness.shared_writers import Writing


class TableWorld(Writing):
    verbs = ("write", "write", "then", "wait", "remove", "flush", "close", "leave", "get", "get",
             "insert", "replace", "two", "scan")  # fmt: skip
    callback_verbs = ("write", "wait", "later", "flush", "close", "get", "insert")
    errors = (*World.errors, BadKeyVersion, NoSuchKey)
    path = "s/_kv_tables/t/events"
    _REMOVED = "-"

    def prepare(self) -> None:
        self.manager.create_key_value_table("s/t")
        self.table = self.manager.key_value_table("s/t")

    def key(self, call: Call, dice: random.Random) -> bytes:
        call.key = dice.choice(("a", "b"))
        return call.key.encode()

    def write(self, call: Call, dice: random.Random) -> None:
        key, call.values = self.key(call, dice), (self.value(),)
        call.future = self.table.put(key, call.values[0])

    def remove(self, call: Call, dice: random.Random) -> None:
        self.table.remove(self.key(call, dice))

    def insert(self, call: Call, dice: random.Random) -> None:
        key, call.values = self.key(call, dice), (self.value(),)
        call.answer = (self.table.insert(key, call.values[0]),)

    def replace(self, call: Call, dice: random.Random) -> None:
        key = self.key(call, dice)
        entry = self.table.get(key)
        if entry is None:
            return
        value = self.value()
        call.answer = entry.version, self.table.replace(key, value, entry.version)
        call.values = (value,)

    def two(self, call: Call, dice: random.Random) -> None:
        """Set both keys in one commit, where one does not exist."""
        call.values = self.value(), self.value()
        pairs = zip((b"a", b"b"), call.values, strict=True)
        self.table.update(
            [TableInsert(k, v) if dice.random() < 0.5 else TablePut(k, v) for k, v in pairs]
        )

    def get(self, call: Call, dice: random.Random) -> None:
        key = self.key(call, dice)
        call.answer = self.table.get(key, fresh=dice.random() < 0.3)

    def scan(self, call: Call, dice: random.Random) -> None:
        call.answer = list(self.table.entries())

    def flush(self, call: Call, dice: random.Random) -> None:
        self.table.flush()

    def close(self, call: Call, dice: random.Random) -> None:
        self.table.close()

    def leave(self, call: Call, dice: random.Random) -> None:
        self.table.__exit__(None, None, None)

    def read(self) -> Iterator[tuple[str, int, int]]:
        for change in self.changes:
            if change.value is not None:
                version = change.version
                yield change.value.decode(), version.segment_id, version.offset

    def cut(self, version: int) -> dict[int, int]:
        return dict(self.table.changelog.cut_at(version).positions)

    def check_pointers(self, call: Call, where: dict[str, Place]) -> None:
        version, place = call.future.result(), where[call.values[0]]
        assert (version.segment_id, version.offset) == (place.segment, place.offset)

    def check_gap(self, first: Call, second: Call) -> None:
        """After a failure that was told, the handle goes on."""

    def check_told(self, write: Call, failure: BaseException, call: Call) -> None:
        """The first flush after a failure raises it, whoever has told it."""
        if call.verb != "flush" or isinstance(failure, ObjectClosed):
            return
        for one in self.calls:
            if not isinstance(one.error, (StoreError, CommitUnknown)) or one.ended < write.began:
                continue
            if one.verb in ("flush", "close", "leave") and one.began < call.ended:
                return
        raise AssertionError(f"{call} hides that {write} failed: {failure!r}")

    def check(self) -> None:
        reader = self.manager.key_value_table("s/t")
        self.changes = list(reader.changelog.changes())
        super().check()
        where = self.places()
        ends = [c for c in self.of("close", "leave", good=True) if c.thread != CALLBACK]
        for call in self.of("write", "insert", "two", good=True):
            late = [end for end in ends if end.before(call)]
            assert not late, f"{call} was accepted after {late[0]}"
        for call in self.of("insert", "replace", "two", good=True):
            for value in call.values:
                assert value in where, f"{call} is not durable"
                assert where[value].version <= call.mark
                self.check_after_puts(call, where, value)
        self.check_conditions()
        self.check_gets(where)
        for key in ("a", "b"):
            last = [c.value for c in self.changes if c.key == key.encode()][-1:]
            found = reader.get(key.encode(), fresh=True)
            assert (None if found is None else found.value) == (last[0] if last else None)

    def check_after_puts(self, call: Call, where: dict[str, Place], value: str) -> None:
        for put in self.written():
            if put.key == call.key and put.before(call) and put.values[0] in where:
                assert where[put.values[0]].offset < where[value].offset, f"{call} before {put}"

    def check_conditions(self) -> None:
        """What an insert or a replacement was made on is what came before it in the log."""
        by_value: dict[Any, Any] = {}
        newest: dict[Any, Any] = {}
        for change in self.changes:
            if change.value is not None:
                by_value[change.value] = newest.get(change.key)
            newest[change.key] = change
        for call in self.of("insert", good=True):
            before = by_value[call.values[0].encode()]
            assert before is None or before.is_removal, f"{call} over {before}"
        for call in self.of("replace", good=True):
            for value in call.values:
                assert by_value[value.encode()].version == call.answer[0], f"{call} over another"

    def check_gets(self, where: dict[str, Place]) -> None:
        """A get sees what is known to be durable, and nothing that never was."""
        offsets = [(c.key, c.value, c.version.offset) for c in self.changes]
        for call in self.of("get", good=True):
            key = (call.key or "").encode()
            known = self.known(call, where)
            if call.answer is not None:
                assert (key, call.answer.value, call.answer.version.offset) in offsets
                assert call.answer.version.offset >= known, f"{call} -> an old {call.answer}"
            elif known >= 0:
                later = [v for k, v, o in offsets if k == key and o >= known]
                assert None in later, f"{call} -> None after offset {known}"

    def known(self, call: Call, where: dict[str, Place]) -> int:
        """The newest change of a key that calls before this one had shown to be durable."""
        found = [-1]
        for one in self.calls:
            if not (one.is_good and one.before(call)):
                continue
            if one.verb == "get" and one.key == call.key and one.answer is not None:
                found.append(one.answer.version.offset)
            if one.verb in ("insert", "replace") and one.key == call.key:
                found += [where[value].offset for value in one.values]
            if one.verb == "flush":
                puts = (p for p in self.written() if p.before(one) and p.key == call.key)
                found += [where[p.values[0]].offset for p in puts if p.values[0] in where]
        return max(found)

    def child_calls(self) -> dict[str, Callable[[], object]]:
        table = self.table
        return {
            "put": lambda: table.put(b"a", b"child"),
            "insert": lambda: table.insert(b"c", b"child"),
            "get": lambda: table.get(b"a"),
            "flush": table.flush,
        }

    child_answers = frozenset({"ForkedProcess", "ObjectClosed", "None"})
