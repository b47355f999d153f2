"""A bank whose tellers are killed at every step of a transaction while its segments are scaled.

``BANK_TRANSFERS=2000`` runs it longer, ``BANK_SEED`` chooses another run. The seed fixes the
choices of the tellers and the nemesis, but not the interleaving of the processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.snapshot import Snapshot, first_snapshot
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.manager import StreamManager
from pravega_spark.spark.session import session
from pravega_spark.values.segments import StreamCut
from tests.harness import failpoints, warm_workers
from tests.harness.bank import DECOY, FENCED, STREAM, event, fund
from tests.harness.bank_audit import Books
from tests.harness.tiers import sized

PROJECT = Path(__file__).parents[2]
SEED = os.environ.get("BANK_SEED", "1")
COUNT = sized(20, 400, "BANK_TRANSFERS")
"""Transfers of each teller."""
STRIKES = COUNT // 6
"""Number of times that a process is killed, or stopped and replaced, besides failpoints."""
TELLERS = ("ann", "bob", "cid")
SPARK_VERSIONS = 2
LAUNCH = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LIMIT_SECONDS = 480 + COUNT
POINTS = (
    "txn.staged",
    "txn.deciding",
    "txn.decided",
    "txn.committed",
    "commit.before",
    "commit.applied",
)


@dataclass
class Actor:
    """A process that is started again whenever it is killed."""

    name: str
    command: list[str]
    crashes: list[str]
    acks: Path
    process: subprocess.Popen[bytes] | None = None
    crash: str = ""
    fired: list[str] = field(default_factory=list)
    killed: bool = False
    done: bool = False

    def start(self) -> None:
        """Start the process, to be killed at the first failpoint that has not killed it yet."""
        self.crash = self.crashes[0] if self.crashes else ""
        self.killed = False
        self.process = self.run(self.crash)

    def run(self, crash: str = "") -> subprocess.Popen[bytes]:
        """Run the command; append its output to the acknowledgements."""
        with self.acks.open("ab") as acks:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.harness.bank", *self.command],
                stdout=acks,
                cwd=PROJECT,
                env={**os.environ, **failpoints.variables(crash)},
            )

    def kill(self) -> None:
        """Kill the process at any step."""
        assert self.process is not None
        self.killed = True
        self.process.kill()

    def restart_if_killed(self) -> None:
        """Start the process again if it was killed; record whether it has finished."""
        assert self.process is not None
        code = self.process.poll()
        if code is None or self.done:
            return
        if code == 0:
            self.done = True
            return
        assert code in (FENCED, -signal.SIGKILL), f"{self.name} ended with {code}"
        if code != FENCED and not self.killed:
            self.fired.append(self.crash.partition(":")[0])
            self.crashes.remove(self.crash)
        self.start()


class Nemesis:
    """Runs the actors and kills them; a stopped one resumes after its successor has started."""

    def __init__(self, root: Path, seed: str) -> None:
        self.dice = Random(f"{seed}/nemesis")
        self.stop = root.parent / "stop"
        self.tellers = [
            Actor(
                name,
                ["teller", str(root), name, seed, str(COUNT)],
                crashes,
                root.parent / f"{name}.acks",
            )
            for name, crashes in zip(TELLERS, self._crashes(), strict=True)
        ]
        crashes = [f"commit.applied:{self.dice.randint(1, 9)}"]
        command = ["scaler", str(root), "scaler", seed, str(self.stop)]
        self.scaler = Actor("scaler", command, crashes, root.parent / "scaler.out")
        self.stopped: list[tuple[float, subprocess.Popen[bytes]]] = []
        self.fenced = 0

    def _crashes(self) -> list[list[str]]:
        """Distribute the failpoints over the tellers: each point once per twenty transfers."""
        points = [p for _ in range(COUNT // 20) for p in self.dice.sample(POINTS, len(POINTS))]
        named = [f"{p}:{self.dice.randint(1, 8 if p.startswith('commit') else 3)}" for p in points]
        return [named[number :: len(TELLERS)] for number in range(len(TELLERS))]

    def run(self) -> None:
        """Run until every teller has done all its transfers."""
        actors = [*self.tellers, self.scaler]
        deadline = time.monotonic() + LIMIT_SECONDS
        try:
            for actor in actors:
                actor.start()
            strike = time.monotonic() + self.dice.uniform(0.6, 1.2)
            strikes = 0
            while self.stopped or not all(teller.done for teller in self.tellers):
                assert time.monotonic() < deadline, "the tellers do not finish"
                time.sleep(0.02)
                for actor in actors:
                    actor.restart_if_killed()
                self._resume_stopped()
                running = [actor for actor in actors if not actor.done]
                if time.monotonic() > strike and running and strikes < STRIKES:
                    self._strike(running)
                    strikes += 1
                    strike = time.monotonic() + self.dice.uniform(0.6, 1.2)
            self.stop.touch()
            assert self.scaler.process is not None
            self.scaler.process.wait(240)
        finally:
            processes = [actor.process for actor in actors] + [old for _, old in self.stopped]
            for process in processes:
                if process is not None:
                    process.kill()
                    process.wait()

    def _strike(self, running: list[Actor]) -> None:
        victim = self.dice.choice(running)
        if victim is self.scaler or self.dice.random() < 0.6:
            victim.kill()
        else:
            self._replace(victim)

    def _replace(self, victim: Actor) -> None:
        """Stop a teller, start another with the same name, and resume the first one later."""
        old = victim.process
        assert old is not None
        old.send_signal(signal.SIGSTOP)
        victim.start()
        self.stopped.append((time.monotonic() + self.dice.uniform(0.5, 3.0), old))

    def _resume_stopped(self) -> None:
        """Resume stopped tellers when their time has come; count the fenced ones."""
        for moment, old in self.stopped[:]:
            if time.monotonic() > moment:
                old.send_signal(signal.SIGCONT)
            code = old.poll()
            if code is not None:
                assert code in (0, FENCED, -signal.SIGKILL), f"a stopped teller ended with {code}"
                self.fenced += code == FENCED
                self.stopped.remove((moment, old))


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Nemesis]:
    """The root of a bank after the run, and the nemesis that killed its processes."""
    root = tmp_path_factory.mktemp("bank") / "root"
    manager = StreamManager(root)
    manager.create_scope("bank")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))
    fund(manager)
    nemesis = Nemesis(root, SEED)
    nemesis.run()
    manager.sweep_transactions(STREAM)
    return root, nemesis


def snapshots(stream: StreamLog) -> Iterator[Snapshot]:
    """Yield the snapshot of every version, in order."""
    snapshot: Snapshot | None = None
    for commit in stream.log.reader.span(-1, stream.view().version):
        snapshot = snapshot.apply(commit) if snapshot else first_snapshot(commit, stream.name)
        yield snapshot


def pairs(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    """Yield the accounts and events of a table."""
    keys, events = table.column("routing_key").to_pylist(), table.column("event").to_pylist()
    return zip(keys, events, strict=True)


@pytest.mark.slow
@pytest.mark.long
def test_every_transfer_is_done_once_although_processes_are_killed(
    bank: tuple[Path, Nemesis],
) -> None:
    root, nemesis = bank
    books = Books()
    books.enter((str(e.routing_key), e.data) for e in StreamManager(root).read(STREAM))
    books.check("the end")
    books.check_end(SEED, TELLERS, COUNT)
    for teller in nemesis.tellers:
        acked = [int(line) for line in teller.acks.read_text().split()]
        assert set(acked) <= set(range(1, COUNT + 1))
    fired = {point for actor in (*nemesis.tellers, nemesis.scaler) for point in actor.fired}
    assert fired >= set(POINTS), f"never killed at {set(POINTS) - fired}"
    assert StreamManager(root).list_transactions(STREAM) == []


@pytest.mark.slow
@pytest.mark.long
def test_every_version_balances_for_the_event_reader(bank: tuple[Path, Nemesis]) -> None:
    root, _ = bank
    manager, books = StreamManager(root), Books()
    stream = open_stream(manager.root, STREAM)
    reader, cut, rolled = manager.create_reader(STREAM), StreamCut.EARLIEST, 0
    for snapshot in snapshots(stream):
        view = StreamView(snapshot)
        for _, batch in reader.batches(cut, view.tail):
            books.enter(pairs(batch))
        books.check(f"version {snapshot.version}")
        cut = view.tail
        rolled += view.active.number != view.active.reference
    assert rolled > 0, "the commit of the opening balances rolls over a split"


@pytest.mark.slow
@pytest.mark.long
def test_every_version_balances_for_delta_rs(bank: tuple[Path, Nemesis], tmp_path: Path) -> None:
    root, _ = bank
    table = root / STREAM / "events"
    # A second table with the same files. Its log gains the next commit and loses the previous one
    # at each step, so the reader reads one commit per version instead of the whole log.
    log = tmp_path / "_delta_log"
    log.mkdir()
    (tmp_path / "data").symlink_to(table / "data")
    books, known, delta = Books(), set[str](), None
    for commit in sorted((table / "_delta_log").glob("*.json")):
        (log / commit.name).hardlink_to(commit)
        if delta is None:
            delta = DeltaTable(tmp_path)
        else:
            delta.update_incremental()
        version = delta.version()
        assert version == int(commit.stem)
        files = set(delta.file_uris())
        assert known <= files
        for path in sorted(files - known):
            books.enter(pairs(pq.read_table(path, columns=["routing_key", "event"])))
        books.check(f"version {version}")
        known = files
        (log / f"{version - 1:020d}.json").unlink(missing_ok=True)
    assert len(known) > 3 * COUNT


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.spark
def test_sampled_versions_balance_for_delta_spark(bank: tuple[Path, Nemesis]) -> None:
    root, _ = bank
    manager = StreamManager(root)
    last = manager.stream_info(STREAM).version
    with warm_workers.given():
        spark = session(**LAUNCH).newSession()
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    for version in sorted({last, *Random(SEED).sample(range(1, last), SPARK_VERSIONS)}):
        # Without a checkpoint Spark would read every earlier commit for each version.
        checkpoint.maintain(open_stream(manager.root, STREAM).log.reader, version, checkpoint=True)
        frame = spark.read.format("delta").option("versionAsOf", version)
        rows = frame.load(f"{root}/{STREAM}/events").select("routing_key", "event").toArrow()
        books = Books()
        books.enter(pairs(rows))
        books.check(f"version {version}")


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([("a", "ann", 1, -5)], "half"),
        ([("a", "ann", 1, -5), ("b", "ann", 1, 4)], "total"),
        ([("a", "ann", 1, -5), ("b", "ann", 1, 5), ("b", "ann", 1, 5)], "twice"),
        ([("a", DECOY, 1, 5)], "aborted"),
    ],
)
def test_unbalanced_books_are_detected(events: list[tuple[str, str, int, int]], found: str) -> None:
    def audit() -> None:
        books = Books()
        books.enter((row[0], event(*row[1:])) for row in events)
        books.check("now")

    with pytest.raises(AssertionError, match=found):
        audit()
