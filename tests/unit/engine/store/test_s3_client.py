"""What goes over the wire to S3: how often, signed by which keys, to which region."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import NoCredentialsError

from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.engine.store.s3 import S3Store
from pravega_spark.engine.store.s3_errors import refusal
from pravega_spark.errors import StoreReadOnly, StoreUnavailable
from tests.harness.fake_runtime import FakeRuntime

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {"ETag": '"tag"'}, b"")
STARTED = b"<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"


@dataclass
class Server:
    """An HTTP server that answers as it is told, and keeps the requests."""

    url: str
    answers: list[Answer | Callable[[], Answer]] = field(default_factory=list)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)

    def keys(self) -> list[str]:
        """The access key of each request."""
        return [
            headers["authorization"].partition("Credential=")[2].partition("/")[0]
            for _, _, headers in self.seen
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: Server

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server_of.connections.add(self.client_address)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_of.seen.append((self.command, self.path, headers))
        given = self.server_of.answers.pop(0) if self.server_of.answers else OK
        status, more, body = given() if callable(given) else given
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | more).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = "Content-Length" in more

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server("")
    handler = type("_This", (_Handler,), {"server_of": found})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        found.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        http.shutdown()
        thread.join()


def error(status: int, code: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()


def store_at(server: Server, **options: Any) -> S3Store:
    given = {"endpoint_url": server.url, "key": "k", "secret": "s"} | options
    return S3Store("s3://bucket/root", {name: v for name, v in given.items() if v is not None})


def test_create_is_one_signed_request_that_waits_for_no_leave(server: Server) -> None:
    store = store_at(server, token="session-token")
    assert store.put_if_absent("a b", b"data") is PutOutcome.CREATED
    ((method, path, headers),) = server.seen
    assert (method, path) == ("PUT", "/bucket/root/a%20b")
    assert headers["if-none-match"] == "*"
    assert headers["x-amz-security-token"] == "session-token"
    assert "x-amz-security-token" in headers["authorization"]
    assert headers["content-length"] == "4"
    assert {"expect", "transfer-encoding"}.isdisjoint(headers)
    assert store.response_date is not None


def test_connections_are_used_again_and_a_new_one_follows_one_that_the_server_closed(
    server: Server,
) -> None:
    store = store_at(server)
    for number in range(5):
        store.put_if_absent(f"key{number}", b"data")
        store.get("key")
    assert len(server.connections) == 1
    server.answers = [(200, {"Connection": "close", "ETag": "tag"}, b"")]
    store.get("key")
    assert store.put_if_absent("after", b"data") is PutOutcome.CREATED
    assert len(server.connections) == 2


def test_anonymous_requests_are_not_signed(server: Server) -> None:
    store_at(server, key=None, secret=None, anon=True).exists("key")
    assert "authorization" not in server.seen[0][2]


def test_request_goes_again_to_the_region_that_the_answer_names(server: Server) -> None:
    server.answers = [error(301, "PermanentRedirect", x_amz_bucket_region="eu-west-1")]
    store = store_at(server)
    assert store.put_if_absent("key", b"data") is PutOutcome.CREATED
    store.put("other", b"data")
    regions = [headers["authorization"].split("/")[2] for _, _, headers in server.seen]
    assert regions == ["us-east-1", "eu-west-1", "eu-west-1"]


def test_redirect_to_the_same_region_is_an_error(server: Server) -> None:
    server.answers = [error(301, "PermanentRedirect", x_amz_bucket_region="us-east-1")] * 2
    with pytest.raises(Exception, match="301 PermanentRedirect"):
        store_at(server).get("key")
    assert len(server.seen) == 1


def profile(tmp_path: Path, key: str) -> None:
    text = f"[writer]\naws_access_key_id={key}\naws_secret_access_key=s\n"
    (tmp_path / "credentials").write_text(text)


@pytest.fixture
def with_profile(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    profile(tmp_path, "old")
    return store_at(server, key=None, secret=None, profile="writer")


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "TokenRefreshRequired"])
def test_keys_of_a_profile_that_changed_are_read_when_the_old_have_ended(
    server: Server, with_profile: S3Store, tmp_path: Path, code: str
) -> None:
    with_profile.put("before", b"")
    profile(tmp_path, "new")
    with_profile.put("still", b"")
    server.answers = [error(403, code)]
    assert with_profile.put_if_absent("create", b"data") is PutOutcome.CREATED
    with_profile.put("after", b"")
    assert server.keys() == ["old", "old", "old", "new", "new"]


def test_head_without_a_reason_reads_the_keys_again(
    server: Server, with_profile: S3Store, tmp_path: Path
) -> None:
    with_profile.put("before", b"")
    profile(tmp_path, "new")
    server.answers = [(400, {}, b"")]
    assert with_profile.exists("key")
    assert server.keys() == ["old", "old", "new"]


def test_keys_that_have_ended_and_are_not_renewed_are_an_error(
    server: Server, with_profile: S3Store
) -> None:
    server.answers = [error(403, "ExpiredToken")]
    with pytest.raises(StoreReadOnly, match="403 ExpiredToken"):
        with_profile.get("key")
    assert len(server.seen) == 1


def test_process_that_supplies_credentials_is_asked_before_they_end(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    script = (
        f"echo x >> {count}; "
        f'echo \'{{"Version": 1, "AccessKeyId": "key\'$(wc -l < {count} | tr -d \' \')\'",'
        ' "SecretAccessKey": "s", "SessionToken": "t", "Expiration": '
        f"\"'$(cat {tmp_path}/end)'\"}}'"
    )
    (tmp_path / "process").write_text(script)
    (tmp_path / "config").write_text(
        f"[profile writer]\ncredential_process = sh {tmp_path}/process\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    (tmp_path / "end").write_text("2000-01-01T00:00:00Z")  # ended
    store = store_at(server, key=None, secret=None, profile="writer")
    with pytest.raises(StoreReadOnly, match=r"needs credentials.*expired"):
        store.put("key", b"")
    (tmp_path / "end").write_text("2999-01-01T00:00:00Z")
    store.put("key", b"")
    store.put("key", b"")
    assert len(set(server.keys())) == 1
    assert len(server.seen) == 2
    assert server.seen[0][2]["x-amz-security-token"] == "t"


class Supplier:
    """The process that supplies a profile with keys; without keys it fails."""

    def __init__(self, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given, self.server = folder / "supplied", server
        (folder / "config").write_text(f"[profile writer]\ncredential_process = cat {self.given}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "none"))

    def supply(self, key: str, minutes: int) -> None:
        end = datetime.now(timezone.utc) + timedelta(minutes=minutes)
        found = {"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s"}
        self.given.write_text(json.dumps(found | {"Expiration": end.isoformat()}))

    def store(self) -> S3Store:
        return store_at(self.server, key=None, secret=None, profile="writer")


@pytest.fixture
def supplier(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supplier:
    return Supplier(tmp_path, server, monkeypatch)


@pytest.mark.parametrize("minutes", [12, 5])
def test_keys_that_renewed_themselves_since_the_refused_request_are_used(
    server: Server, supplier: Supplier, minutes: int
) -> None:
    def rotated() -> Answer:  # after the signature, before the answer
        supplier.supply("new", minutes)
        return error(403, "InvalidAccessKeyId")

    supplier.supply("old", minutes)
    store = supplier.store()
    server.answers = [rotated]
    assert store.put_if_absent("create", b"data") is PutOutcome.CREATED
    assert server.keys() == ["old", "new"]


class SupplyingRuntime(FakeRuntime):
    """A simulated clock; the supplier gives keys again once a call has waited so often."""

    def __init__(self, supplier: Supplier, waits: int) -> None:
        super().__init__()
        self.supplier, self.waits = supplier, waits

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waits -= 1
        if self.waits == 0:
            self.supplier.supply("new", 60)


def test_supplier_of_keys_that_fails_for_a_moment_is_waited_for(
    server: Server, supplier: Supplier
) -> None:
    supplier.supply("old", 5)  # so soon before their end, keys are renewed for each request
    store, runtime = supplier.store(), SupplyingRuntime(supplier, waits=3)
    waiting = RetryingStore(lambda url, options: store, "s3://bucket/root", {}, runtime=runtime)
    waiting.put("before", b"")
    supplier.given.unlink()
    assert (
        waiting.put_if_absent("create", b"") is PutOutcome.UNKNOWN
    )  # the caller reads, and that waits
    with pytest.raises(StoreUnavailable, match="their supplier has no valid ones any more"):
        store.put("key", b"")
    assert server.keys() == ["old"]
    assert waiting.get("create") == b""
    assert waiting.put_if_absent("create", b"") is PutOutcome.CREATED
    assert server.keys() == ["old", "new", "new"]


def test_supplier_of_keys_that_fails_is_one_warning_of_ours_and_botocore_logs_nothing(
    server: Server, supplier: Supplier, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pravega_spark")
    supplier.supply("old", 12)  # so long before their end, keys are renewed if that is possible
    store = supplier.store()
    store.put("before", b"")
    supplier.given.unlink()
    for _ in range(3):
        store.put("key", b"")
    assert server.keys() == ["old"] * 4
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the supplier of credentials fails" in warning.getMessage()
    assert "No such file" in warning.getMessage()
    details = [r for r in caplog.records if r.exc_info and r.levelno == logging.DEBUG]
    assert len(details) == 3
    assert not [r for r in caplog.records if r.name == "botocore.credentials"]


def test_supplier_that_fails_once_keys_have_ended_is_an_error_and_botocore_logs_nothing(
    server: Server, supplier: Supplier, caplog: pytest.LogCaptureFixture
) -> None:
    supplier.supply("old", 5)
    store = supplier.store()
    store.put("before", b"")
    supplier.given.unlink()
    with pytest.raises(StoreUnavailable, match="their supplier has no valid ones any more"):
        store.put("key", b"")
    assert not caplog.records


def test_botocore_goes_on_to_log_what_other_users_of_it_ask_of_a_supplier(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> dict[str, str]:
        raise OSError("down")

    soon = (datetime.now(timezone.utc) + timedelta(minutes=12)).isoformat()
    keys = {"access_key": "a", "secret_key": "s", "token": "t", "expiry_time": soon}
    found = RefreshableCredentials.create_from_metadata(keys, fail, "theirs")
    assert found.get_frozen_credentials().access_key == "a"
    assert [record.name for record in caplog.records] == ["botocore.credentials"]


@pytest.mark.medium
def test_supplier_of_keys_that_renews_them_late_is_waited_for(
    server: Server, with_profile: S3Store, tmp_path: Path
) -> None:
    with_profile.put("before", b"")
    server.answers = [error(403, "ExpiredToken"), error(403, "ExpiredToken")]
    with pytest.raises(StoreUnavailable, match="ExpiredToken"):
        with_profile.put("key", b"")
    assert with_profile.put_if_absent("create", b"") is PutOutcome.UNKNOWN
    (tmp_path / "credentials").write_text("")  # just being written again
    server.answers = [error(403, "ExpiredToken")]
    with pytest.raises(StoreUnavailable):
        with_profile.get("key")
    profile(tmp_path, "new")
    server.answers = [error(403, "ExpiredToken")]
    assert with_profile.put_if_absent("create", b"") is PutOutcome.CREATED
    assert server.keys() == ["old"] * 5 + ["new"]


def test_keys_of_the_environment_are_not_waited_for_once_they_have_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t")
    store = store_at(server, key=None, secret=None)
    store.put("before", b"")
    server.answers = [error(403, "ExpiredToken")]
    with pytest.raises(StoreReadOnly, match="403 ExpiredToken"):
        store.put("key", b"")


def test_error_of_missing_keys_names_the_process_and_says_that_executors_have_their_own() -> None:
    text = str(refusal(NoCredentialsError(), "s3://b", "GetObject"))
    assert f"process {os.getpid()} on host {socket.gethostname()} has none" in text
    assert "a Spark executor has its own environment" in text


def test_keys_that_were_given_and_were_good_are_not_waited_for_once_they_have_ended(
    server: Server,
) -> None:
    store = store_at(server)
    store.put("before", b"")
    server.answers = [error(403, "ExpiredToken")]
    with pytest.raises(StoreReadOnly, match="403 ExpiredToken"):
        store.put("key", b"")


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(404, "ResourceNotFound", StoreReadOnly),
                                 (400, "Throttling", StoreUnavailable)]
)  # fmt: skip
def test_answer_of_the_service_that_supplies_keys_says_nothing_about_the_object(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
    kind: type[Exception],
) -> None:
    (tmp_path / "token").write_text("token")
    (tmp_path / "config").write_text(
        f"[profile writer]\nrole_arn = arn:aws:iam::123456789012:role/w\n"
        f"web_identity_token_file = {tmp_path}/token\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    told = f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>".encode()
    server.answers = [(status, {}, told)] * 2
    store = store_at(server, key=None, secret=None, profile="writer")
    with pytest.raises(kind, match=code):
        store.get("key")  # not FileNotFoundError
    with pytest.raises(kind, match=code):
        store.put("key", b"")
    assert [method for method, _, _ in server.seen] == ["POST", "POST"]


def test_connection_that_ends_within_the_body_is_no_answer(server: Server) -> None:
    store = store_at(server)
    server.answers = [(200, {"Content-Length": "100"}, b"half")]
    with pytest.raises(StoreUnavailable, match="no response"):
        store.get("key")
    server.answers = [(200, {"Content-Length": "100"}, b"")]
    assert store.put_if_absent("key", b"data") is PutOutcome.UNKNOWN
    assert [method for method, _, _ in server.seen] == ["GET", "PUT"]


def test_upload_whose_end_fails_after_its_status_is_an_error(server: Server) -> None:
    started = STARTED
    failed = b"<Error><Code>InternalError</Code></Error>"
    server.answers = [(200, {}, started), OK, OK, (200, {}, failed)]
    with pytest.raises(StoreUnavailable, match="InternalError"), store_at(server).writer("k") as f:
        f.write(bytes((8 << 20) + 1))
    assert [method for method, _, _ in server.seen] == ["POST", "PUT", "PUT", "POST", "DELETE"]


@pytest.mark.medium
@pytest.mark.parametrize("call", ["put_many", "get_many", "delete"])
def test_requests_of_one_call_are_sent_at_the_same_time(server: Server, call: str) -> None:
    together = threading.Barrier(4)

    def wait() -> Answer:
        together.wait(30)
        return 200, {"ETag": "tag"}, b"<DeleteResult/>"

    server.answers = [wait] * 4
    store, keys = store_at(server), [f"key{number}" for number in range(4)]
    if call == "put_many":
        store.put_many([(key, b"x") for key in keys])
    elif call == "get_many":
        assert store.get_many(keys) == [b"<DeleteResult/>"] * 4
    else:
        store.delete([f"key{number}" for number in range(3_001)])
    assert len(server.seen) == 4


def test_parts_of_a_large_object_are_sent_at_the_same_time(server: Server) -> None:
    together = threading.Barrier(3)

    def wait() -> Answer:
        together.wait(30)
        return OK

    started: Answer = 200, {}, STARTED
    done: Answer = 200, {}, b"<CompleteMultipartUploadResult/>"
    server.answers = [started, wait, wait, wait, *[OK] * 6, done]
    store_at(server).put("large", bytes((64 << 20) + 1))
    assert [method for method, _, _ in server.seen] == ["POST", *["PUT"] * 9, "POST"]


def test_answer_that_is_no_xml_is_no_answer(server: Server) -> None:
    server.answers = [(200, {}, b"<html>")]
    with pytest.raises(StoreUnavailable, match="not XML"):
        store_at(server).list("")


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b""])
def test_a_success_without_a_tag_is_no_answer_of_the_storage(server: Server, body: bytes) -> None:
    """A gateway that wants a login answers every request with 200 and a page."""
    store = store_at(server)
    page: Answer = (200, {"Content-Type": "text/html"}, body)
    server.answers = [page] * 4
    assert store.put_if_absent("log/1.json", b"mine") is PutOutcome.UNKNOWN
    for call in (lambda: store.put("key", b"mine"), lambda: store.get("key")):
        with pytest.raises(StoreUnavailable, match="no ETag"):
            call()
    with pytest.raises(StoreUnavailable, match="no ETag"):
        store.exists("key")
