"""Updates of one process that wait at the same time are one commit, each with its own outcome."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CommitUnknown, ForkedProcess, InvalidInput, StoreError
from tests.harness.fake_runtime import FakeRuntime, SkippingRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy
from tests.unit.engine.state.test_synchronizer import Counts, State, add, opened

OTHERS = 8


class QuickRuntime(SkippingRuntime):
    """Real threads, whose sleeps only move the clock."""

    def sleep(self, seconds: float) -> None:
        self.skip(seconds)


class Calls:
    """Calls in threads of a process whose first commit waits until the test lets it go on."""

    def __init__(self) -> None:
        self.store = Spy(MemoryStore())
        self.runtime = QuickRuntime()
        self.sync: Synchronizer[State] = Synchronizer(self.store, "s/x", Counts(), self.runtime)
        self.sync.table.log.maintain = None
        self.sync.initialise({"a": 0})
        self.begun, self.may_go = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.outcomes: list[Any] = []
        self.store.hook = self._hold

    def _hold(self, operation: str, key: str) -> None:
        if operation == "put_if_absent" and not self.begun.is_set():
            self.begun.set()
            assert self.may_go.wait(60)

    def start(self, call: Callable[[], Any]) -> None:
        def run() -> None:
            try:
                self.outcomes.append(call())
            except BaseException as error:
                self.outcomes.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)

    def lead(self, call: Callable[[], Any] | None = None) -> None:
        """Start a call whose commit waits."""
        self.start(call or (lambda: self.sync.update("ADD", add("a"))))
        assert self.begun.wait(60)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.sync._queue._waiting) < count:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def queue(self, call: Callable[[], Any]) -> None:
        """Start a call that waits behind those that wait."""
        count = len(self.sync._queue._waiting)
        self.start(call)
        self.wait_for(count + 1)

    def end(self) -> list[Any]:
        self.may_go.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.outcomes

    def stored(self) -> State:
        fetched = opened(self.store.inner).fetch()
        assert fetched is not None
        return fetched.state


@pytest.fixture
def calls() -> Iterator[Calls]:
    made = Calls()
    yield made
    made.may_go.set()


def test_updates_that_wait_are_one_commit_and_each_gets_its_value(calls: Calls) -> None:
    calls.lead()
    for n in range(OTHERS):
        given = "MORE" if n == 3 else "ADD", add("a"), {"who": f"w{n}", "same": "x"}
        calls.queue(partial(calls.sync.update, *given))
    assert sorted(calls.end()) == list(range(OTHERS + 1))
    assert calls.sync.local.state == {"a": OTHERS + 1} == calls.stored()
    assert calls.sync.local.version == 2
    (commit,) = calls.sync.table.log.reader.span(1, 2)
    assert commit.operation == "ADD, MORE"
    named = {"who": ",".join(f"w{n}" for n in range(OTHERS)), "same": "x"}
    assert {k: json.loads(v) for k, v in commit.info["operationParameters"].items()} == named
    assert len(commit.adds) == 1
    assert calls.store.count("put_if_absent") == 3, "one attempt for all"


def test_error_of_one_update_fails_none_that_shares_its_commit(calls: Calls) -> None:
    def refuse(state: State) -> tuple[State, None]:
        raise InvalidInput(f"no, {state['a']}")

    def bug(state: State) -> tuple[State, None]:
        raise ZeroDivisionError

    calls.lead()
    calls.queue(lambda: calls.sync.update("ADD", add("a")))
    calls.queue(lambda: calls.sync.update("ADD", refuse))
    calls.queue(lambda: calls.sync.update("ADD", bug))
    calls.queue(lambda: calls.sync.update("ADD", lambda state: (None, "seen")))
    calls.queue(lambda: calls.sync.update("ADD", add("a")))
    found = calls.end()
    assert sorted(str(one) for one in found) == ["", "0", "1", "2", "no, 2", "seen"]
    assert calls.stored() == {"a": 3}


def test_updates_that_change_nothing_commit_nothing(calls: Calls) -> None:
    calls.lead()
    calls.queue(lambda: calls.sync.update("ADD", add("a", 5)))
    calls.queue(lambda: calls.sync.update("ADD", add("a", -5)))
    assert sorted(calls.end()) == [0, 1, 6]
    assert calls.sync.local.version == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_lost_answer_of_a_shared_commit_is_found_out_once_for_all(
    calls: Calls, fault: Fault
) -> None:
    calls.lead()
    for _ in range(OTHERS):
        calls.queue(lambda: calls.sync.update("ADD", add("a")))
    calls.store.rules.add(Rule(fault, "put_if_absent", nth=1))
    calls.store.calls.clear()
    assert sorted(calls.end()) == list(range(OTHERS + 1))
    assert calls.stored() == {"a": OTHERS + 1}
    assert calls.store.count("get", "_delta_log/00000000000000000002") <= 2


def test_shared_commit_with_an_unknown_outcome_is_unknown_to_all_and_to_no_later_one(
    calls: Calls,
) -> None:
    calls.lead()
    for _ in range(OTHERS):
        calls.queue(lambda: calls.sync.update("ADD", add("a")))
    key = "*_delta_log/00000000000000000002.json"
    calls.store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", key))
    calls.store.rules.add(Rule(StoreError("down"), "get", key))
    found = calls.end()
    unknown = [one for one in found if isinstance(one, CommitUnknown)]
    assert (len(unknown), len({id(one) for one in unknown})) == (OTHERS, OTHERS)
    assert [one for one in found if not isinstance(one, CommitUnknown)] == [0]
    calls.store.rules.clear()
    before = calls.stored()["a"]
    assert calls.sync.update("ADD", add("a")) == before


def test_storage_that_fails_fails_all_that_wait_for_it_once(calls: Calls) -> None:
    calls.lead()
    for _ in range(OTHERS):
        calls.queue(lambda: calls.sync.update("ADD", add("a")))
    calls.store.rules.add(Rule(StoreError("down"), "*", "*/data/*"))
    found = calls.end()
    assert sorted(str(one) for one in found) == ["0"] + OTHERS * ["down"]
    calls.store.rules.clear()
    assert calls.sync.update("ADD", add("a")) == 1


def test_interrupted_leader_leaves_no_caller_waiting_or_wrong(calls: Calls) -> None:
    calls.lead()
    for _ in range(OTHERS):
        calls.queue(lambda: calls.sync.update("ADD", add("a")))

    def interrupt(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            calls.store.hook = None
            calls.queue(lambda: calls.sync.update("ADD", add("late")))
            raise KeyboardInterrupt

    calls.store.hook = interrupt
    calls.may_go.set()
    deadline = time.monotonic() + 60
    while len(calls.outcomes) < OTHERS + 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    found = sorted(type(one).__name__ for one in calls.end())
    assert found == ["CommitUnknown"] * (OTHERS - 1) + ["KeyboardInterrupt", "int", "int"]
    assert calls.stored() == {"a": 1, "late": 1}


def test_interrupted_caller_takes_its_update_back_while_it_waits(calls: Calls) -> None:
    calls.lead()
    waits = calls.runtime.wait

    def interrupted(event: threading.Event, seconds: float | None) -> None:
        calls.runtime.wait = waits  # type: ignore[method-assign]
        raise KeyboardInterrupt

    calls.queue(lambda: calls.sync.update("ADD", add("a")))
    calls.runtime.wait = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        calls.sync.update("ADD", add("a", 100))
    calls.queue(lambda: calls.sync.update("ADD", add("a")))
    assert sorted(calls.end()) == [0, 1, 2]
    assert calls.stored() == {"a": 3}


def test_update_in_a_signal_handler_of_the_leading_thread_waits_for_nobody() -> None:
    store = Spy()
    made = opened(store)
    made.initialise({"a": 0})
    handled: list[int] = []

    def handle(operation: str, key: str) -> None:
        if operation == "put_if_absent" and not handled:
            handled.append(-1)
            handled.append(made.update("ADD", add("a", 10)))

    store.hook = handle
    assert made.update("ADD", add("a")) == 10
    assert handled == [-1, 0]
    assert made.local.state == {"a": 11}


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_forked_child_waits_for_no_leader_of_its_parent(calls: Calls) -> None:
    calls.lead()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            calls.sync.update("ADD", add("a"))
        except ForkedProcess:
            status = 0
        finally:
            os._exit(status)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done == (child, 0)
    assert calls.end() == [0]


def test_racing_processes_with_many_threads_lose_no_update() -> None:
    store = MemoryStore()
    opened(store).initialise({"a": 0})
    copies = [opened(store, QuickRuntime()) for _ in range(3)]  # type: ignore[arg-type]

    def work(copy: Synchronizer[State]) -> None:
        for _ in range(10):
            copy.apply("ADD", lambda state: {"a": state["a"] + 1})

    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fetched = opened(store, FakeRuntime()).fetch()
    assert fetched is not None
    assert fetched.state == {"a": 120}
