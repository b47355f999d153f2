"""Conditional updates are linearisable: races, lost answers, threads of a handle, and atomicity."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import (
    BadKeyVersion,
    CommitUnknown,
    ConditionalTableUpdate,
    InvalidInput,
    NoSuchKey,
    StoreError,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import KeyVersion, TableEntry
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.updates import TableInsert, TableModification, TablePut, TableRemove
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange
from tests.harness.failpoints import register
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy

T, LOG = "s/t", "s/_kv_tables/t"
COMMIT = "/_kv_tables/t/events/_delta_log/"


class Side:
    """A process with a table: its own manager and view of one store."""

    def __init__(self, inner: MemoryStore, runtime: FakeRuntime) -> None:
        self.store = Spy(inner)
        self.manager = manager_over(self.store, runtime)

    def open(self) -> KeyValueTable:
        return self.manager.key_value_table(T)

    def commits(self) -> int:
        return self.store.count("put_if_absent", COMMIT)


@pytest.fixture
def sides() -> tuple[Side, Side]:
    runtime = FakeRuntime()
    inner = memory(runtime)
    first, second = Side(inner, runtime), Side(inner, runtime)
    first.manager.create_scope("s")
    first.manager.create_key_value_table(T, KeyValueTableConfiguration("string", partitions=4))
    return first, second


def entry(table: KeyValueTable, key: str) -> TableEntry:
    found = table.get(key, fresh=True)
    assert found is not None
    return found


# --------------------------------------------------------------------------------------- conditions


def test_each_condition_is_decided_by_the_version(sides: tuple[Side, Side]) -> None:
    table = sides[0].open()
    first = table.insert("k", "1")
    with pytest.raises(BadKeyVersion, match="must not exist") as failed:
        table.insert("k", "2")
    assert failed.value.key == "k"
    assert KeyVersion.parse(failed.value.version or "") == first
    second = table.replace("k", "2", str(first))
    for version in (first, KeyVersion(2, *second[1:]), KeyVersion.NOT_EXISTS):
        with pytest.raises(BadKeyVersion):
            table.replace("k", "3", version)
        if version != KeyVersion.NOT_EXISTS:
            with pytest.raises(BadKeyVersion):
                table.remove("k", version=version)
    with pytest.raises(NoSuchKey, match="does not exist"):
        table.replace("j", "3", second)
    with pytest.raises(InvalidInput, match="nothing to remove"):
        table.remove("k", version=KeyVersion.NOT_EXISTS)
    third = table.replace("k", "3", KeyVersion.NO_VERSION)
    table.remove("k", version=third)
    with pytest.raises(NoSuchKey):
        table.remove("k", version=third)
    assert table.insert("k", "4") > third


def test_an_update_is_all_or_nothing_over_all_partitions(sides: tuple[Side, Side]) -> None:
    table, other = sides[0].open(), sides[1].open()
    keys = [f"k{n}" for n in range(20)]
    before = sides[0].commits()
    versions = table.update([TableInsert(key, "1") for key in keys])
    assert sides[0].commits() == before + 1
    assert len({version.segment_id for version in versions}) == 4
    assert [entry(table, key).version for key in keys] == list(versions)
    wrong = [TablePut(key, "2", version) for key, version in zip(keys, versions, strict=True)]
    with pytest.raises(BadKeyVersion):
        table.update([*wrong[:-1], TableInsert(keys[-1], "2")])
    assert {entry(other, key).value for key in keys} == {b"1"}
    mixed: list[TableModification] = [
        TableRemove(keys[0], versions[0]),
        TablePut("new", "2"),
        *wrong[1:],
    ]
    table.update(mixed)
    assert not other.exists(keys[0], fresh=True)
    assert {entry(other, key).value for key in [*keys[1:], "new"]} == {b"2"}


def test_updates_that_are_refused_as_they_stand(sides: tuple[Side, Side]) -> None:
    table = sides[0].open()
    for wrong in (
        [TablePut("k", "1"), TableRemove("k")],
        [TablePut(f"k{n}", "1") for n in range(257)],
        [TablePut(f"k{n}", bytes(1_000_000)) for n in range(17)],
        ["k"],
        TablePut("k", "1"),
        [TablePut("k", "1", "1")],
    ):
        with pytest.raises(InvalidInput):
            table.update(wrong)  # type: ignore[arg-type]
    assert table.update([]) == ()
    assert list(table.keys()) == []


def test_an_update_comes_after_the_puts_of_its_handle(sides: tuple[Side, Side]) -> None:
    table = sides[0].open()
    for n in range(50):
        table.put("k", str(n))
    with pytest.raises(BadKeyVersion):
        table.insert("k", "x")
    assert entry(table, "k").value == b"49"


# -------------------------------------------------------------------------------------------- races


RIVALS: dict[str, Callable[[KeyValueTable], Any]] = {
    "the same key": lambda other: other.put("k", "theirs").result(),
    "another key": lambda other: other.put("other", "theirs").result(),
    "a removal": lambda other: other.remove("k").result(),
    "an update": lambda other: other.update([TablePut("k", "theirs"), TablePut("j", "theirs")]),
}


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("races", [1, 5])
def test_a_lost_race_is_decided_again_on_the_winner(
    sides: tuple[Side, Side], rival: str, races: int
) -> None:
    table, other = sides[0].open(), sides[1].open()
    version = table.insert("k", "1")
    left = [races]

    def lose() -> None:
        if left[0]:
            left[0] -= 1
            RIVALS[rival](other)

    expected = {"the same key": BadKeyVersion, "a removal": NoSuchKey, "an update": BadKeyVersion}
    with each_time("commit.before", lose):
        if rival == "another key":
            table.replace("k", "mine", version)
        else:
            with pytest.raises(expected[rival]):
                table.replace("k", "mine", version)
    found = table.get("k", fresh=True)
    assert (None if found is None else found.value) == {
        "the same key": b"theirs",
        "another key": b"mine",
        "a removal": None,
        "an update": b"theirs",
    }[rival]
    assert sides[1].open().get("k", fresh=True) == found


@contextlib.contextmanager
def each_time(failpoint: str, action: Callable[[], object]) -> Iterator[None]:
    """Run an action at each visit of a failpoint, except at those that it causes itself."""
    inside = [False]

    def run() -> None:
        if not inside[0]:
            inside[0] = True
            try:
                action()
            finally:
                inside[0] = False

    register(failpoint, run)
    try:
        yield
    finally:
        register(failpoint, None)


@pytest.mark.parametrize("rival", RIVALS)
def test_a_rival_of_the_same_process_between_decision_and_commit(rival: str) -> None:
    """Its commit moves the log that both share, so no race is lost at the storage."""
    manager = StreamManager(f"memory://{rival.replace(' ', '-')}")
    manager.create_scope("s")
    manager.create_key_value_table(T, KeyValueTableConfiguration("string"))
    table, other = manager.key_value_table(T), manager.key_value_table(T)
    version = table.insert("k", "1")
    with each_time("table.decided", _once(lambda: RIVALS[rival](other))):
        if rival == "another key":
            assert table.replace("k", "mine", version) == entry(table, "k").version
        else:
            with pytest.raises(ConditionalTableUpdate):
                table.replace("k", "mine", version)
    fresh = StreamManager(manager.root).key_value_table(T)
    assert {e.key: e.version for e in fresh.entries()} == {
        e.key: e.version for e in table.entries()
    }


def _once(action: Callable[[], object]) -> Callable[[], object]:
    left = [action]
    return lambda: left and left.pop()()


def test_a_refusal_is_of_a_version_that_was_the_newest(sides: tuple[Side, Side]) -> None:
    """The handle believes that the key exists; it was removed before the call began."""
    table, other = sides[0].open(), sides[1].open()
    table.insert("k", "1")
    other.remove("k", version=entry(other, "k").version)
    assert table.insert("k", "2")
    version = other.insert("j", "1")
    assert table.replace("j", "2", version)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.RESEND, Fault.LOSE_REQUEST])
def test_a_lost_answer_is_resolved_by_the_commit_itself(
    sides: tuple[Side, Side], fault: Fault
) -> None:
    table, other = sides[0].open(), sides[1].open()
    version = table.insert("k", "0")
    for n in range(1, 4):
        sides[0].store.rules.add(Rule(fault, "put_if_absent", f"*{COMMIT}*", nth=1))
        version = table.replace("k", str(n), version)
        assert entry(other, "k") == entry(table, "k")
        assert entry(table, "k").version == version
    assert sides[0].store.fired["put_if_absent", fault] == 3


def test_an_unknown_outcome_is_said_and_can_be_read(sides: tuple[Side, Side]) -> None:
    table, other = sides[0].open(), sides[1].open()
    version = table.insert("k", "0")
    spy = sides[0].store
    state = {"cut": False}

    def no_storage(operation: str, key: str) -> None:
        if state["cut"]:
            raise StoreError("no answer")
        if operation == "put_if_absent" and COMMIT in key:
            state["cut"] = True

    spy.hook = no_storage
    spy.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", f"*{COMMIT}*", nth=1))
    with pytest.raises(CommitUnknown):
        table.replace("k", "1", version)
    spy.hook = None
    assert entry(other, "k").value == b"1"
    assert entry(table, "k") == entry(other, "k")
    with pytest.raises(BadKeyVersion):
        table.replace("k", "2", version)
    assert table.replace("k", "2", entry(table, "k").version)


def test_a_scale_between_decision_and_commit_routes_again(sides: tuple[Side, Side]) -> None:
    sides[0].manager.create_key_value_table(
        "s/u", KeyValueTableConfiguration("string", scaling=ScalingPolicy.by_event_rate(1))
    )
    table = sides[0].manager.key_value_table("s/u")
    other = sides[1].manager.key_value_table("s/u")
    versions = table.update([TableInsert(f"k{n}", "1") for n in range(8)])

    def rescale() -> None:
        log = other._stream
        view = log.view()
        scale_stream(log, view.active.segment_ids, split(KeyRange(0.0, 1.0), 2), life=view.life)

    left = [rescale]
    with each_time("table.decided", lambda: left and left.pop()()):
        puts = [TablePut(f"k{n}", "2", version) for n, version in enumerate(versions)]
        changed = table.update(puts)
    assert {v.segment_id for v in changed}.isdisjoint({v.segment_id for v in versions})
    assert all(new > old for new, old in zip(changed, versions, strict=True))
    assert {e.key: e.value for e in other.entries()} == {f"k{n}": b"2" for n in range(8)}
    assert {e.version for e in other.entries()} == set(changed)


# ------------------------------------------------------------------------------ threads of a handle


def test_threads_of_a_process_share_commits_and_lose_no_increment() -> None:
    manager = StreamManager("memory://combined")
    manager.create_scope("s")
    manager.create_key_value_table(T, KeyValueTableConfiguration("string", partitions=2))
    tables = [manager.key_value_table(T) for _ in range(2)]
    threads, rounds = 8, 20
    counters = [f"c{n}" for n in range(3)]
    start = threading.Barrier(threads)

    def work(number: int) -> int:
        table, conflicts = tables[number % 2], 0
        start.wait()
        for n in range(rounds):
            conflicts += increment(table, counters[(number + n) % len(counters)])
        return conflicts

    before = manager.key_value_table(T)._stream.view().version
    with ThreadPoolExecutor(threads) as pool:
        conflicts = sum(pool.map(work, range(threads)))
    total = sum(int(entry(tables[0], counter).value) for counter in counters)
    assert total == threads * rounds
    commits = tables[0]._stream.view().version - before
    assert commits <= threads * rounds
    assert conflicts >= 0


def increment(table: KeyValueTable, key: str) -> int:
    """Add 1 to a counter by compare-and-set; return how often another one was first."""
    lost = 0
    while True:
        found = table.get(key, fresh=bool(lost))
        try:
            if found is None:
                table.insert(key, "1")
            else:
                table.replace(key, str(int(found.value) + 1), found.version)
            return lost
        except ConditionalTableUpdate:
            lost += 1


def test_updates_that_wait_share_one_commit(sides: tuple[Side, Side]) -> None:
    """Each is checked on the state with those before it: of two inserts of a key one fails."""
    table = sides[0].open()
    before = sides[0].commits()
    answers: dict[int, object] = {}

    def insert(number: int) -> None:
        try:
            answers[number] = table.insert(f"k{number // 2}", str(number))
        except BadKeyVersion as error:
            answers[number] = error

    with table._index.lock:
        threads = [threading.Thread(target=insert, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        combiner = table._shared.combiner
        while len(combiner._waiting) < 8:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert sides[0].commits() == before + 1
    for key in range(4):
        pair = answers[2 * key], answers[2 * key + 1]
        refused = [one for one in pair if isinstance(one, BadKeyVersion)]
        (version,) = (one for one in pair if isinstance(one, KeyVersion))
        assert len(refused) == 1
        assert refused[0].version is None
        assert entry(table, f"k{key}").version == version


@pytest.mark.medium
def test_a_get_never_sees_a_part_of_an_update() -> None:
    manager = StreamManager("memory://torn")
    manager.create_scope("s")
    manager.create_key_value_table(T, KeyValueTableConfiguration("string", partitions=4))
    table, stop = manager.key_value_table(T), threading.Event()
    keys = [f"k{n}" for n in range(6)]
    table.update([TableInsert(key, "0") for key in keys])
    wrong = list[str]()

    def read() -> None:
        while not stop.is_set():
            first = int(table.get(keys[0]).value)  # type: ignore[union-attr]
            rest = [int(table.get(key).value) for key in keys[1:]]  # type: ignore[union-attr]
            if any(one < first for one in rest):
                wrong.append(f"{first} then {rest}")
            together = {e.value for e in table.get_all(keys) if e is not None}
            if len(together) != 1:
                wrong.append(f"{together}")

    with ThreadPoolExecutor(3) as pool:
        reads = [pool.submit(read) for _ in range(3)]
        for n in range(1, 60):
            table.update([TablePut(key, str(n)) for key in reversed(keys)])
        stop.set()
        for one in reads:
            one.result()
    assert wrong == []
