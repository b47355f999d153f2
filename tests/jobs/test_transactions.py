"""The transactions job: in the tests' Spark session, and as a user starts it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from pravega_spark import StreamManager
from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.jobs import job_runner, transactions
from tests.harness import failpoints
from tests.harness.folder_state import folder_state
from tests.harness.jvm import clean_environment
from tests.harness.tiers import only_long
from tests.harness.transaction_world import let_expire

REPOSITORY = Path(__file__).resolve().parents[2]
SUBMIT = REPOSITORY / "deploy/spark/submit.sh"
DEAD, DECIDED, PREPARED, LIVE, QUIET = "s/dead", "s/decided", "s/prepared", "t/live", "t/quiet"

WRITER = """
import sys, time
from pravega_spark import StreamManager

manager, ids = StreamManager(sys.argv[1]), []
for stream in ("s/dead", "s/decided", "s/prepared"):
    writer = manager.create_transactional_writer(stream, writer_id="etl")
    transaction = writer.begin_transaction(lease="10 s")
    transaction.write_event(b"left behind", "k")
    transaction.flush()
    transaction.ping()
    ids.append(transaction.id)
    if stream == "s/decided":
        transaction.commit(wait=False)
    if stream == "s/prepared":
        transaction.prepare()
print(*ids, flush=True)
time.sleep(600)
"""
"""A process that has three transactions when it is killed."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class World(NamedTuple):
    """A root with what a killed writer left, one live transaction, and the ids by stream."""

    root: Path
    ids: dict[str, str]

    @property
    def manager(self) -> StreamManager:
        return StreamManager(self.root)

    def status(self, stream: str) -> TransactionStatus:
        return self.manager.transaction(stream, self.ids[stream]).status

    def events(self, stream: str) -> list[bytes]:
        return [event.data for event in self.manager.read(stream)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    root = tmp_path / "root"
    manager = StreamManager(root)
    for stream in (DEAD, DECIDED, PREPARED, LIVE, QUIET):
        manager.create_scope(stream.split("/", maxsplit=1)[0])
        manager.create_stream(stream)
    ids = dict(zip((DEAD, DECIDED, PREPARED), killed_writer(root), strict=True))
    with manager.create_transactional_writer(LIVE, "alive") as writer:
        ids[LIVE] = writer.begin_transaction(lease="10 s").id
        yield World(root, ids)


def killed_writer(root: Path) -> list[str]:
    """Start the writer and kill it; return the ids of its transactions, whose leases are over."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ids = process.stdout.readline().split()
        process.kill()
    for lease in root.glob("*/*/transactions/*/lease.json"):
        let_expire(lease)
    return ids


def left(world: World) -> dict[str, Any]:
    """Everything under the root, except what the live writer writes meanwhile."""
    written = re.compile(f"{LIVE}(/transactions.*)?")
    return {
        name: found
        for name, found in folder_state(world.root).items()
        if not written.fullmatch(name)
    }


def run(
    capsys: pytest.CaptureFixture[str], spark: SparkSession, root: Path, *arguments: str
) -> tuple[int, dict[str, Any], str]:
    """Run the job in the tests' session; return status, last line and whole output."""
    parsed = transactions.parse(["--root", str(root), *arguments])
    status = job_runner.rounds(
        "transactions",
        parsed,
        spark,
        lambda *found: transactions.sweep_streams(parsed, *found),
        transactions.counts(()),
    )
    out = capsys.readouterr()
    return status, json.loads(out.out.splitlines()[-1]), out.out + out.err


def line_of(text: str, transaction_id: str) -> str:
    (found,) = (line for line in text.splitlines() if transaction_id in line)
    return found


def figures(record: dict[str, Any]) -> dict[str, Any]:
    names = ("streams", "open", "committed", "aborted", "cleared", "failed")
    return {name: record[name] for name in names}


def test_transactions_of_a_killed_process_are_finished_and_live_ones_kept(
    spark: SparkSession, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found, text = run(capsys, spark, world.root)
    assert status == 0, text
    assert figures(found) == {
        "streams": 5,
        "open": 2,
        "committed": 1,
        "aborted": 1,
        "cleared": 2,
        "failed": 0,
    }
    assert found["seconds"] > 0
    assert world.status(DEAD) is TransactionStatus.ABORTED
    assert world.status(DECIDED) is TransactionStatus.COMMITTED
    assert world.status(PREPARED) is TransactionStatus.PREPARED
    assert world.status(LIVE) is TransactionStatus.OPEN
    assert (world.events(DEAD), world.events(DECIDED)) == ([], [b"left behind"])
    dead = line_of(text, world.ids[DEAD])
    assert re.search(r"s/dead .* ABORTED .* etl .* abort +its lease of 10 s ran out", dead)
    assert re.search(r" COMMITTED .* 1 +11 +commit", line_of(text, world.ids[DECIDED]))
    assert re.search(r" OPEN .* alive .* keep", line_of(text, world.ids[LIVE]))
    assert not list(world.root.glob(f"s/dead/transactions/{world.ids[DEAD]}/*.json"))

    status, found, text = run(capsys, spark, world.root, "--scope", "s")
    assert (status, figures(found)["open"], found["streams"]) == (0, 1, 3)
    assert (found["committed"], found["aborted"], found["cleared"]) == (0, 0, 0)


def test_dry_run_lists_what_would_be_done_and_changes_nothing(
    spark: SparkSession, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for lease in world.root.glob(f"{PREPARED}/transactions/*/lease.json"):
        lease.unlink()  # a transaction that was never pinged has none
    before = left(world)
    status, announced, text = run(capsys, spark, world.root, "--dry-run")
    assert status == 0, text
    assert announced["dry_run"]
    dead = line_of(text, world.ids[DEAD])
    assert re.search(r"s/dead .* OPEN +\d+ s +etl +1 +11 +abort +its lease of 10 s ran", dead)
    assert re.search(r" COMMITTING .* commit", line_of(text, world.ids[DECIDED]))
    assert re.search(r" PREPARED .* keep", line_of(text, world.ids[PREPARED]))
    assert world.status(DEAD) is TransactionStatus.OPEN
    assert left(world) == before
    done = run(capsys, spark, world.root)[1]
    assert figures(done) == figures(announced), "the job does what the dry run announced"


def test_prepared_transaction_is_aborted_after_its_limit(
    spark: SparkSession, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--stream", PREPARED, "--prepared-limit", "0 s")
    for dry in (["--dry-run"], []):
        _, found, text = run(capsys, spark, world.root, *arguments, *dry)
        assert (found["open"], found["aborted"]) == (0, 1)
        assert re.search(r" abort +it was prepared \d+ s ago", line_of(text, world.ids[PREPARED]))
    assert world.status(PREPARED) is TransactionStatus.ABORTED


def test_broken_stream_does_not_stop_the_others_and_fails_the_job(
    spark: SparkSession, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    for commit in (world.root / QUIET / "events" / "_delta_log").glob("*.json"):
        commit.write_bytes(commit.read_bytes()[:-30])
    status, found, text = run(capsys, spark, world.root)
    assert status == 1
    assert (found["streams"], found["failed"], found["aborted"]) == (5, 1, 1)
    assert f"transactions: stream {QUIET}: CorruptLog: " in text
    assert world.status(DEAD) is TransactionStatus.ABORTED


def test_two_rounds_at_once_end_each_transaction_once(
    spark: SparkSession, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed = transactions.parse(["--root", str(world.root)])
    root, streams = str(world.root), sorted([*world.ids, QUIET])

    def round_() -> job_runner.Report:
        return transactions.sweep_streams(parsed, spark, job_runner.RoundInput(root, streams))

    with ThreadPoolExecutor(2) as pool:
        reports = [future.result() for future in [pool.submit(round_) for _ in range(2)]]
    assert [report.failures for report in reports] == [{}, {}]
    for stream in (DEAD, DECIDED):
        commits = [c for c in _operations(root, stream) if c.endswith(" TRANSACTION")]
        assert len(commits) == 2, "one begins the transaction, one ends it"


def _operations(root: str, stream: str) -> list[str]:
    folder = Path(root, stream, "events", "_delta_log")
    actions = map(json.loads, "".join(f.read_text() for f in folder.glob("*.json")).splitlines())
    return [action["commitInfo"]["operation"] for action in actions if "commitInfo" in action]


# ------------------------------------------------------------------------- as a user starts it


def command(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the job with spark-submit, by the script of ``deploy/``."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [SUBMIT, "transactions", "--root", str(root), *arguments],
        env=clean_environment(
            PYSPARK_PYTHON=sys.executable, SPARK_MASTER="local[2]", PATH=path, **variables
        ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.long
@only_long
def test_next_job_finishes_the_work_of_a_killed_one(world: World) -> None:
    killed = command(world.root, **failpoints.variables("txn.decided"))
    assert killed.returncode == 1, killed.stdout + killed.stderr
    assert world.status(DEAD) is TransactionStatus.ABORTING
    done = command(world.root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert world.status(DEAD) is TransactionStatus.ABORTED
    assert world.status(DECIDED) is TransactionStatus.COMMITTED
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["open"], found["failed"]) == (2, 0)
    assert open_stream(str(world.root), DEAD).view().transactions == {}


@pytest.mark.slow
def test_job_runs_over_spark_connect(world: World) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pravega_spark.jobs.transactions", "--root", str(world.root)],
        env=clean_environment(SPARK_REMOTE="local[2]"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["streams"], found["committed"], found["aborted"]) == (5, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--prepared-limit", "soon", "--root", "."), "argument --prepared-limit: "),
        ((), "the following arguments are required: --root"),
    ],
)
def test_bad_input_is_one_clear_error(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        transactions.main(arguments)
    assert refused.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59, "59 s"), (60, "1.0 min"), (5_400, "1.5 h"), (86_400 * 7, "7.0 d")],
)
def test_age_is_printed_in_its_largest_unit(seconds: float, text: str) -> None:
    assert transactions.age(seconds) == text
