"""Verbs in flight at once are counted by object, and a long run fails for two that never were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.sim import coverage
from tests.sim.in_flight import Asked, InFlight


@dataclass
class Named:
    """What is counted of a process."""

    name: str
    alive: bool = True


class Counted:
    """Calls, each of one step more than the one before."""

    def __init__(self) -> None:
        self.coverage: Counter[str] = Counter()
        self._in_flight = InFlight(self.coverage)
        self._number = 0

    def begin(self, process: Any, operation: str, **arguments: Any) -> int:
        self._number += 1
        self._in_flight.begin(self._number, Asked(process, operation, arguments, self._number))
        return self._number

    def end(self, number: int) -> None:
        self._number += 1
        self._in_flight.end(number, self._number)

    def one(self, process: Any, operation: str, **arguments: Any) -> None:
        self.end(self.begin(process, operation, **arguments))


def test_calls_on_one_object_are_in_flight_at_once() -> None:
    run, n, q = Counted(), Named("n0"), Named("q1.2")
    writing = run.begin(n, "write", stream="s/t")
    run.one(q, "read", stream="s/u")
    run.one(q, "release", stream="s/t")
    run.end(writing)
    run.one(q, "read", stream="s/t")
    pairs = {name for name in run.coverage if name.startswith("pair ")}
    assert pairs == {"pair s/t: release & write"}


def test_call_of_a_killed_process_is_in_flight_no_more() -> None:
    run, n, q = Counted(), Named("n0"), Named("q1")
    run.begin(n, "write", stream="s/t")
    n.alive = False
    run.one(q, "release", stream="s/t")
    assert not [name for name in run.coverage if name.startswith("pair ")]


def test_transaction_is_on_the_streams_of_its_stage() -> None:
    run, j, r = Counted(), Named("j0"), Named("r1")
    run.one(j, "stage", transaction="t", streams={"s/t": [], "s/u": []})
    commit = run.begin(j, "commit", transaction="t")
    run.one(r, "read", stream="s/u")
    run.end(commit)
    assert run.coverage["pair s/u: commit & read"] == 1


def test_two_verbs_of_a_shared_object_are_wanted_together() -> None:
    run, n, q, u = Counted(), Named("n0"), Named("q1"), Named("u2")
    for _ in range(2):
        run.one(n, "write", stream="s/t")
    run.one(q, "release", stream="s/t")
    run.one(u, "seal", stream="s/own")
    run.one(u, "delete_stream", stream="s/own")
    wanted = ["pair s/t: release & release", "pair s/t: release & write", "pair s/t: write & write"]
    assert coverage.wanted_pairs(run.coverage) == wanted
    assert set(wanted) <= set(coverage.missing(run.coverage))
    assert coverage.programs_of("pair s/t: release & write", run.coverage) == "nqqqnnn"
    assert coverage.programs_of("fault kill", run.coverage) == ""


def test_long_run_fails_for_a_pair_that_was_never_in_flight() -> None:
    run, n, q = Counted(), Named("n0"), Named("q1")
    run.one(n, "write", stream="s/t")
    run.one(q, "write", stream="s/t")
    every = dict.fromkeys(coverage.wanted(), 1) | dict.fromkeys(coverage.NOT_REACHED, 0)
    covered = every | run.coverage
    told = "pair s/t: write & write is never reached"
    assert told in coverage.wrong(covered, coverage.LONG_RUN)
    assert told not in coverage.wrong(covered | {"pair s/t: write & write": 1}, coverage.LONG_RUN)
    assert coverage.wrong(covered, coverage.LONG_RUN - 1) == []
