"""Every fault has its documented effect, by rule and by seed."""

from __future__ import annotations

import random

import pytest

from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import StoreError, StoreFull
from tests.harness.fault_plans import WRITE_FAULTS, RandomFaults, Rule, Rules
from tests.harness.faulty_store import Fault, FaultyStore


def faulty(*rules: Rule) -> FaultyStore:
    return FaultyStore(MemoryStore(), Rules(*rules))


@pytest.mark.parametrize(
    ("fault", "answer", "stored"),
    [
        (Fault.LOSE_ANSWER, PutOutcome.UNKNOWN, b"data"),
        (Fault.LOSE_REQUEST, PutOutcome.UNKNOWN, None),
        (Fault.RESEND, PutOutcome.EXISTS, b"data"),
        (Fault.DELAY, PutOutcome.UNKNOWN, None),
        (Fault.TORN, PutOutcome.UNKNOWN, b"da"),
        (Fault.BIT_FLIP, PutOutcome.CREATED, b"daua"),
    ],
)
def test_create_under_each_fault(fault: Fault, answer: PutOutcome, stored: bytes | None) -> None:
    store = faulty(Rule(fault))
    assert store.put_if_absent("key", b"data") is answer
    assert store.inner.get_many(["key"]) == [stored]
    assert store.fired == {("put_if_absent", fault): 1}


@pytest.mark.parametrize(
    ("fault", "stored"),
    [
        (Fault.LOSE_ANSWER, b"data"),
        (Fault.LOSE_REQUEST, b"old"),
        (Fault.DELAY, b"old"),
        (Fault.TORN, b"da"),
    ],
)
@pytest.mark.parametrize("operation", ["put", "writer"])
def test_put_under_each_fault(fault: Fault, stored: bytes, operation: str) -> None:
    store = faulty(Rule(fault, operation))
    store.inner.put("key", b"old")
    with pytest.raises(StoreError, match="no answer"):
        _put(store, "key", b"data", operation)
    assert store.inner.get("key") == stored
    assert store.delayed == store.deliver() == (fault is Fault.DELAY)
    assert store.inner.get("key") == (b"data" if fault is Fault.DELAY else stored)


def _put(store: FaultyStore, key: str, data: bytes, operation: str) -> None:
    if operation == "put":
        store.put(key, data)
    else:
        with store.writer(key) as file:
            file.write(data)


def test_flipped_bit_of_a_put_goes_unnoticed() -> None:
    store = faulty(Rule(Fault.BIT_FLIP, "put", nth=1))
    store.put("key", b"data")
    assert store.get("key") == b"daua"


@pytest.mark.parametrize(
    ("fault", "stays"),
    [(Fault.LOSE_ANSWER, False), (Fault.LOSE_REQUEST, True), (Fault.DELAY, True)],
)
def test_delete_under_each_fault(fault: Fault, stays: bool) -> None:
    store = faulty(Rule(fault, "delete", "b"))
    store.inner.put("a", b"")
    with pytest.raises(StoreError):
        store.delete(["a", "b"])
    assert store.inner.exists("a") is stays
    store.deliver()
    assert store.inner.exists("a") is (fault is Fault.LOSE_REQUEST)


def test_refusal_is_raised_before_anything_is_done() -> None:
    store = faulty(Rule(Fault.REFUSE, "put"), Rule(StoreFull("no space"), "*"))
    with pytest.raises(StoreError, match="refused by the plan"):
        store.put("key", b"")
    for call in (
        lambda: store.put_if_absent("key", b""),
        lambda: store.get("key"),
        lambda: store.get_range("key", 0, 1),
        lambda: store.get_many(["key"]),
        lambda: store.exists("key"),
        lambda: store.delete(["key"]),
        lambda: store.list(""),
        lambda: store.folders(""),
        lambda: store.open("key"),
        lambda: store.make_durable(""),
    ):
        with pytest.raises(StoreFull, match="no space"):
            call()
    assert store.inner.list("") == []
    assert len(store.fired) == 11


def test_damaged_reads_leave_the_object_intact() -> None:
    store = faulty(Rule(Fault.SHORT_READ, "get"), Rule(Fault.BIT_FLIP, "open"))
    store.put("key", b"data")
    assert store.get("key") == b"da"
    assert store.open("key").read() == b"daua"
    assert store.get_many(["key", "absent"]) == [b"data", None]
    assert faulty(Rule(Fault.BIT_FLIP)).inner.get_many(["key"]) == [None]


def test_stale_listing_misses_what_was_created_last() -> None:
    rules = Rules(Rule(Fault.STALE_LIST, "list"), Rule(Fault.STALE_LIST, "exists", nth=1))
    store = FaultyStore(MemoryStore(), rules)
    for key in ("log/1", "log/2"):
        store.put_if_absent(key, b"")
    assert [entry.key for entry in store.list("log")] == ["log/1"]
    assert not store.exists("log/2")
    assert store.exists("log/2")


def test_partial_listing_leaves_out_every_second_object_and_folder() -> None:
    rules = Rules(Rule(Fault.PARTIAL_LIST, "list", nth=1), Rule(Fault.PARTIAL_LIST, "folders"))
    store = FaultyStore(MemoryStore(), rules)
    for name in ("a/1", "b/2", "c/3"):
        store.put(name, b"")
    assert [entry.key for entry in store.list("")] == ["b/2"]
    assert store.folders("") == ["b"]
    assert len(store.list("")) == 3


def test_rules_count_their_own_calls_and_the_first_that_applies_decides() -> None:
    rules = Rules(
        Rule(Fault.LOSE_ANSWER, "put*", "log/*", nth=2),
        Rule(Fault.REFUSE, "put*", "*/b/*", nth=1),
    )
    calls = [("put", "log/a/1"), ("get", "log/1"), ("put_if_absent", "log/b/1"), ("put", "x/b/2")]
    assert [rules(*call) for call in calls] == [None, None, Fault.LOSE_ANSWER, None]
    rules.clear()
    rules.add(Rule(Fault.DELAY))
    assert rules("put", "log/a/1") is Fault.DELAY


def test_same_seed_gives_the_same_faults_and_every_fault_occurs() -> None:
    def run(seed: int) -> tuple[list[object], dict[tuple[str, Fault], int]]:
        store = FaultyStore(MemoryStore(), RandomFaults(random.Random(seed), 0.5))
        history: list[object] = []
        for number in range(300):
            key = f"k{number % 7}"
            for call in (
                lambda: store.put_if_absent(key, b"%d" % number),  # noqa: B023
                lambda: store.put(key, b"%d" % number),  # noqa: B023
                lambda: _put(store, key, b"%d" % number, "writer"),  # noqa: B023
                lambda: store.delete([key]),  # noqa: B023
                store.deliver,
            ):
                try:
                    history.append(call())
                except StoreError as error:
                    history.append(str(error))
        history.append(store.inner.list(""))
        return [str(item).replace(store.url, "") for item in history], dict(store.fired)

    assert run(1) == run(1)
    assert run(1)[0] != run(2)[0]
    wanted = {(operation, fault) for operation, faults in WRITE_FAULTS.items() for fault in faults}
    assert set(run(1)[1]) == wanted


def test_no_fault_at_probability_zero() -> None:
    plan = RandomFaults(random.Random(1), 0.0)
    assert {plan("put", "key") for _ in range(100)} == {None}
    assert plan("list", "") is None
