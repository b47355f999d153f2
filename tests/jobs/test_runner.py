"""What the jobs share, without Spark: their last line, and which signals end them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pravega_spark.jobs import retention, runner, scaling, transactions
from pravega_spark.jobs.signals import SIGNALS, Ending

NO_SPARK = cast(SparkSession, None)


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        (retention, "streams policies truncated events bytes sampled passed expired swept_files"),
        (scaling, "streams segments splits merges dropped"),
        (transactions, "streams open committed aborted cleared"),
    ],
    ids=["retention", "scaling", "transactions"],
)
def test_a_job_that_is_ended_in_its_first_round_tells_all_of_its_sums(
    job: Any, fields: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Ending()
    told.over()
    told._end(NO_SPARK)

    def rounds(prog: str, arguments: Any, work: Any, zeros: dict[str, int]) -> int:
        return runner.rounds(prog, arguments, NO_SPARK, work, zeros, told)

    monkeypatch.setattr(runner, "run", rounds)
    assert job.main(["--root", "unread", "--interval", "1s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds") >= 0
    assert found == dict.fromkeys([*fields.split(), "failed", "rounds"], 0) | {"dry_run": False}


@pytest.fixture
def restored() -> Iterator[None]:
    """The signals' handlers are put back afterwards."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_ends_a_job(number: signal.Signals, restored: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ending = Ending()
    ending.over()
    ending.listen(NO_SPARK)
    assert not ending.is_told
    cast(Callable[[], None], signal.getsignal(number))()
    assert ending.wait(10)


def test_a_hangup_that_is_ignored_stays_ignored(restored: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Ending().listen(NO_SPARK)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
