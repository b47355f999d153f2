"""The runner of ``make bench-peers``: turns, medians, what is not there; and real peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from rich.console import Console

from bench.harness.context import Context
from bench.peers import runner
from bench.peers.measures import BY_NAME, MEASURES, Measure
from bench.peers.ours import Ours
from bench.peers.parquet import PlainParquet
from bench.peers.peer import Absent, Found, Limit, Peer, Place
from bench.peers.registry import PEERS

TINY = Limit(3, 5.0)
ONCE = ("append", "end_to_end", "pipelined", "transaction", "catch_up", "single_rows", "stored")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    context = Context(True, Console(quiet=True), folder=tmp_path / "run")
    context.folder.mkdir()
    yield Place(context, 500)
    context.close()


def tiny(name: str, rounds: int = 1) -> Measure:
    return replace(BY_NAME[name], rounds={"small": rounds}, limits={"small": TINY})


def quiet(_: str) -> None:
    pass


def peer_of(
    peer_name: str, measured: Callable[[], Found], without: Mapping[str, str] | None = None
) -> type[Peer]:
    class Made(Peer):
        name: ClassVar[str] = peer_name
        cannot: ClassVar[Mapping[str, str]] = without or {}

        def fill(self) -> None:
            pass

        def append(self, limit: Limit) -> Found:
            assert limit == TINY
            return measured()

    return Made


def run_of(place: Place, *peers: type[Peer], rounds: int = 1) -> runner.Run:
    run = runner.Run()
    with runner.started([peer(place) for peer in peers], run, quiet) as had:
        runner.measure([tiny("append", rounds)], had, "small", run, quiet)
    return run


@pytest.mark.medium
def test_peers_take_turns_and_every_other_round_is_reversed(place: Place) -> None:
    turns: list[str] = []

    def by(name: str, times: list[float]) -> Callable[[], Found]:
        values = iter(times)

        def measured() -> Found:
            turns.append(name)
            return {"p50": next(values), "p99": 9.0}

        return measured

    first = peer_of("first", by("first", [100.0, 3.0, 1.0, 2.0]))
    second = peer_of("second", by("second", [100.0, 5.0, 7.0, 6.0]))
    run = run_of(place, first, second, rounds=3)
    assert turns == ["first", "second", "second", "first", "first", "second", "second", "first"]
    assert [r for r in run.results if r.figure == "p50"] == [
        runner.Result("append", "p50", "first", 2.0, 1.0, 3.0),  # the round before is left out
        runner.Result("append", "p50", "second", 6.0, 5.0, 7.0),
    ]


@pytest.mark.medium
def test_failed_measure_is_a_result_of_its_own_and_the_others_go_on(place: Place) -> None:
    def fails() -> Found:
        raise OSError("disk full")

    run = run_of(place, peer_of("broken", fails), peer_of("sound", lambda: {"p50": 1, "p99": 2}))
    broken, sound = (r for r in run.results if r.figure == "p50")
    assert (broken.value, broken.reason) == (None, "failed: OSError: disk full")
    assert (sound.value, sound.reason) == (1, "")
    assert run.failures == ["broken: append"]


@pytest.mark.medium
def test_peer_without_such_a_thing_says_why(place: Place) -> None:
    measured = peer_of("sound", lambda: {"p50": 1, "p99": 2})
    run = run_of(place, peer_of("other", dict, {"append": "it only reads"}), measured)
    assert [(r.value, r.reason) for r in run.results if r.peer == "other"] == [
        (None, "it only reads")
    ] * 2
    assert run.failures == []


@pytest.mark.medium
def test_peer_that_cannot_be_had_is_named_with_its_reason(place: Place) -> None:
    stopped: list[str] = []

    class Missing(peer_of("missing", dict)):  # type: ignore[misc]
        def start(self) -> None:
            raise Absent("its jars were not fetched")

        def stop(self) -> None:
            stopped.append(self.name)

    run = run_of(place, Missing, peer_of("sound", lambda: {"p50": 1, "p99": 2}))
    assert run.absent == {"missing": "its jars were not fetched"}
    assert {result.peer for result in run.results} == {"sound"}
    assert stopped == ["missing"]


@pytest.mark.medium
def test_peer_that_does_not_start_is_a_failure_and_the_others_go_on(place: Place) -> None:
    class Broken(peer_of("broken", dict)):  # type: ignore[misc]
        def start(self) -> None:
            raise OSError("no port is free")

    run = run_of(place, Broken, peer_of("sound", lambda: {"p50": 1, "p99": 2}))
    assert run.absent == {"broken": "failed: OSError: no port is free"}
    assert run.failures == ["broken: start"]
    assert {result.peer for result in run.results} == {"sound"}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_each_peer_measures_everything_or_says_why_not(peer: type[Peer]) -> None:
    for measure in MEASURES:
        is_there = getattr(peer, measure.name) is not getattr(Peer, measure.name)
        assert is_there != (measure.name in peer.cannot), measure.name
    assert set(peer.cannot) <= set(BY_NAME)


@pytest.mark.extended
def test_tiny_run_of_real_peers_without_spark_finds_every_figure(place: Place) -> None:
    run = runner.Run()
    peers = [PlainParquet(place), Ours(place)]
    with runner.started(peers, run, quiet) as had:
        runner.measure([tiny(name) for name in ONCE], had, "small", run, quiet)
    assert [result.reason for result in run.results] == [""] * len(run.results)
    found = {(r.peer, r.measure, r.figure) for r in run.results}
    assert found == {
        (peer.name, name, figure)
        for peer in peers
        for name in ONCE
        for figure in BY_NAME[name].shown
    }
    assert all(result.value is not None and result.value > 0 for result in run.results)
    rows = {result.value for result in run.results if result.figure == "rows"}
    assert rows == {TINY.calls}
    stored = {
        result.peer: result.value or 0.0 for result in run.results if result.figure == "bytes"
    }
    assert all(40 < size < 200 for size in stored.values()), stored
