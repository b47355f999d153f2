"""StateSynchronizer, with the counter, the set and the map of Pravega's samples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream import truncation
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import IllegalState, InvalidInput, TooBusy
from pravega_spark.shared_state.state_synchronizer import TRUNCATED_READS, StateSynchronizer
from pravega_spark.values.segments import StreamCut
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy


@pytest.fixture
def store() -> Spy:
    return Spy()


@pytest.fixture
def stream(store: Spy) -> StreamLog:
    return make_stream(store, SYSTEM)


class Counter:
    """A number that many processes add to, as Pravega's sample has it."""

    def __init__(self, stream: StreamLog) -> None:
        self.shared = StateSynchronizer(stream, lambda number, added: number + added)
        self.shared.initialize(0)

    def add(self, amount: int = 1) -> int:
        def update(number: int, updates: list[int]) -> int:
            updates.append(amount)
            return number + amount

        return self.shared.update_state(update)

    @property
    def value(self) -> int:
        self.shared.fetch_updates()
        found: int = self.shared.get_state()
        return found


class SharedSet:
    """A set of texts whose ``add`` tells whether the text is new."""

    def __init__(self, stream: StreamLog) -> None:
        self.shared = StateSynchronizer(stream, self._applied)
        self.shared.initialize([])

    @staticmethod
    def _applied(known: list[str], update: dict[str, str]) -> list[str]:
        without = [text for text in known if text not in update.values()]
        return without + ([update["add"]] if "add" in update else [])

    def add(self, text: str) -> bool:
        def update(known: list[str], updates: list[Any]) -> bool:
            if text not in known:
                updates.append({"add": text})
            return bool(updates)

        return self.shared.update_state(update)

    def discard(self, text: str) -> None:
        self.shared.update_state_unconditionally([{"remove": text}])


def at(offset: int) -> StreamCut:
    return StreamCut("s/t", 1, {0: offset})


# ------------------------------------------------------------------------------------- the samples


def test_counter_counts_every_addition_of_threads_and_processes(stream: StreamLog) -> None:
    counters = [Counter(reopen(stream)) for _ in range(3)]
    results: list[int] = []

    def add(counter: Counter) -> None:
        results.extend(counter.add() for _ in range(5))

    threads = [threading.Thread(target=add, args=(counter,)) for counter in counters * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [*range(1, 31)], "each addition was made on the number before it"
    assert {counter.value for counter in counters} == {30}


def test_set_adds_a_text_once(stream: StreamLog) -> None:
    one, other = SharedSet(stream), SharedSet(reopen(stream))
    assert one.add("a")
    assert not other.add("a")
    assert other.add("b")
    one.discard("a")
    assert one.shared.get_state() == ["a"], "local until it is fetched"
    one.shared.fetch_updates()
    assert one.shared.get_state() == ["b"]
    assert one.add("a")


def test_map_changes_several_entries_together(stream: StreamLog) -> None:
    def applied(known: dict[str, int], update: dict[str, int]) -> dict[str, int]:
        return {**known, **update}

    shared = StateSynchronizer(stream, applied)
    shared.initialize({"a": 5, "b": 0})

    def move(known: dict[str, int], updates: list[dict[str, int]]) -> None:
        updates += [{"a": known["a"] - 2}, {"b": known["b"] + 2}]

    shared.update_state(move)
    assert shared.get_state() == {"a": 3, "b": 2}
    assert stream.view().segment(0).next_offset == 2, "both are one value"
    again = StateSynchronizer(reopen(stream), applied)
    again.fetch_updates()
    assert again.get_state() == {"a": 3, "b": 2}


# ---------------------------------------------------------------------------- first state, updates


def test_first_state_is_that_of_the_first_one_who_gives_it(stream: StreamLog) -> None:
    one, other = (StateSynchronizer(reopen(stream), max) for _ in range(2))
    assert one.get_state() is None
    assert one.revision is None
    assert one.initialize(1)
    assert not other.initialize(2)
    assert other.get_state() == 1
    assert not one.initialize(3)


def test_before_the_first_state_there_is_nothing_to_update(stream: StreamLog) -> None:
    shared = StateSynchronizer(stream, max)
    shared.fetch_updates()
    for call in (
        lambda: shared.update_state(lambda known, updates: None),
        lambda: shared.update_state_unconditionally([1]),
        shared.compact,
    ):
        with pytest.raises(IllegalState, match="initialize"):
            call()
    assert stream.view().version == 0


def test_lost_race_asks_the_generator_again_with_the_winners_state(
    store: Spy, stream: StreamLog
) -> None:
    shared, other = Counter(stream), Counter(reopen(stream, store.inner))
    seen: list[int] = []

    def overtake(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            other.add(10)

    def update(number: int, updates: list[int]) -> str:
        seen.append(number)
        updates.append(1)
        return f"from {number}"

    store.hook = overtake
    assert shared.shared.update_state(update) == "from 10"
    assert seen == [0, 10]
    assert shared.value == 11


def test_update_without_updates_writes_nothing_and_costs_no_call(
    store: Spy, stream: StreamLog
) -> None:
    counter = Counter(stream)
    store.calls.clear()
    assert counter.shared.update_state(lambda number, updates: number) == 0
    counter.shared.update_state_unconditionally([])
    assert store.calls == []


def test_update_costs_an_append_and_a_look_costs_a_call(store: Spy, stream: StreamLog) -> None:
    counter = Counter(stream)
    store.calls.clear()
    counter.add()
    assert [operation for operation, _ in store.calls] == ["put", "put_if_absent"]
    store.calls.clear()
    assert counter.value == 1
    assert [operation for operation, _ in store.calls] == ["get"]


def test_lost_answer_counts_once(store: Spy, stream: StreamLog) -> None:
    counter = Counter(stream)
    for fault in (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND):
        store.rules.add(Rule(fault, "put_if_absent", nth=1))
        counter.add()
    assert Counter(reopen(stream)).value == 3


# ------------------------------------------------------------------------------------- compaction


def test_compaction_keeps_one_generation_and_the_state(stream: StreamLog) -> None:
    counter, slow = Counter(stream), Counter(reopen(stream))
    for _ in range(3):
        counter.add()
    assert counter.shared.bytes_written_since_compaction > 0
    counter.shared.compact()
    assert counter.shared.bytes_written_since_compaction == 0
    assert stream.view().head == at(0), "the first compaction has nothing before its mark"
    counter.add()
    counter.shared.compact(lambda number: number)
    assert stream.view().head == at(4), "up to the mark before"
    assert slow.value == counter.value == 4, "it was behind by two compactions"
    assert slow.add() == 5
    assert Counter(reopen(stream)).value == 5


def test_newcomer_begins_at_the_mark_and_applies_nothing_before_it(stream: StreamLog) -> None:
    counter = Counter(stream)
    for _ in range(3):
        counter.add()
    counter.shared.compact()
    applied: list[int] = []

    def add(number: int, added: int) -> int:
        applied.append(added)
        return number + added

    newcomer = StateSynchronizer(reopen(stream), add)
    newcomer.fetch_updates()
    assert newcomer.get_state() == 3
    assert applied == []


def test_state_never_goes_back_while_a_slow_one_reads_again(store: Spy, stream: StreamLog) -> None:
    counter = Counter(reopen(stream, store.inner))
    slow = Counter(stream)
    for _ in range(4):
        counter.add()
    slow.shared.fetch_updates()
    seen: list[int] = []

    def note(operation: str, key: str) -> None:
        seen.append(slow.shared.get_state())

    for _ in range(3):
        counter.add()
        counter.shared.compact()
    store.hook = note
    assert slow.value == 7
    assert set(seen) == {4}, "nothing between, and never nothing"


def test_truncation_while_it_reads_makes_it_begin_again(store: Spy, stream: StreamLog) -> None:
    counter = Counter(reopen(stream, store.inner))
    fresh = StateSynchronizer(stream, lambda number, added: number + added)
    for _ in range(3):
        counter.add()
    counter.shared.compact()
    left = [2]

    def compact(operation: str, key: str) -> None:
        if "/data/" in key and left:
            left.pop()
            counter.add()
            counter.shared.compact()
            counter.add()
            counter.shared.compact()

    store.hook = compact
    fresh.fetch_updates()
    fresh.fetch_updates()
    assert fresh.get_state() == counter.value == 5


def test_endless_truncation_is_an_error(stream: StreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(stream)
    reads: list[object] = []

    def truncated(*_: object) -> object:
        reads.append(None)
        raise truncation_error()

    monkeypatch.setattr(counter.shared._log, "read_from", truncated)
    with pytest.raises(TooBusy, match="compact less often"):
        counter.shared.fetch_updates()
    assert len(reads) == TRUNCATED_READS


def truncation_error() -> Exception:
    from pravega_spark.errors import TruncatedData

    return TruncatedData("truncated")


def test_truncation_without_a_compaction_is_named(stream: StreamLog) -> None:
    counter = Counter(stream)
    for _ in range(3):
        counter.add()
    truncation.truncate(reopen(stream), at(2), life=1)
    late = StateSynchronizer(reopen(stream), lambda number, added: number + added)
    for call in (late.fetch_updates, lambda: late.initialize(0)):
        with pytest.raises(IllegalState, match="without a compaction"):
            call()
    assert counter.add() == 4, "who knows the state goes on"


@pytest.mark.medium
@pytest.mark.parametrize("step", ["get_mark", "compare_and_set_mark", "truncate_to_revision"])
def test_two_compactions_at_once_leave_the_later_mark(
    stream: StreamLog, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another one compacts just before a step of this one's."""
    one, other = Counter(stream), Counter(reopen(stream))
    one.add()
    one.shared.compact()
    one.add()
    do_step = getattr(one.shared._log, step)

    def overtaken(*arguments: object) -> object:
        monkeypatch.undo()
        other.add()
        other.shared.compact()
        return do_step(*arguments)

    monkeypatch.setattr(one.shared._log, step, overtaken)
    one.shared.compact()
    mark = one.shared._log.get_mark()
    assert mark is not None
    assert mark.offset == 6, "where the other one's state begins"
    assert Counter(reopen(stream)).value == one.value == 3


# -------------------------------------------------------------------------------- wrong arguments


def test_events_of_others_are_refused(stream: StreamLog) -> None:
    write(reopen(stream), [(None, b"hello")])
    shared = StateSynchronizer(stream, max)
    with pytest.raises(IllegalState, match="no state synchronizer wrote"):
        shared.fetch_updates()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda stream: StateSynchronizer(stream, None),  # type: ignore[arg-type]
        lambda stream: StateSynchronizer(stream, max, serializer="json"),  # type: ignore[arg-type]
        lambda stream: StateSynchronizer(stream, max, serializer=str).initialize(1),  # type: ignore[arg-type]
        lambda stream: Counter(stream).shared.update_state_unconditionally("text"),
    ],
)
def test_wrong_functions_and_updates(stream: StreamLog, wrong: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput):
        wrong(stream)
