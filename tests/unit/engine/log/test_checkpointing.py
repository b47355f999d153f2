"""State files and checkpoints: what they save, and that damage to them costs only time."""

from __future__ import annotations

import itertools
import json
import logging
import os
from typing import Any

import pytest

from pravega_spark.engine.log import checkpoint as log_checkpoint
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.reader import Hint
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import StoreError
from pravega_spark.values.limits import STATE_FILE_COMMITS
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_tables import event_add, put, table_log
from tests.harness.spy_store import Spy


def filled(store: Spy | MemoryStore, commits: int) -> Log:
    log = table_log(store)
    for n in range(commits):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
    return log


def opened(log: Log) -> Log:
    other = Log(log.store, log.path, FakeRuntime())
    other.refresh()
    return other


@pytest.mark.parametrize("checkpoint", [True, False])
def test_opening_with_and_without_state_files_gives_the_same_state(
    checkpoint: bool,
) -> None:
    log = filled(MemoryStore(), 10)
    plain = opened(log)
    with plain.files() as files:
        wanted = [add.path for add in files.find(0, 0, 10)]
    maintain(log.reader, 4, checkpoint=checkpoint)
    maintain(log.reader, 8, checkpoint=False)

    other = opened(log)
    assert other.snapshot == plain.snapshot == log.snapshot
    with other.files() as files:
        assert [add.path for add in files.find(0, 0, 10)] == wanted == [f"f{n}" for n in range(10)]


def test_opening_reads_the_state_file_and_the_later_commits() -> None:
    store = Spy()
    log = filled(store, 20)
    maintain(log.reader, 18, checkpoint=False)
    store.calls.clear()

    opened(log)

    read = [key.rsplit("/", 2)[-2:] for op, key in store.calls if op in ("get", "get_many")]
    names = [
        "_pravega_spark.json",
        "latest.json",
        *(f"{n:020d}.json" for n in (18, 18, 19, 20, 21, 18)),
    ]
    assert [parts[-1] for parts in read] == names
    assert not any(op == "list" for op, _ in store.calls)


@pytest.mark.parametrize(
    "lost", ["hint", "hint torn", "state", "state torn", "newest commit's state", "all"]
)
def test_lost_or_torn_state_files_cost_time_and_no_data(lost: str) -> None:
    store = MemoryStore()
    log = filled(store, 12)
    for version in (4, 8, 12):
        maintain(log.reader, version, checkpoint=False)
    keys = [entry.key for entry in store.list(f"{log.path}/_pravega/state")]
    if lost == "hint":
        store.delete([log.reader.hint_key])
    elif lost == "hint torn":
        store.put(log.reader.hint_key, b'{"state":')
    elif lost == "state":
        store.delete(keys[1:])
    elif lost == "state torn":
        store.put(keys[1], store.get(keys[1])[:100])
    elif lost == "newest commit's state":
        store.put(keys[2], store.get(keys[1]))
    else:
        store.delete([*keys, log.reader.hint_key])

    other = opened(log)
    assert other.snapshot == log.snapshot
    with other.files() as files:
        assert len(files.find(0, 0, 12)) == 12


def test_state_file_of_a_commit_that_the_log_does_not_hold_is_not_used() -> None:
    store = MemoryStore()
    log = filled(store, 6)
    maintain(log.reader, 5, checkpoint=False)
    for version in (5, 6):  # restored from a copy of version 4
        store.delete([log.reader.key(version)])
    again = table_log(store)
    put(again, "other", [event_add("other", 0, 4, 1)])

    assert opened(log).refresh() == again.snapshot


def test_state_file_is_written_in_the_background_after_a_fixed_number_of_commits() -> None:
    log = filled(MemoryStore(), STATE_FILE_COMMITS - 2)
    done: list[Any] = []
    log.maintain = lambda log, version: done.append(
        log_checkpoint.maintain_in_background(log, version)
    )
    put(log, "a")
    assert done == []
    put(log, "b")
    done[0].result(30)
    assert log.reader.hint() == Hint(STATE_FILE_COMMITS, -1)


def test_failing_maintenance_is_logged_and_has_no_other_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Spy()
    log = filled(store, 3)
    store.rules.add(Rule(StoreError("disk on fire"), "put"))
    with caplog.at_level(logging.WARNING):
        future = log_checkpoint.maintain_in_background(log, 2)
        assert future is not None
        future.result(30)

    assert "maintenance of memory://" in caplog.text
    store.rules.clear()
    assert put(log, "next") == 4


@pytest.mark.parametrize("fault", [Fault.TORN, Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
@pytest.mark.parametrize("nth", range(1, 6))
def test_maintenance_killed_at_any_write_leaves_an_intact_log(fault: Fault, nth: int) -> None:
    store = Spy()
    log = filled(store, 6)
    maintain(log.reader, 2, checkpoint=True)
    store.rules.add(Rule(fault, "put", nth=nth))
    with pytest.raises(StoreError):
        maintain(log.reader, 5, checkpoint=True)

    other = opened(log)
    assert other.snapshot == log.snapshot
    with other.files() as files:
        assert len(files.find(0, 0, 6)) == 6
    maintain(log.reader, 6, checkpoint=True)
    assert log.reader.hint() == Hint(6, 6)


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after 8 commits, or for a large table after as many as a quarter of its files."""
    monkeypatch.setattr(log_checkpoint, "CHECKPOINT_GROWTH", 4)
    monkeypatch.setattr(log_checkpoint, "CHECKPOINT_COMMITS", 8)


@pytest.mark.usefixtures("frequent")
def test_distances_between_checkpoints_grow() -> None:
    log = table_log(MemoryStore())
    made: list[int] = []
    for n in range(1, 400):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
        if n % 4 == 0:
            maintain(log.reader, n)
            made = sorted({*made, *log.reader.listed("checkpoint")})

    gaps = [b - a for a, b in itertools.pairwise(made)]
    assert made[0] == 8
    assert gaps == sorted(gaps)
    assert gaps[-1] >= made[-2] // 4 > 8
    assert sum(made) / made[-1] < 6  # rows written for a commit: a quarter of the files each time
    with opened(log).files() as files:
        assert len(files.find(0, 0, 399)) == 399


@pytest.mark.usefixtures("frequent")
def test_distances_stay_while_a_table_gains_commits_and_no_files() -> None:
    log = table_log(MemoryStore())
    for n in range(1, 101):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)], [f"f{n - 5}"] if n > 5 else [])
        if n % 4 == 0:
            maintain(log.reader, n)
    assert log.reader.listed("checkpoint") == list(range(96, 0, -8))


@pytest.mark.usefixtures("frequent")
def test_checkpoint_whose_files_are_mostly_removed_is_replaced_before_its_distance() -> None:
    log = table_log(MemoryStore())
    put(log, "many", [event_add(f"f{n}", 0, n, 1) for n in range(200)])
    for n in range(2, 9):
        put(log, str(n))
    maintain(log.reader, 8)
    put(log, "some", removes=[f"f{n}" for n in range(8)])
    maintain(log.reader, 9)
    assert log.reader.listed("checkpoint") == []  # 200 files: 50 commits
    maintain(log.reader, 9, checkpoint=True)
    put(log, "merged", [event_add("all", 0, 8, 192)], [f"f{n}" for n in range(8, 200)])
    maintain(log.reader, 10)
    assert log.reader.listed("checkpoint") == [10, 9]
    checkpoint = log.reader.checkpoint(10)
    assert checkpoint is not None
    assert [add.path for add in checkpoint.layer().all()] == ["all"]


def test_hints_that_go_back_cost_only_time() -> None:
    log = filled(MemoryStore(), 9)
    maintain(log.reader, 8, checkpoint=True)
    log.store.delete([log.reader.hint_key])
    maintain(log.reader, 4, checkpoint=True)  # by a slow process

    assert log.reader.hint() == Hint(4, 4)
    last = json.loads(log.store.get(f"{log.reader.folder}/_last_checkpoint"))
    assert last["version"] == 4
    assert opened(log).snapshot == log.snapshot


def test_state_file_whose_older_layer_was_deleted_is_replaced_by_the_checkpoint() -> None:
    store = MemoryStore()
    log = filled(store, 9)
    maintain(log.reader, 3, checkpoint=False)
    # Of two concurrent processes, one writes the state file 7 before checkpoint 5 exists.
    maintain(log.reader, 7, checkpoint=False)
    maintain(log.reader, 5, checkpoint=True)
    store.put(log.reader.hint_key, b'{"state":7,"checkpoint":5}')
    store.delete([entry.key for entry in store.list(f"{log.path}/_pravega/state")][:1])
    store.delete([log.reader.key(version) for version in (1, 2, 3, 4)])

    with opened(log).files() as files:
        assert [add.path for add in files.find(0, 0, 9)] == [f"f{n}" for n in range(9)]


def test_commit_succeeds_without_a_thread_for_maintenance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stopped:
        def submit(self, *_: object) -> None:
            raise RuntimeError("cannot schedule new futures after shutdown")

    monkeypatch.setitem(log_checkpoint._workers, os.getpid(), Stopped())
    log = filled(Spy(), 3)
    assert log_checkpoint.maintain_in_background(log, 3) is None
