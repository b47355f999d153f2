"""How long and how often calls are repeated while the storage does not answer; and the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from pravega_spark.engine.store import retries as retries_module
from pravega_spark.engine.store.retries import Retries, pause_seconds
from pravega_spark.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from pravega_spark.values.limits import WRITER_EXIT_SECONDS
from tests.harness.fake_runtime import FakeRuntime

URL = "s3://bucket/root"
DOWN = StoreUnavailable("no response.", url=URL)


class Sleeper(FakeRuntime):
    """A fake runtime that records the pauses, and whose random numbers are given."""

    def __init__(self, number: float | None = None) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._number = number

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)

    def random(self) -> float:
        return super().random() if self._number is None else self._number


def down_until(runtime: FakeRuntime, seconds: float) -> Callable[[], str]:
    """Return a call that fails until so many seconds from now."""
    end = runtime.monotonic() + seconds

    def call() -> str:
        if runtime.monotonic() < end:
            raise DOWN
        return "answer"

    return call


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_call_that_succeeds_is_made_once_without_a_look_at_the_clock() -> None:
    class NoClock(FakeRuntime):
        def monotonic(self) -> float:
            raise AssertionError("a call that succeeds costs nothing")

    assert Retries(URL, 60.0, NoClock()).call(lambda: 7) == 7


@pytest.mark.parametrize("outage", [0.01, 0.3, 3.0, 10.0, 59.9, 60.0])
@pytest.mark.parametrize("number", [None, 0.01, 0.999])
def test_outage_up_to_the_limit_is_sat_out(outage: float, number: float | None) -> None:
    runtime = Sleeper(number)
    began = runtime.monotonic()
    assert Retries(URL, 60.0, runtime).call(down_until(runtime, outage)) == "answer"
    assert runtime.monotonic() - began <= outage + 2.0  # noticed soon after its end


def test_longer_outage_fails_at_the_limit_and_the_error_names_the_option() -> None:
    runtime = Sleeper()
    began = runtime.monotonic()
    with pytest.raises(StoreUnavailable, match=r"no response\. .* 60 s|retry_timeout") as raised:
        Retries(URL, 60.0, runtime).call(down_until(runtime, 61.0))
    assert runtime.monotonic() - began == pytest.approx(60.0)
    assert "repeated for 1 minute, as the storage option retry_timeout says" in str(raised.value)
    assert raised.value.url == URL
    assert raised.value.__cause__ is DOWN


def test_process_that_ends_does_not_wait_for_the_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries_module, "_exiting", threading.Event())
    runtime = Sleeper()
    began = runtime.monotonic()

    def call() -> None:
        retries_module._exiting.set()
        raise DOWN

    with pytest.raises(StoreUnavailable):
        Retries(URL, 60.0, runtime).call(call)
    assert runtime.monotonic() - began == pytest.approx(WRITER_EXIT_SECONDS)


def test_without_a_time_nothing_is_repeated() -> None:
    runtime = Sleeper()
    with pytest.raises(StoreUnavailable):
        Retries(URL, 0.0, runtime).call(down_until(runtime, 0.01))
    assert runtime.pauses == []


@pytest.mark.parametrize("error", [StoreError("x"), StoreFull("x"), StoreReadOnly("x"),
                                   FileNotFoundError("x"), ValueError("x")])  # fmt: skip
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as raised:
        Retries(URL, 60.0, Sleeper()).call(fail)
    assert raised.value is error
    assert len(calls) == 1


def test_pauses_double_up_to_a_limit_with_full_jitter() -> None:
    longest = [pause_seconds(Sleeper(1.0), failures) for failures in range(1, 12)]
    assert longest[:7] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert set(longest[6:]) == {2.0}
    runtime = FakeRuntime(seed=1)
    drawn = [pause_seconds(runtime, 20) for _ in range(1_000)]
    assert 0.0 <= min(drawn) < 0.05
    assert 1.95 < max(drawn) <= 2.0
    assert sum(drawn) / len(drawn) == pytest.approx(1.0, abs=0.1)


def test_calls_of_an_outage_are_few() -> None:
    runtime = Sleeper()
    Retries(URL, 60.0, runtime).call(down_until(runtime, 60.0))
    assert len(runtime.pauses) < 120


def test_outage_is_one_warning_and_one_line_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runtime = Sleeper()
    retries = Retries(URL, 5.0, runtime)
    call = down_until(runtime, 30.0)
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            retries.call(call)
    assert retries.call(call) == "answer"
    assert retries.call(call) == "answer"
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0] == (
        "s3://bucket/root does not answer; each call is repeated for up to 5 s (retry_timeout): "
        "no response."
    )
    assert lines[1].startswith("s3://bucket/root answers again, after 30")
    assert len(warnings(caplog)) == 1

    later = down_until(runtime, 4.0)  # another outage
    assert retries.call(later) == "answer"
    assert len(warnings(caplog)) == 2


def test_short_failures_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runtime = Sleeper()
    retries = Retries(URL, 60.0, runtime)
    for _ in range(20):
        retries.call(down_until(runtime, 0.3))
    assert caplog.records == []


def test_calls_of_many_threads_share_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The outage ends when a call is answered and none of another thread waits any more."""
    caplog.set_level(logging.INFO)
    runtime = FakeRuntime()
    retries = Retries(URL, 1_000.0, runtime)
    is_down = threading.Event()
    is_down.set()
    failed = threading.Barrier(9, timeout=30)

    def run() -> None:
        calls = 0

        def call() -> str:
            nonlocal calls
            calls += 1
            if calls == 40:
                failed.wait()
            if is_down.is_set() and calls < 40:
                raise DOWN
            return "answer"

        assert retries.call(call) == "answer"

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    failed.wait()
    for thread in threads:
        thread.join(30)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" ")[1] for line in lines] == ["does", "answers"]
