"""A store that sits out outages: which calls are repeated, and what a repetition does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.store import PutOutcome, Store, open_store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.errors import (
    InvalidConfiguration,
    InvalidInput,
    InvalidOption,
    StoreReadOnly,
    StoreUnavailable,
)
from pravega_spark.values.units import MIB
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy
from tests.harness.store_backends import make_generic

DOWN = StoreUnavailable("no response.")


class Outage:
    """A store whose client fails for some calls."""

    def __init__(self, *rules: Rule, retry_timeout: object = "60 s") -> None:
        self.spy, self.runtime = Spy(), FakeRuntime()
        self.store: Store = RetryingStore(
            lambda url, options: self.spy,
            "memory://",
            {"retry_timeout": retry_timeout},
            runtime=self.runtime,
        )
        self.spy.inner.put("a/1", b"one")
        self.spy.inner.put("a/2", b"two")
        self.spy.rules.add(*rules)


CALLS: dict[str, tuple[Callable[[Store], Any], Any]] = {
    "get": (lambda store: store.get("a/1"), b"one"),
    "get_many": (lambda store: store.get_many(["a/1", "b"]), [b"one", None]),
    "exists": (lambda store: store.exists("a/2"), True),
    "put": (lambda store: store.put("a/1", b"new"), None),
    "delete": (lambda store: store.delete(key for key in ["a/1"]), None),
    "folders": (lambda store: store.folders(""), ["a"]),
    "list": (lambda store: [entry.key for entry in store.list("a")], ["a/1", "a/2"]),
    "open": (lambda store: store.open("a/2").read(), b"two"),
    "discard_unfinished": (lambda store: store.discard_unfinished("a", 0), []),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_that_may_be_made_twice_is_repeated(name: str) -> None:
    call, expected = CALLS[name]
    outage = Outage(*[Rule(DOWN, name, nth=number) for number in (1, 2, 3)])
    assert call(outage.store) == expected
    assert outage.spy.fired[name, Fault.REFUSE] == 3


@pytest.mark.parametrize("name", CALLS)
def test_call_without_a_failure_is_made_once(name: str) -> None:
    outage = Outage()
    CALLS[name][0](outage.store)
    assert [operation for operation, _ in outage.spy.calls].count(name) <= 2  # get_many: per key
    assert outage.runtime.elapsed == FakeRuntime().elapsed


@pytest.mark.parametrize("name", CALLS)
def test_refused_call_is_not_repeated(name: str) -> None:
    outage = Outage(Rule(StoreReadOnly("denied"), name))
    with pytest.raises(StoreReadOnly, match="denied"):
        CALLS[name][0](outage.store)
    assert outage.spy.fired[name, Fault.REFUSE] == 1
    assert outage.runtime.elapsed == FakeRuntime().elapsed


@pytest.mark.parametrize("name", CALLS)
def test_call_is_given_up_after_the_limit(name: str) -> None:
    outage = Outage(Rule(DOWN, name), retry_timeout="10 s")
    with pytest.raises(StoreUnavailable, match=r"repeated for 10 s.* retry_timeout"):
        CALLS[name][0](outage.store)
    assert outage.runtime.elapsed - FakeRuntime().elapsed == pytest.approx(10.0)


@pytest.mark.parametrize("call", ["get_many", "put_many", "stage"])
def test_busy_storage_that_refuses_every_third_request_delays_a_call_for_many(call: str) -> None:
    """Repeated as a whole it would never succeed: some of its requests are refused each time."""
    outage = Outage(
        *(
            Rule(DOWN, operation, nth=n)
            for operation in ("get_many", "put")
            for n in range(3, 600, 3)
        )
    )
    many = [f"many/{number}" for number in range(40)]
    if call == "get_many":
        for key in many:
            outage.spy.inner.put(key, key.encode())
        assert outage.store.get_many([*many, "absent"]) == [*map(str.encode, many), None]
    else:
        getattr(outage.store, call)([(key, key.encode()) for key in many])
        assert outage.spy.inner.get_many(many) == [*map(str.encode, many)]
    assert outage.spy.fired["get_many" if call == "get_many" else "put", Fault.REFUSE] < 100


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_create_without_an_answer_is_not_sent_again(fault: Fault) -> None:
    """Sent again unseen, it could meet its own object, or be refused after it was applied."""
    outage = Outage(Rule(fault, "put_if_absent", nth=1))
    assert outage.store.put_if_absent("c", b"mine") is PutOutcome.UNKNOWN
    assert outage.spy.count("put_if_absent") == 1
    assert outage.runtime.elapsed == FakeRuntime().elapsed


class Streaming(MemoryStore):
    """A store whose uploads fail for a time: at the begin, while bytes are sent, or at the end."""

    def __init__(self, runtime: FakeRuntime, where: str, seconds: float) -> None:
        super().__init__()
        self.runtime, self.where = runtime, where
        self.until = runtime.monotonic() + seconds
        self.uploads = self.discarded = 0

    def fail_at(self, where: str) -> None:
        if where == self.where and self.runtime.monotonic() < self.until:
            raise DOWN

    def writer(self, key: str) -> Any:
        self.uploads += 1
        self.fail_at("begin")
        return _Upload(self, super().writer(key))


class _Upload:
    def __init__(self, store: Streaming, inner: Any) -> None:
        self.store, self.inner = store, inner

    def __enter__(self) -> _Upload:
        self.sink = self.inner.__enter__()
        return self

    def write(self, data: Any) -> None:
        self.store.fail_at("write")
        self.sink.write(data)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            try:
                self.store.fail_at("end")
            except StoreUnavailable as failed:
                self.store.discarded += 1
                self.inner.__exit__(type(failed), failed, None)
                raise
        else:
            self.store.discarded += 1
        self.inner.__exit__(kind, error, traceback)


def uploading(where: str, seconds: float) -> tuple[RetryingStore, Streaming]:
    runtime = FakeRuntime()
    client = Streaming(runtime, where, seconds)
    return RetryingStore(lambda url, options: client, "memory://", {}, runtime=runtime), client


@pytest.mark.medium
@pytest.mark.parametrize("where", ["begin", "write", "end"])
@pytest.mark.parametrize("size", [1_000, 20 << 20])
def test_upload_is_sent_again_after_an_outage(where: str, size: int) -> None:
    store, client = uploading(where, 10.0)
    part = bytes(range(250)) * (size // 1_000)
    with store.writer("a") as file:
        for _ in range(4):
            file.write(part)
    assert client.get("a") == part * 4
    assert client.uploads > 1


def test_upload_without_an_outage_is_sent_once() -> None:
    store, client = uploading("", 0.0)
    with store.writer("a") as file:
        file.write(b"data")
    assert (client.get("a"), client.uploads, client.discarded) == (b"data", 1, 0)


@pytest.mark.parametrize("where", ["begin", "write", "end"])
def test_upload_is_given_up_after_the_limit(where: str) -> None:
    store, client = uploading(where, 61.0)
    with pytest.raises(StoreUnavailable, match="retry_timeout"), store.writer("a") as file:
        file.write(b"data")
    assert not client.exists("a")


@pytest.mark.parametrize("where", ["", "write"])
def test_upload_of_a_failed_block_stores_nothing(where: str) -> None:
    store, client = uploading(where, 10.0)

    def fail() -> None:
        with store.writer("a") as file:
            file.write(b"data")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not client.exists("a")
    assert client.uploads == 1


def test_retries_are_an_option_of_the_store() -> None:
    url = make_generic().url
    assert open_store("s3://b/r").retry_seconds == 60.0
    assert open_store("s3://b/r", retry_timeout="2 minutes").retry_seconds == 120.0
    assert open_store("s3://b/r", retry_timeout=0).retry_seconds == 0.0
    assert open_store(url, retry_timeout=5).retry_seconds == 5.0
    assert open_store(url, retry_timeout=5) is open_store(url, retry_timeout=5)
    assert open_store("memory://x").retry_seconds == 0.0
    copy = pickle.loads(pickle.dumps(open_store("s3://b/r", retry_timeout="2 minutes")))
    assert copy is open_store("s3://b/r", retry_timeout="2 minutes")
    for value in ("soon", -1, "5", None, float("inf")):
        with pytest.raises(InvalidConfiguration, match="retry_timeout"):
            open_store("s3://b/r", retry_timeout=value)


def test_environment_has_the_default_of_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's queries and jobs open stores by their URL only, on executors, too."""
    monkeypatch.setenv("PRAVEGA_SPARK_RETRY_TIMEOUT", "5 minutes")
    for url in ("s3://b/r", make_generic().url):
        assert open_store(url).retry_seconds == 300.0
    assert open_store("s3://b/r", retry_timeout="7 s").retry_seconds == 7.0
    monkeypatch.setenv("PRAVEGA_SPARK_RETRY_TIMEOUT", "0 s")
    assert open_store("s3://b/r").retry_seconds == 0.0
    monkeypatch.setenv("PRAVEGA_SPARK_RETRY_TIMEOUT", "")
    assert open_store("s3://b/r").retry_seconds == 60.0
    monkeypatch.setenv("PRAVEGA_SPARK_RETRY_TIMEOUT", "soon")
    with pytest.raises(InvalidConfiguration, match="PRAVEGA_SPARK_RETRY_TIMEOUT"):
        open_store("s3://b/r")


def test_memory_of_recent_chunks_is_an_option_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_generic().url
    assert open_store("s3://b/r").cache_bytes == 64 * MIB
    assert open_store("s3://b/r", chunk_cache="1 GiB").cache_bytes == 1_024 * MIB
    assert open_store(url, chunk_cache=0).cache_bytes == 0
    assert open_store("memory://x").cache_bytes == 0
    assert open_store("s3://b/r", chunk_cache=1) is not open_store("s3://b/r")
    for value in ("much", -1, None, float("inf")):
        with pytest.raises(InvalidConfiguration, match="chunk_cache"):
            open_store("s3://b/r", chunk_cache=value)
    with pytest.raises(InvalidOption, match="chunk_cache"):
        open_store("memory://x", chunk_cache=1)
    monkeypatch.setenv("PRAVEGA_SPARK_CHUNK_CACHE", "8 MiB")
    assert open_store("s3://b/r").cache_bytes == open_store(url).cache_bytes == 8 * MIB
    monkeypatch.setenv("PRAVEGA_SPARK_CHUNK_CACHE", "much")
    with pytest.raises(InvalidConfiguration, match="PRAVEGA_SPARK_CHUNK_CACHE"):
        open_store("s3://b/r")


@pytest.mark.medium
def test_environment_of_a_process_has_the_defaults_of_its_client() -> None:
    code = (
        "from pravega_spark.engine.store import open_store\n"
        "store = open_store('s3://bucket/r')\n"
        "settings = store.inner._settings\n"
        "print(store.retry_seconds, *settings.timeouts, settings.client['endpoint_url'], store)"
    )
    variables = {
        "PRAVEGA_SPARK_RETRY_TIMEOUT": "2 minutes",
        "FSSPEC_S3_CONNECT_TIMEOUT": "2 s",
        "FSSPEC_S3": '{"read_timeout": 3.5, "secret": "hidden", "key": "hidden"}',
        "FSSPEC_S3_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split()[:4] == ["120.0", "2.0", "3.5", "http://127.0.0.1:9"]
    assert "hidden" not in found.stdout + found.stderr


def test_timeouts_of_a_call_are_options_of_s3() -> None:
    def config(**options: Any) -> tuple[float, float]:
        store = open_store("s3://bucket/r", key="k", secret="s", **options)
        assert isinstance(store, RetryingStore)
        inner: Any = store.inner
        timeouts: tuple[float, float] = inner._settings.timeouts
        return timeouts

    assert config() == (5.0, 15.0)
    assert config(connect_timeout="500 ms", read_timeout=3) == (0.5, 3.0)
    assert config(config_kwargs={"read_timeout": 30}) == (5.0, 30)
    with pytest.raises(InvalidInput, match="read_timeout is given twice"):
        open_store("s3://b/r", read_timeout=3, config_kwargs={"read_timeout": 30})
    for value in ("soon", 0, -1):
        with pytest.raises(InvalidInput, match="connect_timeout"):
            open_store("s3://b/r", connect_timeout=value)
