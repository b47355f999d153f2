"""The jobs of maintenance without Spark: their kinds, flags, settings, lines, and failed rounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPace, StreamConfiguration
from pravega_spark.engine.state.settings_table import _opened
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream import stream_log
from pravega_spark.errors import RootChanged, StoreError
from pravega_spark.jobs import job_runner, maintenance
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.maintenance.result import MaintenanceResult
from pravega_spark.maintenance.round import MaintenanceRound, RoundRequest
from pravega_spark.maintenance.rounds import KindSchedule
from pravega_spark.maintenance.work import RoundTask, WorkOptions, do_task
from pravega_spark.manager import StreamManager
from tests.harness.failpoints import at_failpoint
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.simulated_kills import Killed, kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK = cast("SparkSession", object())


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the tasks of a round in this process, in place of Spark's."""

    def spread(
        _: Any, root: str, tasks: Sequence[RoundTask], options: WorkOptions, **_told: Any
    ) -> Any:
        return [done for task in tasks for done in do_task(open_store(root), task, options)]

    monkeypatch.setattr(maintenance, "spread", spread)


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    made.create_stream("s/t")
    wait_for_maintenance()
    return made


def run(
    manager: StreamManager, *words: str, job: str = "maintenance", stop: StopSignal | None = None
) -> int:
    arguments = maintenance.parse(["--root", manager.root, *words], job)
    return maintenance.maintain(arguments, NO_SPARK, stop or StopSignal())


def request(*words: str, job: str) -> RoundRequest:
    parsed: RoundRequest = maintenance.parse(["--root", "r", *words], job).request
    return parsed


@pytest.mark.parametrize("job", maintenance.KINDS_OF_JOBS)
def test_job_does_its_kinds_and_ends_with_their_sums(
    job: str, manager: StreamManager, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(manager, job=job) == 0
    record = json.loads(capfd.readouterr().out.splitlines()[-1])
    kinds = {name.partition("_")[0] for name in record if "_" in name and name != "dry_run"}
    assert kinds == {kind.value for kind in maintenance.KINDS_OF_JOBS[job]}
    assert (record["streams"], record["failed"], record["rounds"]) == (1, 0, 1)


def test_flags_of_old_cron_lines_decide_for_their_run() -> None:
    flags = request("--expire", "never", "--grace", "5 min", job="retention").flags
    assert flags == {"expire": None, "grace": 300_000}
    assert request("--prepared-limit", "0 s", job="transactions").flags == {"prepared_limit": 0}
    assert request("--target", "1 GiB", job="compaction").flags == {"compact_target": 1 << 30}
    names = [kind.value for kind in request("--no-sweep", job="retention").kinds]
    assert names == ["retention"]
    how = request("--cooldown", "200 s", "--by-keys", job="scaling")
    assert how.scaling == (ScalingPace.of_cooldown("200 s"), True)
    assert how.full, "what was decided at another pace is decided again"
    every = request("--interval", "60s", job="retention").flags
    assert every == {"retention_interval": 60_000, "sweeping_interval": 60_000}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--expire", "soon"), "is not a valid duration"),
        (("--grace", "0 s"), "longer than 0 s"),
        (("--limit", "0s"), "longer than 0 s"),
        (("--cooldown", "10 ms"), "at least 1 s"),
        (("--target", "1 B"), "compact_target"),
        (("--interval", "0s"), "longer than 0 s"),
        (("--kinds", "cleaning"), "no kind of maintenance 'cleaning'"),
        (("--once", "--interval", "1s"), "exclude each other"),
        (("--stream", "x"), "with one slash"),
    ],
)
def test_bad_input_is_one_clear_error(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        maintenance.parse(["--root", "r", *words])
    assert refused.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("root", "named", "says"),
    [
        ("{root}", ["--stream", "s/none"], "stream s/none does not exist"),
        ("{root}", ["--scope", "none"], "scope none does not exist"),
        ("{root}/none", [], "holds no scope"),
        ("memory://x", [], "in the memory of this process"),
    ],
)
def test_what_does_not_exist_ends_a_job_before_spark_starts(
    root: str,
    named: list[str],
    says: str,
    manager: StreamManager,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(job_runner, "start_spark", pytest.fail)
    monkeypatch.setattr(job_runner, "launcher_stderr", lambda: sys.stderr)
    argv = ["--root", root.format(root=manager.root), *named]
    assert maintenance.main(argv, "retention") == 2
    assert says in capsys.readouterr().err


def test_settings_that_were_given_are_shown_with_their_origin(
    manager: StreamManager, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(manager, job="retention") == 0
    first, *_, last = capfd.readouterr().out.splitlines()
    assert not first.startswith("settings")
    assert json.loads(last)["settings"] == ""
    manager.update_settings(grace="2 hours", retain="3 days", expire="1 day")
    assert run(manager, "--grace", "5 min", "--expire", "never", job="retention") == 0
    lines = capfd.readouterr().out.splitlines()
    shown = "grace=5 minutes (flag), retain=3 days (root), expire=never (flag)"
    assert f"settings: {shown}" in lines
    assert json.loads(lines[-1])["settings"] == shown


def test_flags_decide_before_streams_and_root_in_a_round(
    manager: StreamManager, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = RetentionPolicy.by_consumption()
    manager.create_stream("s/kept", StreamConfiguration(retention=policy))
    with manager.create_writer("s/kept") as writer:
        writer.write_event(b"unread")
    manager.subscribe("s/kept", "silent")
    found = []
    for words in (["--dry-run"], ["--expire", "1 ms"], []):
        assert run(manager, *words, job="retention") == 0
        found.append(json.loads(capfd.readouterr().out.splitlines()[-1]))
    assert [record["retention_expired"] for record in found] == [0, 1, 0]


def test_group_that_cannot_be_completed_fails_the_job(
    manager: StreamManager, capfd: pytest.CaptureFixture[str]
) -> None:
    with at_failpoint("group.change.noted", kill), pytest.raises(Killed):
        manager.create_reader_group("s/broken", ["s/t"], retention="manual")
    root = Path(manager.root.removeprefix("file://"))
    for commit in (root / "s/_reader_groups/broken/_delta_log").glob("*.json"):
        commit.write_bytes(commit.read_bytes()[:-30])
    assert run(manager, "--no-sweep", job="retention") == 1
    out, err = capfd.readouterr()
    assert "retention: retention of reader group s/broken: CorruptLog: " in err
    assert json.loads(out.splitlines()[-1])["failed"] == 1


def test_stream_that_is_deleted_later_is_no_failure(
    manager: StreamManager, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, rounds = StopSignal(), list[float]()
    stop.disarm()

    def wait(seconds: float) -> bool:
        rounds.append(seconds)
        if len(rounds) == 1:
            manager.seal_stream("s/t")
            manager.delete_stream("s/t")
        if len(rounds) == 3:
            stop.request()
        return stop.is_set

    monkeypatch.setattr(stop, "wait", wait)
    monkeypatch.setattr(KindSchedule, "due", lambda self, recorded: self._kinds)
    assert run(manager, "--interval", "1s", "--stream", "s/t", job="scaling", stop=stop) == 0
    record = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (record["rounds"], record["failed"]) == (3, 0)


def test_interval_of_the_command_line_is_before_the_setting(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.update_settings(scaling_interval="1 hour")
    stop, pauses = StopSignal(), list[float]()
    stop.disarm()

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        stop.request()
        return True

    monkeypatch.setattr(stop, "wait", wait)
    assert run(manager, "--interval", "5 min", job="scaling", stop=stop) == 0
    assert 290 < pauses[0] <= 300


def test_settings_that_cannot_be_read_fail_the_round_before_its_work(
    manager: StreamManager, capfd: pytest.CaptureFixture[str]
) -> None:
    manager.update_settings(grace="2 hours")
    root = Path(manager.root.removeprefix("file://"))
    for file in (root / "_settings/_delta_log").glob("*.json"):
        file.write_bytes(file.read_bytes()[:-40])
    _opened._open.reset()  # as in another process
    assert run(manager) == 1
    assert "_settings" in capfd.readouterr().err


@pytest.mark.parametrize(("recovers", "status"), [(True, 0), (False, 1)])
def test_failed_rounds_are_tried_less_and_less_often_and_recovered_ones_are_no_failure(
    manager: StreamManager,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    recovers: bool,
    status: int,
) -> None:
    outcomes: list[Any] = [RootChanged("away")] * 3 + [StoreError("refused", url="u")] * 2
    outcomes += [MaintenanceResult(1, 1, {})] if recovers else []
    stop, pauses = StopSignal(), list[float]()
    stop.disarm()

    def work(_: MaintenanceRound) -> MaintenanceResult:
        done = outcomes.pop(0)
        if isinstance(done, Exception):
            raise done
        assert isinstance(done, MaintenanceResult)
        return done

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        if not outcomes:
            stop.request()
        return stop.is_set

    monkeypatch.setattr(stop, "wait", wait)
    monkeypatch.setattr(MaintenanceRound, "run", work)
    assert run(manager, "--interval", stop=stop) == status
    out, err = capfd.readouterr()
    record = json.loads(out.splitlines()[-1])
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert len(pauses) == 5 + recovers
    assert err.splitlines() == [
        "maintenance: RootChanged: away",
        "maintenance: StoreError: refused",
    ]
    assert (record["failed"], record["rounds"]) == (status, int(recovers))


def test_round_that_a_signal_cancelled_is_no_failure(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = StopSignal()
    stop.disarm()

    def cancelled(_: MaintenanceRound) -> MaintenanceResult:
        stop.request()
        raise StoreError("a job of Spark was cancelled", url="u")

    monkeypatch.setattr(MaintenanceRound, "run", cancelled)
    assert run(manager, "--interval", "1s", stop=stop) == 0
    out, err = capfd.readouterr()
    assert (json.loads(out.splitlines()[-1])["rounds"], err) == (0, "")


def test_kinds_that_failed_by_one_error_share_a_line_and_count_one_by_one(
    manager: StreamManager, capfd: pytest.CaptureFixture[str]
) -> None:
    log = Path(manager.root.removeprefix("file://")) / "s/t/events/_delta_log"
    max(log.glob("*.json")).write_text("garbage")
    stream_log._open.reset()
    assert run(manager, "--kinds", "retention", "--kinds", "scaling") == 1
    out, err = capfd.readouterr()
    assert json.loads(out.splitlines()[-1])["failed"] == 2
    (line,) = (line for line in err.splitlines() if line.startswith("maintenance: "))
    assert line.startswith("maintenance: scaling, retention of stream s/t: CorruptLog")
