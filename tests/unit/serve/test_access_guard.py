"""What a reviewer of security asks: hosts, tokens, origins, headers, limits, and errors."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from pravega_spark import StreamManager
from pravega_spark.errors import InvalidOption, StoreUnavailable, without_credentials
from pravega_spark.serve import access_guard
from pravega_spark.serve.access_guard import SECURITY_HEADERS
from pravega_spark.serve.serve_options import (
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    ServeOptions,
    host_names,
)
from tests.harness.web_world import BEARER, TOKEN, changing_client, new_manager, web_client

CHANGES = [
    ("POST", "/v1/scopes", {"scopeName": "new"}),
    ("DELETE", "/v1/scopes/nyc", None),
    ("PUT", "/v1/scopes/nyc/streams/f/state", {"streamState": "SEALED"}),
    ("DELETE", "/v1/scopes/nyc/readergroups/g", None),
]


@pytest.fixture(scope="module")
def manager() -> StreamManager:
    """A root that no test changes."""
    made = new_manager()
    made.create_stream("nyc/f")
    made.create_reader_group("nyc/g", ["nyc/f"])
    return made


@pytest.fixture(scope="module")
def client(manager: StreamManager) -> Iterator[TestClient]:
    with web_client(manager) as opened:
        yield opened


def is_unchanged(manager: StreamManager) -> bool:
    scopes, groups = manager.list_scopes(), manager.list_reader_groups("nyc")
    state = manager.stream_info("nyc/f").state
    return (scopes, groups, state) == (["nyc"], ["nyc/g"], "ACTIVE")


# --------------------------------------------------------------------------------------- changes


def test_without_allow_changes_every_change_is_403_and_says_why(manager: StreamManager) -> None:
    with web_client(manager, token=TOKEN, headers=BEARER) as client:
        for method, path, body in CHANGES:
            answer = client.request(method, path, json=body)
            assert answer.status_code == 403, path
            assert "--allow-changes" in answer.json()["error"]["message"]
            assert is_unchanged(manager), path


def test_with_allow_changes_a_change_needs_the_token(manager: StreamManager) -> None:
    with web_client(manager, token=TOKEN, allow_changes=True) as client:
        for headers in ({}, {"Authorization": "Bearer wrong-token-of-length"}):
            for method, path, body in CHANGES:
                answer = client.request(method, path, json=body, headers=headers)
                assert answer.status_code == 401, (path, headers)
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert is_unchanged(manager), (path, headers)


def test_a_change_from_another_origin_is_refused_even_with_the_token(
    manager: StreamManager,
) -> None:
    with changing_client(manager) as client:
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://localhost:9999"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ):
            answer = client.post("/v1/scopes", json={"scopeName": "new"}, headers=headers)
            assert answer.status_code == 403, headers
            assert is_unchanged(manager), headers


def test_a_change_from_the_same_origin_passes() -> None:
    headers = {"Origin": "http://localhost:9091", "Sec-Fetch-Site": "same-origin"}
    with changing_client(new_manager()) as client:
        answer = client.post("/v1/scopes", json={"scopeName": "new"}, headers=headers)
    assert answer.status_code == 201


# ----------------------------------------------------------------------------------------- token


def test_with_a_token_all_data_needs_it_and_the_page_itself_does_not(
    manager: StreamManager,
) -> None:
    with web_client(manager, token=TOKEN) as client:
        paths = client.get("/api/openapi.json", headers=BEARER).json()["paths"]
        reads = [path for path, verbs in paths.items() if "get" in verbs]
        open_paths = {"/ping", "/v1/health/liveness", "/v1/health/readiness"}
        for path in {*reads, "/api/openapi.json"} - open_paths:
            assert client.get(path.replace("{", "").replace("}", "")).status_code == 401, path
        for path in open_paths:
            assert client.get(path).status_code == 200, path


def test_the_token_is_taken_as_bearer_or_as_the_password_of_basic(manager: StreamManager) -> None:
    basic = base64.b64encode(f"admin:{TOKEN}".encode()).decode()
    wrong = base64.b64encode(f"{TOKEN}:admin".encode()).decode()
    with web_client(manager, token=TOKEN) as client:

        def status(authorization: str) -> int:
            return client.get("/v1/scopes", headers={"Authorization": authorization}).status_code

        assert status(f"Bearer {TOKEN}") == 200
        assert status(f"bearer  {TOKEN}") == 200
        assert status(f"Basic {basic}") == 200
        refused = ("", "Bearer", TOKEN, f"Bearer {TOKEN}x", f"Basic {wrong}", "Basic !", "Digest x")
        for authorization in refused:
            assert status(authorization) == 401, authorization
        assert client.get(f"/v1/scopes?token={TOKEN}").status_code == 401


def test_the_token_is_not_shown(manager: StreamManager) -> None:
    assert TOKEN not in repr(ServeOptions(token=TOKEN))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "0.0.0.0"}, "needs a token"),
        ({"host": "::"}, "needs a token"),
        ({"host": "192.0.2.7"}, "needs a token"),
        ({"host": "streams.example.org"}, "needs a token"),
        ({"allow_changes": True}, "needs a token"),
        ({"token": "short"}, "at least 16"),
        ({"token": "token with ä umlaut"}, "ASCII"),
        ({"port": 70_000}, "65535"),
        ({"poll_seconds": 0.0}, "poll interval"),
        ({"poll_seconds": float("nan")}, "poll interval"),
    ],
)
def test_unsafe_options_are_refused_before_the_server_starts(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=said):
        ServeOptions(**options)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_on_loopback_no_token_is_needed(host: str) -> None:
    assert ServeOptions(host=host).token is None


# ------------------------------------------------------------------------------------------ host


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "", "a b", "x@localhost"]
)
def test_an_unknown_host_is_refused_as_after_dns_rebinding(client: TestClient, host: str) -> None:
    answer = client.get("/v1/scopes", headers={"Host": host})
    assert answer.status_code == 421
    assert "nyc" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9091", "[::1]:80"])
def test_localhost_and_addresses_are_known(client: TestClient, host: str) -> None:
    assert client.get("/v1/scopes", headers={"Host": host}).status_code == 200


def test_a_name_that_was_allowed_is_known(manager: StreamManager) -> None:
    with web_client(manager, allowed_hosts=host_names(["Streams.Example.org."])) as client:
        headers = {"Host": "streams.example.org:443"}
        assert client.get("/v1/scopes", headers=headers).status_code == 200
    for name in ("http://a", "a:1", "", "ä"):
        with pytest.raises(InvalidOption):
            host_names([name])


# ------------------------------------------------------------------------------ headers and limits


@pytest.mark.parametrize("path", ["/ping", "/v1/scopes", "/v1/scopes/none", "/nothing", "/"])
def test_every_answer_has_the_security_headers_and_no_cookie(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "Set-Cookie" not in answer.headers
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_data_is_not_kept_by_caches(client: TestClient) -> None:
    assert client.get("/v1/scopes").headers["Cache-Control"] == "no-store"


def test_long_queries_and_bodies_are_refused(manager: StreamManager) -> None:
    with changing_client(manager) as client:
        assert client.get(f"/v1/scopes?x={'a' * 16_000}").status_code == 414
        long = {"scopeName": "n" * MAX_BODY_BYTES}
        assert client.post("/v1/scopes", json=long).status_code == 413
        parts: Iterator[bytes] = itertools.repeat(b" " * 1_000, 100)  # without Content-Length
        headers = {"Content-Type": "application/json"}
        assert client.post("/v1/scopes", content=parts, headers=headers).status_code == 413
        headers["Content-Length"] = "-1"
        assert client.post("/v1/scopes", content=b"{}", headers=headers).status_code == 413
    assert is_unchanged(manager)


def test_a_long_header_block_is_refused_and_one_of_the_longest_passes(client: TestClient) -> None:
    for size, status in ((MAX_HEADER_BYTES - 1_000, 200), (MAX_HEADER_BYTES, 431)):
        answer = client.get("/v1/scopes", headers={"X-Long": "a" * size})
        assert answer.status_code == status


@pytest.mark.parametrize(
    "path",
    ["/v1/scopes", "/v1/scopes/nyc/streams/f", "/ping", "/v1/scopes/x", "/api/streams", "/api/x"],
)
def test_head_answers_as_get_without_a_body(client: TestClient, path: str) -> None:
    expected, answer = client.get(path), client.head(path)
    assert (answer.status_code, answer.content) == (expected.status_code, b"")
    assert answer.headers["Content-Length"] == expected.headers["Content-Length"]


def test_a_form_of_a_page_is_no_json(manager: StreamManager) -> None:
    body = {"content": b'{"scopeName": "new"}', "headers": {"Content-Type": "text/plain"}}
    with changing_client(manager) as client:
        assert client.post("/v1/scopes", **body).status_code == 400  # type: ignore[arg-type]
    assert is_unchanged(manager)


# ---------------------------------------------------------------------------------------- errors


def test_a_failure_of_the_server_tells_nothing_of_its_cause(
    client: TestClient, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StreamManager) -> list[str]:
        raise RuntimeError("secret-in-a-trace")

    monkeypatch.setattr(StreamManager, "list_scopes", fail)
    answer = client.get("/v1/scopes")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "InternalError"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


def test_errors_name_no_credentials_of_the_root(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StreamManager) -> list[str]:
        raise StoreUnavailable("ftp://user:hidden@host/root?key=hidden does not answer; wait.")

    monkeypatch.setattr(StreamManager, "list_scopes", fail)
    answer = client.get("/v1/scopes")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    message = answer.json()["error"]["message"]
    assert message == "ftp://***@host/root?*** does not answer; wait."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/root", "s3://bucket/root"),
        ("see s3://k:s@bucket/root, please", "see s3://***@bucket/root, please"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("token@s3://k@bucket", "token@s3://***@bucket"),
        ("https://h/p?sig=1&x=2 failed", "https://h/p?*** failed"),
        ("why? no URL here", "why? no URL here"),
    ],
)
def test_urls_are_shown_without_users_and_queries(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_names_in_errors_are_data_and_stay_json(client: TestClient) -> None:
    answer = client.get("/v1/scopes/<script>alert(1)<%2Fscript>")
    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/json"


def test_more_requests_than_can_be_answered_are_refused_but_for_probes_and_the_page(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_guard, "MAX_ANSWERS", 1)
    with web_client(manager) as client:
        for path in ("/v1/scopes", "/v1/scopes/none", "/api/none", "/v1/scopes"):  # one by one
            assert client.get(path).status_code in (200, 404)
        monkeypatch.setattr(access_guard, "MAX_ANSWERS", 0)
        for path in ("/v1/scopes", "/v1/scopes/none", "/api/overview", "/metrics"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5"), path
        for path in ("/", "/ping", "/v1/health/liveness", "/streams"):
            assert client.get(path).status_code == 200, path
