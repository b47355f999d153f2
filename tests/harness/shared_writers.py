"""Writers of events and of bytes in the hands of several threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar

from pravega_spark.errors import CommitUnknown, IllegalState, ObjectClosed, StoreError, StreamSealed
from tests.harness.shared_handles import CALLBACK, Call, Place, World


class Writing(World):
    """What handles have in common whose writes have futures: events, and puts to tables."""

    def written(self) -> list[Call]:
        """The accepted writes."""
        return [call for call in self.calls if call.future is not None]

    def outcome(self, call: Call) -> BaseException | None:
        try:
            found = call.future.exception(timeout=60)
        except concurrent.futures.TimeoutError:
            raise AssertionError(f"{call} has no outcome after the end of its handle") from None
        return found

    def wait(self, call: Call, dice: random.Random) -> None:
        """Wait for a future of any thread, by one of the ways to wait."""
        known = [one for one in self.calls if one.future is not None]
        if not known:
            return
        count = min(len(known), dice.choice((1, 1, 3)))
        chosen = known[-count:] if dice.random() < 0.6 else dice.sample(known, count)
        call.values = tuple(one.values for one in chosen)
        futures = [one.future for one in chosen]
        way = dice.randrange(4)
        if way == 0:
            concurrent.futures.wait(futures)
        elif way == 1:
            list(concurrent.futures.as_completed(futures))
        for future in futures:
            if way == 2 and future.exception() is not None:
                continue
            future.result()

    async def wait_in_loop(self, thread: int, dice: random.Random) -> None:
        """Wait for a future in a coroutine, by one of the ways to wait."""
        known = self.written()
        if not known:
            return
        chosen = dice.choice(known)
        with self.recorded(thread, "wait") as call:
            way = dice.randrange(4)
            if way == 0:
                await chosen.future
            elif way == 1:
                await asyncio.wrap_future(chosen.future)
            elif way == 2:
                await asyncio.gather(*(one.future for one in known), return_exceptions=True)
            else:
                try:
                    await asyncio.wait_for(asyncio.wrap_future(chosen.future), 0.001)
                except (TimeoutError, asyncio.TimeoutError):
                    return
            call.values = (chosen.values,)

    def then(self, call: Call, dice: random.Random) -> None:
        """Write, and do something more in a callback of that write."""
        self.write(call, dice)
        verb = dice.choice(self.callback_verbs)
        again = random.Random(dice.randrange(1 << 30))

        def called(_: object) -> None:
            here = CALLBACK if threading.get_ident() != caller else call.thread
            self.call(here, verb, again)

        caller = threading.get_ident()
        call.future.add_done_callback(called)

    def later(self, call: Call, dice: random.Random) -> None:
        """Write, and wait for it: in a callback of the same writer that is refused."""
        self.write(call, dice)
        self.wait(Call(call.thread, "wait", call.began), dice)

    callback_verbs: ClassVar[tuple[str, ...]]

    def write(self, call: Call, dice: random.Random) -> None:
        raise NotImplementedError

    def places(self) -> dict[str, Place]:
        """Where each value lies, as another process reads it; one that lies twice is an error."""
        where: dict[str, Place] = {}
        cuts = [self.cut(v) for v in range(1, self.store.newest[self.path] + 1)]
        for value, segment, offset in self.read():
            found = (v for v, cut in enumerate(cuts, 1) if cut.get(segment, 0) > offset)
            assert value not in where, f"{value} is doubled"
            where[value] = Place(segment, offset, next(found))
        return where

    def read(self) -> Iterator[tuple[str, int, int]]:
        for event in self.manager.read("s/t"):
            yield event.data.decode(), event.segment_id, event.offset

    def cut(self, version: int) -> dict[int, int]:
        return dict(self.manager.cut_at("s/t", version).positions)

    def check(self) -> None:
        super().check()
        where = self.places()
        for call in self.calls:
            if call.values and call.future is None and call.verb in ("write", "many", "then"):
                lost = [value for value in call.values if value in where]
                assert not lost, f"{call} was refused, and {lost} is there"
        for call in self.written():
            failure = self.outcome(call)
            there = [value in where for value in call.values]
            if failure is None:
                assert all(there), f"{call} is durable by its future, and {there}"
                self.check_pointers(call, where)
            elif not isinstance(failure, CommitUnknown):
                assert not any(there), f"{call} failed with {failure!r}, and is there"
        self.check_order(where)
        self.check_promises(where)

    def check_pointers(self, call: Call, where: dict[str, Place]) -> None:
        found = call.future.result()
        for pointer, value in zip(
            found if type(found) is tuple else (found,), call.values, strict=True
        ):
            place = where[value]
            assert (pointer.segment_id, pointer.offset) == (place.segment, place.offset)

    def check_order(self, where: dict[str, Place]) -> None:
        """Writes of one key lie in their order."""
        for first, second in itertools.permutations(self.written(), 2):
            if first.key is None or first.key != second.key or not first.before(second):
                continue
            if all(v in where for v in (first.values[0], second.values[0])):
                one, two = where[first.values[-1]], where[second.values[0]]
                assert one.offset < two.offset, f"{first} lies behind {second}"
            elif second.values[0] in where:
                self.check_gap(first, second)

    def check_gap(self, first: Call, second: Call) -> None:
        raise AssertionError(f"{second} is durable, and {first} before it is not")

    def check_promises(self, where: dict[str, Place]) -> None:
        """What flushes, closes and waits say to be durable was so when they returned."""
        for call in self.of("flush", "close", "leave", good=True):
            if call.thread == CALLBACK and call.verb != "flush":  # where a close does not wait
                continue
            for write in self.written():
                if not write.before(call):
                    continue
                failure = self.outcome(write)
                if failure is None:
                    late = max(where[value].version for value in write.values)
                    assert late <= call.mark, f"{call} returned before {write} was durable"
                else:
                    self.check_told(write, failure, call)
        for call in self.of("wait", good=True):
            for values in call.values:
                late = max((where[v].version for v in values if v in where), default=0)
                assert late <= call.mark, f"{call} returned before {values} was durable"

    def check_told(self, write: Call, failure: BaseException, call: Call) -> None:
        raise NotImplementedError


class EventWorld(Writing):
    verbs = ("write", "write", "many", "then", "wait", "flush", "close", "leave", "quick_flush")
    callback_verbs = ("write", "many", "then", "wait", "later", "flush", "close", "fail")
    segments = 2

    def open(self) -> None:
        name = self.dice.choice((None, "w"))
        self.writer = self.manager.create_writer("s/t", name)

    def write(self, call: Call, dice: random.Random) -> None:
        call.key, call.values = dice.choice((None, "a", "b")), (self.value(),)
        call.future = self.writer.write_event(call.values[0], call.key)

    def many(self, call: Call, dice: random.Random) -> None:
        call.key = dice.choice((None, "a", "b"))
        call.values = tuple(self.value() for _ in range(dice.randint(1, 3)))
        call.future = self.writer.write_events(call.values, call.key)

    def flush(self, call: Call, dice: random.Random) -> None:
        self.writer.flush()

    def quick_flush(self, call: Call, dice: random.Random) -> None:
        with contextlib.suppress(concurrent.futures.TimeoutError, TimeoutError):
            self.writer.flush(timeout=dice.choice((0, 0.001)))

    def close(self, call: Call, dice: random.Random) -> None:
        self.writer.close()

    def leave(self, call: Call, dice: random.Random) -> None:
        self.writer.__exit__(None, None, None)

    def fail(self, call: Call, dice: random.Random) -> None:
        raise IllegalState("an error of a callback")

    def check_told(self, write: Call, failure: BaseException, call: Call) -> None:
        if isinstance(failure, ObjectClosed):
            ends = [one for one in self.of("close", "leave") if one.began < write.ended]
            assert ends, f"{call} returned, and {write} was dropped: {failure!r}"
            assert call.verb != "flush", f"{call} returned, and {write} was dropped: {failure!r}"
        else:  # a close does not repeat what was reported
            assert call.verb != "flush", f"{call} hides that {write} failed: {failure!r}"

    def check(self) -> None:
        super().check()
        ends = [c for c in self.of("close", "leave", good=True) if c.thread != CALLBACK]
        for write in self.written():
            late = [end for end in ends if end.before(write)]
            assert not late, f"{write} was accepted after {late[0]}"

    def child_calls(self) -> dict[str, Callable[[], object]]:
        writer, futures = self.writer, [c.future for c in self.written()[-2:]]
        waits = {f"wait {n}": future.result for n, future in enumerate(futures) if not future.done}
        return {
            "write": lambda: writer.write_event(b"child"),
            "many": lambda: writer.write_events([b"child"]),
            "flush": writer.flush,
            "close": writer.close,
            **waits,
        }


class ByteWorld(World):
    """A byte writer with small blocks and little room; each write is a run of one byte."""

    verbs = ("write", "write", "write", "flush", "close", "leave", "quick_flush", "tell", "seal")
    errors = (ValueError, StoreError, CommitUnknown, StreamSealed)
    child_answers = frozenset({"ForkedProcess", "ValueError"})

    def open(self) -> None:
        name = self.dice.choice((None, "w"))
        self.writer = self.manager.create_byte_writer("s/t", name)
        self.writer._queue.limit_bytes = self.writer._queue._buffer_bytes = 300

    def write(self, call: Call, dice: random.Random) -> None:
        size = dice.choice((1, 5, 63, 64, 65, 130, 700, 1_500))
        call.values = (next(self.numbers), size)
        written = self.writer.write(bytes([call.values[0]]) * size)
        assert written == size

    def flush(self, call: Call, dice: random.Random) -> None:
        self.writer.flush()

    def quick_flush(self, call: Call, dice: random.Random) -> None:
        with contextlib.suppress(concurrent.futures.TimeoutError, TimeoutError):
            self.writer.flush(timeout=dice.choice((0, 0.001)))

    def tell(self, call: Call, dice: random.Random) -> None:
        call.answer = self.writer.tell(), self.writer.acknowledged_bytes

    def close(self, call: Call, dice: random.Random) -> None:
        self.writer.close()

    def leave(self, call: Call, dice: random.Random) -> None:
        self.writer.__exit__(None, None, None)

    def seal(self, call: Call, dice: random.Random) -> None:
        if dice.random() < 0.3:
            self.writer.close_and_seal()
        elif dice.random() < 0.3:
            self.writer.seal()

    def check(self) -> None:
        super().check()
        with self.manager.create_byte_reader("s/t", follow=False) as reader:
            data = reader.read(1 << 20) or b""
        runs = [(byte, len(list(run))) for byte, run in itertools.groupby(data)]
        ends = dict(
            zip((b for b, _ in runs), itertools.accumulate(n for _, n in runs), strict=True)
        )
        assert len(ends) == len(runs), f"a write lies in two places: {runs}"
        there, versions = dict(runs), self.versions()
        writes = self.of("write")
        for write in writes:
            byte, size = write.values
            found = there.get(byte, 0)
            assert found <= size, f"{write} is doubled"
            if write.is_good and found < size:
                told = [c for c in self.calls if c.error and c.ended > write.began]
                told = [c for c in told if isinstance(c.error, (StoreError, StreamSealed))]
                assert told, f"{write} was accepted, {found} bytes are there, and nobody was told"
        for call in self.of("flush", "close", "leave", good=True):
            for write in writes:
                if not (write.is_good and write.before(call)):
                    continue
                byte, size = write.values
                if there.get(byte, 0) == size:
                    late = next(v for end, v in versions if end >= ends[byte])
                    assert late <= call.mark, f"{call} returned before {write} was durable"
                else:
                    assert call.verb != "flush", f"{call} returned, and {write} is not durable"
        closed = self.of("close", "leave", good=True)
        for write in writes:
            ends_before = [end for end in closed if end.before(write)]
            assert not (ends_before and write.is_good), f"{write} was accepted after {closed}"
        for first, second in itertools.permutations(writes, 2):
            if first.is_good and second.is_good and first.before(second):
                one, two = first.values[0], second.values[0]
                assert not (one in ends and two in ends) or ends[one] < ends[two]
                assert one in ends or two not in ends, f"{second} is there, {first} is not"

    def versions(self) -> list[tuple[int, int]]:
        """The bytes that each version of the stream has."""
        sizes = [len(event.data) for event in self.manager.read("s/t")]
        ends = [0, *itertools.accumulate(sizes)]
        newest = self.store.newest[self.path]
        cuts = (self.manager.cut_at("s/t", v).positions for v in range(1, newest + 1))
        return [(ends[cut.get(0, 0)], v) for v, cut in enumerate(cuts, 1)]

    def child_calls(self) -> dict[str, Callable[[], object]]:
        writer = self.writer
        return {}
        return {"write": lambda: writer.write(b"child"), "flush": writer.flush}
