"""Manifests of an open transaction that are gone: no commit lacks what a flush acknowledged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pravega_spark.errors import CorruptLog
from pravega_spark.integrity.stream_integrity import check_stream
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction
from tests.harness.transaction_world import World, begun

EVENTS = [b"a", b"b", b"c"]


@pytest.fixture
def world() -> World:
    return World()


def flushed(world: World) -> Transaction:
    """Three manifests, of one event each."""
    txn = begun(world.stream)
    for event in EVENTS:
        txn.write_event(event, "k")
        txn.flush()
    return txn


def lose(world: World, txn: Transaction, *numbers: int) -> None:
    folder = f"{world.stream.name}/transactions/{txn.id}"
    world.store.inner.delete([f"{folder}/{number:08d}.json" for number in numbers])


def by_id(world: World, txn: Transaction) -> Transaction:
    return Transaction(world.process(), txn.id)


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_gap_is_damage_to_a_commit_by_id(world: World, lost: list[int], is_prepared: bool) -> None:
    txn = flushed(world)
    if is_prepared:
        txn.prepare()
    lose(world, txn, *lost)
    key = f"transactions/{txn.id}/{lost[0]:08d}.json"
    for call in (Transaction.commit, Transaction.prepare):
        with pytest.raises(CorruptLog, match=f"{key} does not exist, and transaction .* is open"):
            call(by_id(world, txn))
    other = by_id(world, txn)
    if not lost[0]:
        other.write_event(b"d", "k")
        with pytest.raises(CorruptLog, match=key):  # it would take the name of the lost one
            other.flush()
    assert world.events() == []
    assert f"{lost[0]:08d}.json" not in world.folder(txn)


def test_gap_is_damage_to_a_check(world: World) -> None:
    txn = flushed(world)
    assert check_stream(world.process()).damage == []
    lose(world, txn, 0)
    (damaged,) = check_stream(world.process()).damage
    assert damaged.path.endswith(f"transactions/{txn.id}/00000000.json")
    assert "Put the folder" in damaged.reason


def test_manifests_that_were_put_back_are_committed(world: World) -> None:
    txn = flushed(world)
    key = f"{world.stream.name}/transactions/{txn.id}/00000000.json"
    kept = world.store.inner.get(key)
    lose(world, txn, 0)
    with pytest.raises(CorruptLog):
        by_id(world, txn).commit()
    world.store.inner.put(key, kept)
    by_id(world, txn).commit()
    assert world.events() == EVENTS


def test_handle_that_flushed_all_events_commits_them(world: World) -> None:
    txn = flushed(world)
    lose(world, txn, 0, 1, 2)
    txn.commit()
    assert world.events() == EVENTS


def test_open_transaction_with_a_gap_is_aborted(world: World) -> None:
    """By its application, and once its lease has run out; an abort needs no events."""
    asked, expired = flushed(world), flushed(world)
    lose(world, asked, 0)
    lose(world, expired, 1)
    by_id(world, asked).abort()
    expired.ping()
    world.run_out()
    assert expired.id in sweeper.sweep_transactions(world.process()).aborted
    assert world.events() == []


@pytest.mark.parametrize("decided", ["prepare", "commit"])
def test_gap_does_not_hide_a_decision_from_an_abort(world: World, decided: str) -> None:
    txn = flushed(world)
    txn.ping()
    txn.prepare() if decided == "prepare" else txn.commit(wait=False)
    lose(world, txn, 0)
    world.run_out()
    with pytest.raises(CorruptLog, match=r"00000000\.json does not exist"):
        by_id(world, txn).abort()
    with pytest.raises(CorruptLog, match=r"00000000\.json does not exist"):
        sweeper.sweep_transactions(world.process())
    assert txn.id in world.process().view().transactions


def test_what_is_left_of_the_folder_is_deleted_before_the_abort(world: World) -> None:
    txn = flushed(world)
    txn.prepare()
    lose(world, txn, 0, 1, 2, 3)
    by_id(world, txn).abort()
    assert world.process().view().transactions == {}


def test_only_handles_that_others_may_know_list_the_manifests(world: World) -> None:
    """Once before the first manifest, and once before a decision without a preparation."""

    def listings(action: Callable[[], object]) -> int:
        return world.calls(action).count(("list", "manifest"))

    txn = begun(world.stream)
    txn.write_event(b"own", "k")
    assert listings(txn.flush) == 0
    assert listings(txn.commit) == 0
    other = Transaction(world.stream, begun(world.stream).id)
    other.write_event(b"shared", "k")
    assert listings(other.flush) == 1
    other.write_event(b"more", "k")
    assert listings(other.flush) == 0
    assert listings(other.prepare) == 1
    assert listings(other.commit) == 0
