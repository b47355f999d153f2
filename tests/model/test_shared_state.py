"""Revisioned streams against a list, and state synchronizers against a fold of its updates.

Two processes share the storage. Each step may lose the answer of a commit, or the request, and the
other process may write just before a commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.errors import InvalidInput, TruncatedData
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.shared_state.revisioned_stream import Revision
from pravega_spark.shared_state.state_synchronizer import StateSynchronizer
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

EXAMPLES = sized(8, 1_000, "SHARED_STATE_EXAMPLES")
S = "s/t"
COMMITS = "*/events/_delta_log/*"
SIDES = st.integers(0, 1)
VALUES = st.binary(max_size=3)
PLACES = st.floats(0, 1)
FAULTS = st.sampled_from([None, None, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND])


class TwoProcesses(RuleBasedStateMachine):
    """One stream in two processes, either of which may act just before a commit of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.runtime = FakeRuntime()
        inner = memory(self.runtime)
        self.stores = [Spy(inner), Spy(inner)]
        manager = self.manager(0)
        manager.create_scope("s")
        manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))

    def manager(self, side: int) -> StreamManager:
        return manager_over(self.stores[side], self.runtime)

    def trouble(
        self, side: int, fault: Fault | None, rival: Callable[[], object] | None = None
    ) -> None:
        """Let the next commit of a process fail, and something happen before it."""
        store = self.stores[side]
        if fault is not None:
            store.rules.add(Rule(fault, "put_if_absent", COMMITS, nth=1))

        def overtake(operation: str, key: str) -> None:
            if operation == "put_if_absent" and rival is not None:
                store.hook = None
                rival()

        store.hook = None if rival is None else overtake

    def calm(self) -> None:
        for store in self.stores:
            store.hook = None
            store.rules.clear()


class RevisionMachine(TwoProcesses):
    """The model is the list of all values, the number of truncated ones, and the mark."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bytes] = []
        self.head = 0
        self.mark: int | None = None
        self.logs = [self.manager(side).revisioned_stream(S) for side in range(2)]

    def at(self, offset: int) -> Revision:
        return Revision(S, 1, 0, offset)

    def place(self, part: float) -> int:
        """Return the offset at a part of the stream's length; 1 is the latest."""
        return round(len(self.values) * part)

    def other_writes(self, side: int, value: bytes) -> Callable[[], object]:
        def write() -> None:
            revision = self.logs[1 - side].write_unconditionally(value)
            self.values.append(value)
            assert revision == self.at(len(self.values))

        return write

    @rule(
        side=SIDES,
        back=st.sampled_from([0, 0, 0, 1]),
        value=VALUES,
        rival=st.none() | VALUES,
        fault=FAULTS,
    )
    def write_conditionally(
        self, side: int, back: int, value: bytes, rival: bytes | None, fault: Fault | None
    ) -> None:
        expected = max(0, len(self.values) - back)
        self.trouble(side, fault, None if rival is None else self.other_writes(side, rival))
        found = self.logs[side].write_conditionally(self.at(expected), value)
        self.calm()
        if expected == len(self.values):
            self.values.append(value)
            assert found == self.at(len(self.values))
        else:
            assert found is None

    @rule(side=SIDES, value=VALUES, rival=st.none() | VALUES, fault=FAULTS)
    def write_unconditionally(
        self, side: int, value: bytes, rival: bytes | None, fault: Fault | None
    ) -> None:
        self.trouble(side, fault, None if rival is None else self.other_writes(side, rival))
        found = self.logs[side].write_unconditionally(value)
        self.calm()
        self.values.append(value)
        assert found == self.at(len(self.values))

    @rule(side=SIDES, start=PLACES, end=st.none() | PLACES)
    def read(self, side: int, start: float, end: float | None) -> None:
        log, first = self.logs[side], self.place(start)
        last = len(self.values) if end is None else self.place(end)

        def found() -> list[tuple[Revision, bytes]]:
            if end is None:
                return [(one.revision, one.value) for one in log.read_from(self.at(first))]
            rng = log.read_range(self.at(first), self.at(last))
            return [(one.revision, one.value) for one in rng]

        if last < first:
            with pytest.raises(InvalidInput):
                found()
        elif first < min(self.head, last):
            with pytest.raises(TruncatedData):
                found()
        else:
            wanted = enumerate(self.values[first:last], first + 1)
            assert found() == [(self.at(offset), value) for offset, value in wanted]

    @rule(side=SIDES, expected=st.none() | PLACES, mark=st.none() | PLACES, fault=FAULTS)
    def set_mark(
        self, side: int, expected: float | None, mark: float | None, fault: Fault | None
    ) -> None:
        """Compare with the mark itself, or half of the time with any other."""
        known = self.mark if expected is None or expected < 0.5 else self.place(expected)
        wanted = None if mark is None else self.place(mark)
        self.trouble(side, fault)
        done = self.logs[side].compare_and_set_mark(
            None if known is None else self.at(known), None if wanted is None else self.at(wanted)
        )
        self.calm()
        assert done == (known == self.mark)
        if done:
            self.mark = wanted

    @rule(side=SIDES, part=PLACES, fault=FAULTS)
    def truncate(self, side: int, part: float, fault: Fault | None) -> None:
        offset = self.place(part)
        self.trouble(side, fault)
        self.logs[side].truncate_to_revision(self.at(offset))
        self.calm()
        self.head = max(self.head, offset)

    @rule(side=SIDES)
    def reopen(self, side: int) -> None:
        self.logs[side].close()
        self.logs[side] = self.manager(side).revisioned_stream(S)

    @invariant()
    def both_processes_agree_with_the_model(self) -> None:
        for log in self.logs:
            assert log.fetch_latest_revision() == self.at(len(self.values))
            assert log.fetch_oldest_revision() == self.at(self.head)
            assert log.get_mark() == (None if self.mark is None else self.at(self.mark))

    def teardown(self) -> None:
        for log in self.logs:
            log.close()
        events = [event.data for event in self.manager(0).read(S)]
        assert events == self.values[self.head :]


Updates = list[int]
State = list[int]
NUMBERS = st.lists(st.integers(0, 9), max_size=3)


def applied(state: State, update: int) -> State:
    """Return how many updates there were, and a number that depends on their order."""
    count, found = state
    return [count + 1, (31 * found + update) % 1_000_003]


class SynchronizerMachine(TwoProcesses):
    """The model is the list of the states after each update."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[State] = []
        self.shared = [self.opened(side) for side in range(2)]
        self.known = [-1, -1]
        """How many updates each process had applied when it was looked at last."""

    def opened(self, side: int) -> StateSynchronizer:
        return self.manager(side).state_synchronizer(S, applied)

    @initialize(side=SIDES, first=st.integers(0, 9))
    def begin(self, side: int, first: int) -> None:
        for who, number in ((side, first), (1 - side, first + 1)):
            assert self.shared[who].initialize([0, number]) == (who == side)
        self.states.append([0, first])

    def take(self, updates: Updates) -> None:
        for update in updates:
            self.states.append(applied(self.states[-1], update))

    def other_updates(self, side: int, updates: Updates) -> Callable[[], object]:
        def update() -> None:
            self.shared[1 - side].update_state_unconditionally(updates)
            self.take(updates)

        return update

    @rule(side=SIDES, updates=NUMBERS, rival=st.none() | NUMBERS, fault=FAULTS)
    def update(
        self, side: int, updates: Updates, rival: Updates | None, fault: Fault | None
    ) -> None:
        """The generator's last call sees the state on which its updates are applied."""
        seen: list[State] = []

        def generate(state: State, into: list[Any]) -> int:
            seen.append(state)
            into += updates
            return state[0]

        self.trouble(side, fault, None if rival is None else self.other_updates(side, rival))
        result = self.shared[side].update_state(generate)
        self.calm()
        assert result == seen[-1][0]
        assert seen[-1] == self.states[result]
        if updates:
            assert seen[-1] == self.states[-1]
            self.take(updates)
            assert self.shared[side].get_state() == self.states[-1]

    @rule(side=SIDES, updates=NUMBERS, fault=FAULTS)
    def update_unconditionally(self, side: int, updates: Updates, fault: Fault | None) -> None:
        self.trouble(side, fault)
        self.shared[side].update_state_unconditionally(updates)
        self.calm()
        self.take(updates)

    @rule(side=SIDES)
    def fetch(self, side: int) -> None:
        self.shared[side].fetch_updates()
        assert self.shared[side].get_state() == self.states[-1]

    @rule(side=SIDES, rival=st.none() | NUMBERS, fault=FAULTS)
    def compact(self, side: int, rival: Updates | None, fault: Fault | None) -> None:
        self.trouble(side, fault, None if rival is None else self.other_updates(side, rival))
        self.shared[side].compact()
        self.calm()

    @rule(side=SIDES)
    def reopen(self, side: int) -> None:
        self.shared[side].close()
        self.shared[side] = self.opened(side)
        self.shared[side].fetch_updates()
        assert self.shared[side].get_state() == self.states[-1]

    @invariant()
    def each_process_has_a_state_that_there_was_and_never_goes_back(self) -> None:
        for side, shared in enumerate(self.shared):
            state = shared.get_state()
            if state is not None:
                assert state == self.states[state[0]]
                assert state[0] >= self.known[side]
                self.known[side] = state[0]

    def teardown(self) -> None:
        for shared in self.shared:
            if self.states:
                shared.fetch_updates()
                assert shared.get_state() == self.states[-1]
            shared.close()


LIMITS = settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None)
RevisionMachine.TestCase.settings = SynchronizerMachine.TestCase.settings = LIMITS
test_revisions = pytest.mark.long(RevisionMachine.TestCase)
test_synchronizers = pytest.mark.long(SynchronizerMachine.TestCase)
