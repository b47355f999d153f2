"""Transactions while processes are killed, stall or race, and storage loses answers."""

from __future__ import annotations

import collections
import signal
import time
from pathlib import Path

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn import lifecycle
from tests.faults.test_processes import finish, ready
from tests.harness.faulty_store import Fault
from tests.harness.ledgers import LOSSES, POINTS, Ledgers, Met
from tests.harness.tiers import sized
from tests.harness.transaction_processes import KEYS, LINES
from tests.harness.warm_children import WarmChild
from tests.harness.writer_processes import STREAM

SEEDS = sized(15, 400, "TRANSACTION_SEEDS")
"""More seeds find rarer faults: TRANSACTION_SEEDS=1000 takes about ten minutes."""


# -------------------------------------------------------------------------------- simulations


@pytest.mark.slow
@pytest.mark.long
def test_kills_stalls_and_lost_writes_leave_every_line_copied_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.commit.COMMIT_DEADLINE_SECONDS", 0.01)
    met = Met()
    for seed in range(SEEDS):
        try:
            met += Ledgers(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    for fault in (*LOSSES, Fault.REFUSE):
        assert met.faults[fault] > SEEDS / 4, met
    for point in POINTS:
        assert met.kills[point] > 0, met
    assert met.stalls.total() > SEEDS / 2, met
    assert met.outcomes["ABORT TRANSACTION"] > SEEDS / 4, met
    assert met.rolled > SEEDS / 4, met


def test_same_seed_gives_the_same_history() -> None:
    for seed in range(3):
        assert Ledgers(seed).run() == Ledgers(seed).run()


# ---------------------------------------------------------------------------- real processes


def start(*arguments: str, crash: str = "") -> WarmChild:
    return WarmChild("tests.harness.transaction_processes", *arguments, crash=crash)


def run(*arguments: str, crash: str = "") -> int | None:
    return finish(start(*arguments, crash=crash))[0]


@pytest.fixture
def root(tmp_path: Path) -> str:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(3)))
    return str(tmp_path)


def by_key(root: str) -> dict[str | None, list[str]]:
    found: dict[str | None, list[str]] = collections.defaultdict(list)
    for event in StreamManager(root).read(STREAM):
        found[event.routing_key].append(event.data.decode())
    return found


def check_lines(root: str) -> int:
    """Check that every copied line is complete and exists once; return the number of lines."""
    found = by_key(root)
    lines = len(found.get(KEYS[0], ()))
    wanted = [str(n + 1) for n in range(lines)]
    assert found == (dict.fromkeys(KEYS, wanted) if lines else {})
    return lines


COPYING = [
    "txn.staged:5",
    "txn.deciding:4",
    "txn.decided:4",
    "txn.decided:6",  # of a commit that does not wait
    "txn.committed:3",
    "txn.deleting-remains:2",
    "commit.before:7",
    "commit.applied:2",
    "commit.applied:5",
    "commit.applied:7",
    "commit.applied:8",
    "commit.applied:9",
]
"""Failpoints and visits at which the copier is killed: different steps of different lines."""


@pytest.mark.parametrize("point", COPYING)
def test_killed_copier_leaves_complete_lines_and_the_next_one_resumes(
    root: str, point: str
) -> None:
    assert run("resume", root, str(LINES), crash=point) == -signal.SIGKILL
    manager = StreamManager(root)
    manager.sweep_transactions(STREAM)
    left = check_lines(root)

    assert run("resume", root, str(LINES)) == 0
    assert check_lines(root) == LINES
    assert left <= LINES
    assert manager.list_transactions(STREAM) == []
    completed = manager.list_completed_transactions(STREAM)
    assert sum(info.status is TransactionStatus.COMMITTED for info in completed) == LINES
    assert list(Path(root, STREAM, "transactions").glob("*/*")) == []


@pytest.mark.parametrize(
    "point",
    ["seal.sealing", "txn.deciding:2", "txn.decided:2", "txn.committed", "txn.deleting-remains"],
)
def test_killed_sealing_is_finished_by_the_next_call(root: str, point: str) -> None:
    assert run("resume", root, "3") == 0
    assert run("seal", root, crash=point) == -signal.SIGKILL
    manager = StreamManager(root)
    assert manager.stream_info(STREAM).state == "SEALING"
    assert run("sweep", root) == 0
    manager.seal_stream(STREAM)
    assert by_key(root) == {key: ["1", "2", "3", "done"] for key in KEYS}
    assert manager.stream_info(STREAM).state == "SEALED"
    manager.sweep_transactions(STREAM)
    assert list(Path(root, STREAM, "transactions").glob("*/*")) == []


def test_concurrent_commits_have_the_same_order_in_every_segment(root: str) -> None:
    names, rounds = [f"p{n}" for n in range(4)], 6
    processes = [start("race", root, name, str(rounds)) for name in names]
    ready(processes)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [finish(process)[0] for process in processes] == [0] * len(names)

    found = by_key(root)
    (order,) = {tuple(texts) for texts in found.values()}
    assert set(found) == set(KEYS)
    for name in names:
        mine = [text for text in order if text.startswith(f"{name} ")]
        assert mine == [f"{name} {n}" for n in range(rounds)]
    assert len(order) == len(names) * rounds


def test_stalled_process_gets_txn_failed_after_its_successor_aborted_the_transaction(
    root: str,
) -> None:
    old = start("stall", root)
    transaction_id = old.stdout.readline().strip()
    with StreamManager(root).create_transactional_writer(STREAM, "w") as writer:
        with writer.begin_transaction() as txn:
            txn.write_event("newer", "k0")
        old.stdin.write("go\n")
        old.stdin.flush()
        assert finish(old) == (0, "TxnFailed\n")
        assert writer.get_transaction(transaction_id).status is TransactionStatus.ABORTED
        assert writer.last_note is None
    assert by_key(root) == {"k0": ["newer"]}


# ------------------------------------------------------------------------- on every storage


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> StreamManager:
    """A manager of a new stream, with the real clocks of the process and the storage."""
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        root, options = f"s3://{s3.bucket}/transactions-{tmp_path.name}", s3.options
    else:
        root = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"
        options = {}
    made = StreamManager(root, storage_options=options)
    made.create_scope("s")
    made.create_stream(STREAM, StreamConfiguration(ScalingPolicy.by_event_rate(9, minimum=2)))
    return made


def test_transactions_roll_over_scales_and_expire_by_the_clock_of_the_storage(
    manager: StreamManager,
) -> None:
    with manager.create_transactional_writer(STREAM, "w") as writer:
        late, kept = writer.begin_transaction(), writer.begin_transaction()
        for n in range(20):
            late.write_event(f"late {n}", f"k{n}")
        manager.scale_stream(STREAM, [0], [(0, 0.25), (0.25, 0.5)])
        late.commit("noted")
        assert writer.last_note == "noted"
        kept.ping()

        stream = root_of(manager).stream(STREAM)
        began = time.monotonic()
        begun = lifecycle.begin(stream, 1, lease_ms=3_000, execution_ms=60_000)
        lost = begun.transaction_id
        assert manager.sweep_transactions(STREAM).aborted == {}
        aborted: list[str] = []
        while not aborted and time.monotonic() - began < 240:
            time.sleep(0.3)  # looks this often show that the storage answered for a whole lease
            aborted = list(manager.sweep_transactions(STREAM).aborted)
        assert aborted == [lost]
        assert time.monotonic() - began > 3
        assert [info.transaction_id for info in manager.list_transactions(STREAM)] == [kept.id]
    assert len(list(manager.read(STREAM))) == 20
    assert manager.stream_info(STREAM).epoch == 3
