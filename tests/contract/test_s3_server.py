"""The S3 store on a real server, and on one that loses requests and responses."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import botocore.auth
import pytest

from pravega_spark.engine.store import PutOutcome, Store, ensure_probed, open_store
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.engine.store.s3 import S3Store
from pravega_spark.engine.store.s3_client import S3Client
from pravega_spark.errors import (
    StoreError,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from tests.harness.fault_proxy import (
    LOSE_ANSWER,
    LOSE_REQUEST,
    REFUSALS,
    FaultProxy,
    Reply,
    start_proxy,
)
from tests.harness.s3_server import S3Server
from tests.harness.tcp_proxy import cut_after_headers

pytestmark = pytest.mark.s3
_roots = itertools.count()

EXISTS_AS_AWS = Reply(412, "PreconditionFailed", "<Condition>If-None-Match</Condition>")
EXISTS_AS_OTHERS = Reply(412, "PreconditionFailed")
CONFLICT = Reply(409, "ConditionalRequestConflict")


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with start_proxy(s3.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def store(s3: S3Server, proxy: FaultProxy) -> Store:
    """A store whose requests go through the proxy."""
    options = s3.options | {"endpoint_url": proxy.endpoint_url}
    root = f"s3://{s3.bucket}/faults-{next(_roots)}"
    store = S3Store(root, options, sleep=lambda seconds: None)
    proxy.decide = lambda method, path: None
    assert not store.exists("warm-up")
    proxy.seen.clear()
    return store


def test_lost_response_is_unknown_and_nothing_is_sent_again(
    store: Store, proxy: FaultProxy
) -> None:
    proxy.spoil("PUT", LOSE_ANSWER)
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    assert proxy.seen == ["PUT"]
    assert store.get("log/1.json") == b"mine"


def test_lost_request_is_unknown_and_the_object_does_not_exist(
    store: Store, proxy: FaultProxy
) -> None:
    proxy.spoil("PUT", LOSE_REQUEST)
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    assert not store.exists("log/1.json")


@pytest.mark.parametrize("create", [True, False], ids=["create", "put"])
def test_client_that_dies_before_the_body_leaves_no_empty_object(
    store: Store, s3: S3Server, create: bool
) -> None:
    """The server gets the headers, then the end of the connection that a killed client leaves."""
    with cut_after_headers(s3.endpoint_url) as (url, answers):
        dying = S3Store(store.url, s3.options | {"endpoint_url": url})
        if create:
            assert dying.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
        else:
            with pytest.raises(StoreUnavailable):
                dying.put("log/1.json", b"mine")
        assert answers.get(timeout=10).startswith(b"HTTP/1.1 4")
    assert not store.exists("log/1.json")


@pytest.mark.parametrize("reply", [EXISTS_AS_AWS, EXISTS_AS_OTHERS], ids=["aws", "others"])
def test_precondition_failed_is_exists_in_every_shape(
    store: Store, proxy: FaultProxy, reply: Reply
) -> None:
    proxy.spoil("PUT", reply)
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.EXISTS
    assert proxy.seen == ["PUT"]


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_conflict_is_retried(store: Store, proxy: FaultProxy, code: str) -> None:
    proxy.spoil("PUT", *[Reply(409, code)] * 3)
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.CREATED
    assert proxy.seen == ["PUT"] * 4


def test_permanent_conflict_is_unknown(store: Store, proxy: FaultProxy) -> None:
    proxy.spoil("PUT", *[CONFLICT] * 100)
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    assert 1 < proxy.seen.count("PUT") <= 10


@pytest.mark.parametrize("reply", [Reply(500, "InternalError"), Reply(503, "SlowDown")])
def test_server_error_of_a_create_is_unknown_at_once(
    store: Store, proxy: FaultProxy, reply: Reply
) -> None:
    proxy.spoil("PUT", reply)
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    assert proxy.seen == ["PUT"]


@pytest.mark.parametrize(("reply", "error", "text"), REFUSALS)
def test_refusal_is_an_error_with_its_reason(
    store: Store, proxy: FaultProxy, reply: Reply, error: type[StoreError], text: str
) -> None:
    proxy.spoil("PUT", reply, reply)
    for put in (store.put_if_absent, store.put):
        with pytest.raises(error, match=text) as caught:
            put("log/1.json", b"mine")
        assert "log/1.json" in str(caught.value) or store.url in str(caught.value)


def test_refusal_after_a_conflict_is_an_error_since_neither_was_applied(
    store: Store, proxy: FaultProxy
) -> None:
    proxy.spoil("PUT", CONFLICT, Reply(403, "AccessDenied"))
    with pytest.raises(StoreReadOnly, match="create failed with 403 AccessDenied"):
        store.put_if_absent("log/1.json", b"mine")
    assert proxy.seen == ["PUT", "PUT"]
    assert not store.exists("log/1.json")


def test_reads_are_retried_and_then_fail_with_the_object_named(
    store: Store, proxy: FaultProxy
) -> None:
    store.put("key", b"value")
    patient = RetryingStore(lambda url, options: store, store.url, {})
    for fault in (LOSE_ANSWER, LOSE_REQUEST, Reply(503, "SlowDown"), Reply(429, "TooManyRequests")):
        proxy.spoil("GET", *[fault] * 5)
        assert patient.get("key") == b"value"
        proxy.spoil("GET", *[fault] * 5)
        assert patient.open("key").read() == b"value"
    proxy.spoil("GET", Reply(503, "SlowDown"))
    with pytest.raises(StoreUnavailable, match="503 SlowDown"):
        store.get("key")
    proxy.spoil("GET", Reply(403, "AccessDenied"))
    with pytest.raises(StoreReadOnly, match="key: read failed with 403"):
        store.get("key")
    proxy.spoil("GET", Reply(403, "AccessDenied"))
    with pytest.raises(StoreReadOnly):
        store.get_many(["key"])
    proxy.spoil("GET", Reply(404, "NoSuchBucket"))
    with pytest.raises(StoreError, match="bucket does not exist"):
        store.list("")


@pytest.mark.parametrize("failed", [1, 2, 4], ids=["begin", "part", "end"])
def test_refused_upload_leaves_no_object_and_no_parts(
    store: Store, proxy: FaultProxy, s3: S3Server, failed: int
) -> None:
    replies = [None] * (failed - 1) + [Reply(403, "AccessDenied")]
    requests: list[str] = []

    def decide(method: str, path: str) -> Reply | None:
        if method in ("PUT", "POST"):
            requests.append(method)
            return replies[len(requests) - 1] if len(requests) <= len(replies) else None
        return None

    proxy.decide = decide
    with (
        pytest.raises(StoreReadOnly, match="chunk: put failed with 403"),
        store.writer("chunk") as file,
    ):
        file.write(bytes(9 << 20))
    proxy.decide = lambda method, path: None
    assert requests[:failed] == ["POST", "PUT", "PUT", "POST"][:failed]
    assert store.list("") == []
    assert store.discard_unfinished("", -60_000) == []


def test_upload_of_a_killed_process_is_aborted_when_it_is_old(store: Store, s3: S3Server) -> None:
    script = (
        "import os, sys; from pravega_spark.engine.store import open_store\n"
        "with open_store(sys.argv[1]).writer('a/chunk') as file:\n"
        "    file.write(bytes(9 << 20)); os._exit(9)"
    )
    environment = os.environ | s3.environment
    done = subprocess.run([sys.executable, "-c", script, store.url], check=False, env=environment)
    assert done.returncode == 9
    assert store.list("") == []
    assert store.discard_unfinished("", 60_000) == []
    assert store.discard_unfinished("b", -60_000) == []
    assert store.discard_unfinished("", -60_000, deep=False) == []
    (left,) = store.discard_unfinished("", -60_000)
    assert left.key == "a/chunk"
    assert store.discard_unfinished("", -60_000) == []


def test_uploads_that_may_not_be_listed_are_left(store: Store, proxy: FaultProxy) -> None:
    proxy.spoil("GET", Reply(403, "AccessDenied"))
    assert store.discard_unfinished("", -60_000) == []


def test_a_wrong_clock_is_named_by_reads_and_writes_and_is_no_lack_of_a_right(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"1")
    now = botocore.auth.get_current_datetime()
    late = now + timedelta(hours=2)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: late)
    for call in (lambda: store.get("a"), lambda: store.put("b", b"2")):
        with pytest.raises(StoreError, match="Set the clock of this machine") as caught:
            call()
        assert type(caught.value) is StoreError
    monkeypatch.undo()
    assert not store.exists("b")


def test_one_call_is_one_request(store: Store, proxy: FaultProxy) -> None:
    store.put_if_absent("log/1", b"1")
    store.put("log/2", b"2")
    store.put("large", b"0123456789" * 1_000_000)
    calls = {
        "get": lambda: store.get("log/1"),
        "get large": lambda: store.get("large"),
        "range": lambda: store.get_range("large", 5_000_000, 5_100_000),
        "open": lambda: store.open("log/1").read(),
        "exists": lambda: store.exists("log/1"),
        "absent": lambda: store.exists("log/3"),
        "list": lambda: store.list("log"),
        "discard": lambda: store.discard_unfinished("log", 0),
        "folders": lambda: store.folders(""),
        "delete": lambda: store.delete(["log/1", "log/2", "large"]),
    }
    for name, call in calls.items():
        proxy.seen.clear()
        call()
        assert len(proxy.seen) == 1, name


def test_newest_versions_of_a_long_log_take_one_short_request(
    s3: S3Server, store: Store, proxy: FaultProxy
) -> None:
    log = "a.scope-1/a.stream-2/events/_delta_log"
    names = [f"{log}/{number:020d}.json" for number in range(1_030)]
    direct = open_store(store.url, **s3.options)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: direct.put(name, b""), names))
    proxy.seen.clear()
    found = store.list(log, after=names[-3])
    assert [entry.key for entry in found] == names[-2:]
    assert proxy.seen == ["GET"]


def test_probe_refuses_a_server_that_ignores_the_condition(
    s3: S3Server, store: Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = S3Client.call

    def without_condition(client: S3Client, operation: str, *rest: Any, **options: Any) -> Any:
        return call(client, operation, *rest, **(options | {"headers": None}))

    monkeypatch.setattr(S3Client, "call", without_condition)
    with pytest.raises(StoreRefused, match="could be created twice"):
        ensure_probed(store)


def test_store_opens_from_url_and_environment_alone(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3a://{s3.bucket}/environment-{next(_roots)}"
    open_store(url, **s3.options).put("key", b"value")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(url)
    assert store.get("key") == b"value"
    assert s3.secret.encode() not in pickle.dumps(store)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert open_store(url) is not store
    with pytest.raises(StoreReadOnly):
        open_store(url).get("key")


FORKING = """
import os, sys
from pravega_spark.engine.store import open_store
store = open_store(sys.argv[1])
store.put("parent", b"before")
child = os.fork()
if child == 0:
    assert store.get("parent") == b"before"
    store.put("child", b"by the inherited store")
    assert open_store(sys.argv[1]) is not store
    open_store(sys.argv[1]).put("child2", b"by its own")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert store.get("child") == b"by the inherited store"
assert store.get("child2") == b"by its own"
"""


def test_store_works_in_a_forked_child(s3: S3Server) -> None:
    url = f"s3://{s3.bucket}/fork-{next(_roots)}"
    done = subprocess.run(
        [sys.executable, "-c", FORKING, url],
        env=os.environ | s3.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
