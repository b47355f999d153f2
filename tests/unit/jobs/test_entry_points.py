"""Entry points of the wheel: success returns, failure raises, whoever calls them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from pravega_spark.jobs.early_signals import SIGNALS
from tests.harness.launch_lines import JOBS, entry_points

COMMANDS = [name for name in entry_points() if name.startswith("pravega-spark-")]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def call(command: str) -> object:
    return EntryPoint(command, entry_points()[command], "console_scripts").load()()


@pytest.mark.parametrize("command", COMMANDS)
def test_entry_point_returns_nothing_after_success(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS[command.removeprefix("pravega-spark-").replace("-", "_")]
    monkeypatch.setattr(job, "main", lambda: 0)
    assert call(command) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_entry_point_raises_the_exit_status_of_a_failure(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JOBS[command.removeprefix("pravega-spark-").replace("-", "_")]
    monkeypatch.setattr(job, "main", lambda: 2)
    with pytest.raises(SystemExit) as end:
        call(command)
    assert end.value.code == 2
