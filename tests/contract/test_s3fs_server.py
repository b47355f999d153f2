"""An s3fs.S3FileSystem that is handed in, on a real server, and beside the package's own client."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store import PutOutcome, Store, open_store
from pravega_spark.engine.store.generic import GenericStore
from pravega_spark.engine.store.root_url import RootUrl
from pravega_spark.errors import (
    StoreError,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from tests.harness import racers
from tests.harness.fault_proxy import LOSE_ANSWER, REFUSALS, FaultProxy, Reply, start_proxy
from tests.harness.s3_server import S3Server
from tests.harness.tcp_proxy import cut_after_headers

s3fs = pytest.importorskip("s3fs", reason="pip install '.[test]': no s3fs")
S3FileSystem: Any = s3fs.S3FileSystem
pytestmark = pytest.mark.s3
_roots = itertools.count()


def new_root(s3: S3Server) -> str:
    return f"s3://{s3.bucket}/s3fs-{next(_roots)}"


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with start_proxy(s3.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def store(s3: S3Server, proxy: FaultProxy) -> Store:
    """A store whose requests go through the proxy, and are not repeated by us."""
    options = s3.options | {"endpoint_url": proxy.endpoint_url}
    given = RootUrl(new_root(s3), filesystem=s3fs.S3FileSystem(**options))
    store = GenericStore(given, {})
    proxy.decide = lambda method, path: None
    assert not store.exists("warm-up")
    proxy.seen.clear()
    return store


@pytest.mark.parametrize("details", ["<Condition>If-None-Match</Condition>", ""])
def test_precondition_failed_is_exists_in_every_shape(
    store: Store, proxy: FaultProxy, details: str
) -> None:
    proxy.spoil("PUT", Reply(412, "PreconditionFailed", details))
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.EXISTS
    assert proxy.seen == ["PUT"]


class Once(S3FileSystem):
    """Sends each request once."""

    retries = 1


@pytest.mark.parametrize("create", [True, False], ids=["create", "put"])
def test_client_that_dies_before_the_body_leaves_no_empty_object(
    store: Store, s3: S3Server, create: bool
) -> None:
    with cut_after_headers(s3.endpoint_url) as (url, answers):
        once: dict[str, Any] = {"retries": {"max_attempts": 0}, "read_timeout": 2}
        once["request_checksum_calculation"] = "when_required"  # else botocore adds one
        options = s3.options | {"endpoint_url": url, "config_kwargs": once}
        dying = GenericStore(RootUrl(store.url, filesystem=Once(**options)), {})
        if create:
            assert dying.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
        else:
            with pytest.raises(StoreUnavailable):
                dying.put("log/1.json", b"mine")
        assert answers.get(timeout=10).startswith(b"HTTP/1.1 4")
    assert not store.exists("log/1.json")


def test_silent_server_is_no_answer_within_the_time_out() -> None:
    """s3fs would wait for ever for leave to send the body."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        once = {"retries": {"max_attempts": 0}, "read_timeout": 0.3}
        endpoint_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        given = Once(key="k", secret="s", endpoint_url=endpoint_url, config_kwargs=once)
        store = GenericStore(RootUrl("s3://b/silent", filesystem=given), {})
        assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
        with pytest.raises(StoreUnavailable):
            store.put("log/1.json", b"mine")
        with pytest.raises(StoreUnavailable), store.writer("log/1.json") as file:
            file.write(b"mine")


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_conflict_is_unknown(store: Store, proxy: FaultProxy, code: str) -> None:
    proxy.spoil("PUT", Reply(409, code))
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.CREATED


def test_own_create_whose_answer_is_lost_comes_back_as_exists_and_is_there(
    store: Store, proxy: FaultProxy
) -> None:
    proxy.spoil("PUT", LOSE_ANSWER)
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.EXISTS
    assert proxy.seen == ["PUT", "PUT"]  # s3fs has sent it again
    assert store.get("log/1.json") == b"mine"


@pytest.mark.parametrize(("reply", "error", "text"), REFUSALS)
def test_refusal_is_an_error_with_its_reason(
    store: Store, proxy: FaultProxy, reply: Reply, error: type[StoreError], text: str
) -> None:
    proxy.spoil("PUT", reply, reply)
    for put in (store.put_if_absent, store.put):
        with pytest.raises(error, match=text) as caught:
            put("log/1.json", b"mine")
        assert store.url in str(caught.value)
        assert type(caught.value) is error


def test_reads_fail_with_the_meaning_that_the_own_client_gives_an_answer(
    store: Store, s3: S3Server, proxy: FaultProxy
) -> None:
    store.put("key", b"value")
    proxy.spoil("GET", Reply(403, "AccessDenied"))
    with pytest.raises(StoreReadOnly, match="key: read failed with 403"):
        store.get("key")
    proxy.spoil("GET", Reply(404, "NoSuchBucket"))
    with pytest.raises(StoreError, match="bucket does not exist"):
        store.get("key")
    proxy.spoil("GET", Reply(404, "NoSuchKey"))
    with pytest.raises(FileNotFoundError):
        store.get("key")
    options = s3.options | {"endpoint_url": proxy.endpoint_url}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    once = GenericStore(RootUrl(store.url, filesystem=Once(**options)), {})
    for method, call in (("GET", once.get), ("HEAD", once.exists)):
        proxy.spoil(method, *[Reply(500, "InternalError")] * 100)
        with pytest.raises(StoreUnavailable):
            call("key")
    assert store.get("key") == b"value"


def test_calls_cost_what_the_page_says(store: Store, proxy: FaultProxy) -> None:
    store.put("folder/large", bytes(9 << 20))
    calls: dict[str, tuple[Callable[[], object], list[str]]] = {
        "create": (lambda: store.put_if_absent("log/1", b"1"), ["PUT"]),
        "put": (lambda: store.put("log/2", b"2"), ["PUT"]),
        "get": (lambda: store.get("log/1"), ["GET"]),
        "get large": (lambda: store.get("folder/large"), ["GET"]),
        "range": (lambda: store.get_range("folder/large", 5, 50), ["GET"]),
        "many": (lambda: store.get_many(["log/1", "log/2", "absent"]), ["GET"] * 3),
        "open": (lambda: store.open("folder/large").read(9), ["HEAD", "GET"]),
        "date": (lambda: store.modified_ms("log/1"), ["HEAD"]),
        "there": (lambda: store.exists("log/1"), ["HEAD"]),
        "absent": (lambda: store.exists("log/3"), ["HEAD", "GET"]),
        "list": (lambda: store.list("log"), ["GET"]),
        "delete": (lambda: store.delete(["log/1", "log/2"]), ["DELETE"] * 2),
    }
    found = {}
    for name, (call, _) in calls.items():
        proxy.seen.clear()
        call()
        found[name] = list(proxy.seen)
    assert found == {name: requests for name, (_, requests) in calls.items()}
    with pytest.raises(FileNotFoundError):  # as each look at the tail of a log
        store.get("log/3")
    assert proxy.seen[-1:] == ["GET"]
    assert len(proxy.seen) == len(calls["delete"][1]) + 1


class Overwriting(S3FileSystem):
    """Takes ``mode="create"``, and overwrites."""

    async def _pipe_file(self, path: str, data: bytes, mode: str = "", **options: Any) -> Any:
        return await super()._pipe_file(path, data, **options)


def test_create_that_is_not_exclusive_is_refused(s3: S3Server) -> None:
    manager = StreamManager(new_root(s3), filesystem=Overwriting(**s3.options))
    with pytest.raises(StoreRefused, match="could be created twice"):
        manager.create_scope("nyc")
    assert StreamManager(manager.root).list_scopes() == []


def _race(store: Store, racer: int, rounds: int, start: Any, results: Any) -> None:
    store.exists("warm-up")
    results.put((racer, racers.run(store, racer, rounds, start)))


def test_creates_of_both_clients_exclude_one_another(s3: S3Server) -> None:
    """Processes with either client create the same keys; each has one winner, whose bytes stay."""
    root, rounds = new_root(s3), 3
    stores = [
        open_store(root, **s3.options),
        open_store(RootUrl(root, filesystem=s3fs.S3FileSystem(**s3.options))),
    ] * 3
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(len(stores), timeout=60), context.Queue()
    processes = [
        context.Process(target=_race, args=(store, number, rounds, start, results))
        for number, store in enumerate(stores)
    ]
    for process in processes:
        process.start()
    answers = dict(results.get(timeout=240) for _ in processes)
    for process in processes:
        process.join(60)
    for at, key in enumerate(racers.keys(rounds)):
        (winner,) = [n for n in answers if answers[n][at] is PutOutcome.CREATED]
        for store in stores[:2]:
            assert store.get(key) == racers.content(winner)


def test_writers_of_both_clients_share_a_stream(s3: S3Server) -> None:
    root = new_root(s3)
    own = StreamManager(root, storage_options=s3.options)
    given = StreamManager(root, filesystem=s3fs.S3FileSystem(**s3.options))
    own.create_scope("nyc")
    given.create_stream("nyc/flights", StreamConfiguration(ScalingPolicy.fixed(1)))

    def append(client: StreamManager, name: str) -> None:
        with client.create_writer("nyc/flights", writer_id=name) as writer:
            for number in range(10):
                writer.write_event(f"{name} {number}".encode(), name).result()

    with ThreadPoolExecutor() as pool:
        list(pool.map(append, (own, given), ("own", "given")))
    for client in (own, given):
        events = [event.data.decode() for event in client.read("nyc/flights")]
        for name in ("own", "given"):
            mine = [event for event in events if event.startswith(name)]
            assert mine == [f"{name} {number}" for number in range(10)]
    assert given.compact_stream("nyc/flights") is not None
    own.sweep_stream("nyc/flights", grace=0, retain=0)
    assert len(list(given.read("nyc/flights"))) == 20


FORKING = """
import os, sys
import s3fs
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager

manager = StreamManager(sys.argv[1], filesystem=s3fs.S3FileSystem())
store = manager._root.store
store.put("parent", b"before")
child = os.fork()
if child == 0:
    assert store.get("parent") == b"before"
    store.put("child", b"by the inherited store")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert store.get("child") == b"by the inherited store"
"""


def test_file_system_works_in_a_forked_child(s3: S3Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, new_root(s3)],
        env=os.environ | s3.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
