"""Clients that leave a connection half open, beside a real server process.

``versions``: the server's protocol is a subclass of uvicorn's, so they run with the lowest, too.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from pravega_spark.errors import InvalidOption
from pravega_spark.serve.serve_options import MAX_VIEWERS, ConnectionLimits, ServeOptions
from tests.harness.limited_server import LimitedServer, limited_server, request, rest

pytestmark = [pytest.mark.medium, pytest.mark.versions, pytest.mark.extended]

SOON = 1.0
"""Seconds of a limit that a test waits for."""
LATE = 300.0
"""Seconds of a limit that no test reaches."""
WAIT_SECONDS = 120.0


@pytest.fixture(scope="module")
def hasty() -> Iterator[LimitedServer]:
    with limited_server(header_seconds=SOON, body_seconds=SOON, unread_seconds=SOON) as started:
        yield started


@pytest.fixture(scope="module")
def patient() -> Iterator[LimitedServer]:
    with limited_server(header_seconds=LATE, body_seconds=LATE, unread_seconds=LATE) as started:
        yield started


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_ended(client: socket.socket, more: bytes = b"") -> bool:
    """Send a few more bytes; return whether the server has ended the connection."""
    client.settimeout(0.05)
    try:
        client.sendall(more)
        while client.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def new_viewer(server: LimitedServer) -> socket.socket:
    client = server.connect()
    client.sendall(request("GET /api/live"))
    return client


def live_viewer(server: LimitedServer) -> socket.socket:
    client = new_viewer(server)
    assert status(client.recv(1 << 16)) == 200
    return client


def unread(server: LimitedServer) -> socket.socket:
    """Ask for more answers than two kernels hold for a client that reads none."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect(("127.0.0.1", server.port))
    client.sendall(request("GET /api/openapi.json") * 1_000)
    return client


def wait_until_unread(server: LimitedServer, slow: socket.socket) -> None:
    """Wait until the server can write no more to a client that does not read."""
    before = -1
    while before != (before := server.unread_bytes(slow)) or not before:
        for _ in range(5):
            assert status(server.ask("GET /ping")) == 200


BODY = request("GET /ping", "Content-Length: 1000000")
CHUNKS = request("GET /ping", "Transfer-Encoding: chunked")


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"", b""),
        (b"GET /ping HT", b""),
        (b"GET /ping HTTP/1.1\r\nX-Long: ", b"a"),
        (b"GET /ping HTTP/1.0\r\n", b"X: a\r\n"),
        (request("GET /ping"), b""),
        (request("GET /ping"), b"\r\n"),
        (request("GET /ping") + b"GET /ping HTTP/1.1\r\nX-Long: ", b"a"),
        (BODY, b""),
        (BODY, b"a"),
        (CHUNKS, b"1\r\na\r\n"),
        (request("POST /v1/scopes", "Content-Length: 9"), b""),
        (request("PUT /v1/scopes", "Content-Length: 99999"), b"a"),
        (request("GET /api/live", "Content-Length: 1000000"), b"a"),
    ],
)
def test_a_request_that_does_not_end_ends_its_connection_whatever_trickles_in(
    hasty: LimitedServer, begun: bytes, more: bytes
) -> None:
    with hasty.connect() as client:
        client.sendall(begun)
        wait_for(lambda: is_ended(client, more))


def test_a_client_that_reads_no_answer_loses_its_connection(hasty: LimitedServer) -> None:
    assert status(hasty.ask("GET /ping")) == 200  # it has all that it opens as it starts
    idle = hasty.sockets()
    with unread(hasty):
        wait_for(lambda: hasty.sockets() > idle)
        wait_for(lambda: hasty.sockets() == idle)


DOWNLOAD = "GET /api/streams/nyc/f/event/payload?at=0%230=0"
PAYLOAD = 6 << 20
"""More than two kernels hold for a client that reads none of it."""


def slow_download(server: LimitedServer) -> socket.socket:
    """Ask for a payload, and read no more than its beginning."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(WAIT_SECONDS)
    client.connect(("127.0.0.1", server.port))
    client.sendall(request(DOWNLOAD))
    assert status(client.recv(1_024)) == 200
    return client


def test_a_download_whose_client_stops_reading_ends_and_one_that_reads_is_whole() -> None:
    with limited_server(payload=PAYLOAD, unread_seconds=SOON) as server:
        assert status(server.ask("GET /ping")) == 200
        idle = server.sockets()
        with slow_download(server):
            wait_for(lambda: server.sockets() == idle)
        assert len(server.ask(DOWNLOAD).partition(b"\r\n\r\n")[2]) == PAYLOAD


def test_downloads_that_nobody_reads_hold_no_thread_of_the_server() -> None:
    with limited_server(payload=PAYLOAD, unread_seconds=LATE) as server, ExitStack() as stack:
        slow = [stack.enter_context(slow_download(server)) for _ in range(45)]  # threads are 40
        assert status(server.ask("GET /v1/scopes")) == 200
        assert all(client.recv(1) for client in slow)  # they go on


def test_an_open_page_outlasts_the_limits(hasty: LimitedServer) -> None:
    with live_viewer(hasty) as viewer:
        for _ in range(3):
            with hasty.connect() as later:
                assert rest(later) == b""
        assert not is_ended(viewer)


def test_probes_answer_beside_300_half_open_connections(patient: LimitedServer) -> None:
    clients = [patient.connect() for _ in range(300)]
    for client in clients[:150]:
        client.sendall(b"GET /ping HTTP/1.1\r\nX: ")
    for path in ("/ping", "/v1/health/liveness", "/", "/v1/scopes"):
        assert status(patient.ask(f"GET {path}")) == 200, path
    assert not any(map(is_ended, clients[::50]))
    for client in clients:
        client.close()


def test_of_too_many_connections_the_oldest_that_waits_ends() -> None:
    with limited_server(connections=4, header_seconds=LATE) as server:
        with live_viewer(server) as viewer, server.connect() as used, server.connect() as first:
            used.sendall(request("GET /ping"))
            assert status(used.recv(1 << 16)) == 200
            with server.connect() as third, server.connect() as fourth:
                wait_for(lambda: is_ended(first))
                with server.connect():
                    wait_for(lambda: is_ended(used))
                    assert not any(map(is_ended, (viewer, third, fourth)))
                    assert status(server.ask("GET /ping")) == 200
                    wait_for(lambda: is_ended(third))
        said = server.end().splitlines()
    assert len(said) == 1  # not one for each
    assert "4 connections are open" in said[0]


def test_a_client_that_does_not_read_leaves_its_place_to_one_that_comes() -> None:
    with limited_server(connections=4, unread_seconds=LATE) as server, ExitStack() as stack:
        viewers = [stack.enter_context(live_viewer(server)) for _ in range(3)]
        slow = stack.enter_context(unread(server))
        wait_for(lambda: server.ask("GET /ping"))  # none while it is the only one that waits
        wait_for(lambda: is_ended(slow))
        assert not any(map(is_ended, viewers))


def test_a_server_of_few_files_keeps_half_of_them() -> None:
    with limited_server(files=80, header_seconds=LATE) as server:
        clients = [server.connect() for _ in range(200)]
        assert status(server.ask("GET /v1/scopes")) == 200
        for client in clients:
            client.close()


def test_a_server_without_a_free_file_ends_what_waits_and_says_so_once() -> None:
    with limited_server(files=80, free_files=8, header_seconds=LATE) as server:
        clients = [server.connect() for _ in range(6)]
        assert status(server.ask("GET /ping")) == 200
        for client in clients:
            client.close()
        wait_for(lambda: status(server.ask("GET /v1/scopes")) == 200)
        said = server.end()
    assert said.count("no connection can be accepted (Too many open files") == 1


def test_a_server_that_ends_while_it_has_no_free_file_says_nothing_but_that() -> None:
    with (
        limited_server(files=80, free_files=8, header_seconds=LATE, unread_seconds=LATE) as server,
        ExitStack() as stack,
    ):
        assert status(server.ask("GET /api/openapi.json")) == 200  # it loads files
        idle = [stack.enter_context(server.connect()) for _ in range(3)]  # these end first
        for client in idle:
            client.sendall(b"GET")
        slow = stack.enter_context(unread(server))  # for it the end waits, and accepting is tried
        wait_until_unread(server, slow)
        for _ in range(30):
            stack.enter_context(server.connect())
        wait_for(lambda: "no connection can be accepted" in server.said())
        said = server.end().splitlines()
    assert [line for line in said if "no connection can be accepted" not in line] == [], said


def test_64_pages_are_live_of_100_that_come_at_once_and_leave_their_places(
    patient: LimitedServer,
) -> None:
    for _ in range(2):
        viewers = [patient.connect() for _ in range(100)]
        assert status(patient.ask("GET /ping")) == 200
        with patient.stopped():
            for viewer in viewers:
                viewer.sendall(request("GET /api/live"))
        found = [status(viewer.recv(1 << 16)) for viewer in viewers]
        assert (found.count(200), found.count(503)) == (MAX_VIEWERS, 100 - MAX_VIEWERS)
        assert status(patient.ask("GET /v1/scopes")) == 200
        for viewer in viewers:
            viewer.close()
        wait_for(lambda: is_live(patient))


def is_live(server: LimitedServer) -> bool:
    with new_viewer(server) as viewer:
        return status(viewer.recv(1 << 16)) == 200


@pytest.mark.parametrize(
    "header",
    [
        request("POST /v1/scopes", "Content-Length: 5", "Transfer-Encoding: chunked"),
        request("GET /ping", "Transfer-Encoding: chunked", "Content-Length: 0"),
        request("GET /ping", "Transfer-Encoding: chunked", http="1.0"),
        request("GET /ping", "Content-Length: 0", "Content-Length: 5"),
        request("GET /ping", "Content-Length: +5"),
        request("GET /ping", "Content-Length : 5"),
        request("GET /ping", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        request("GET /ping", "Transfer-Encoding: x\x0bchunked"),
        CHUNKS + b"1\r\na--",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # TLS
    ],
)
def test_a_request_that_a_proxy_may_end_elsewhere_is_refused_with_all_that_follows(
    patient: LimitedServer, header: bytes
) -> None:
    with patient.connect() as client:
        client.sendall(header + b"0\r\n\r\n" + request("GET /v1/scopes"))
        answer = rest(client)
    assert status(answer) == 400
    assert len(re.findall(rb"HTTP/1\.1 \d", answer)) == 1
    assert b"connection: close" in answer.lower()


def test_a_server_ends_whatever_its_clients_leave_open() -> None:
    with limited_server(header_seconds=LATE, body_seconds=LATE, unread_seconds=LATE) as server:
        clients = [server.connect() for _ in range(9)]
        for client, begun in zip(clients, (b"", b"GET", BODY, CHUNKS, b"POST"), strict=False):
            client.sendall(begun)
        for client in clients[5:]:
            client.sendall(request("GET /ping"))
            assert status(client.recv(1 << 16)) == 200
        clients += [slow := unread(server), live_viewer(server)]
        wait_until_unread(server, slow)
        said = server.end()
        for client in clients:
            client.close()
    assert said == ""


def test_a_server_ends_the_connections_that_it_accepts_while_it_ends() -> None:
    with limited_server(header_seconds=LATE) as server, ExitStack() as stack:
        assert status(server.ask("GET /ping")) == 200
        server.begin_to_end()
        with suppress(OSError):  # it listens no more
            for _ in range(400):  # fewer than may be open
                stack.enter_context(server.connect())
        said = server.end()
    assert said == ""


def test_a_body_of_no_form_ends_its_connection_and_is_no_error_of_the_server() -> None:
    with limited_server() as server:
        for path in ("/ping", "/api/live", "/api/overview", "/none"):
            for begun in (CHUNKS, CHUNKS + b"1\r\na\r\n"):
                with server.connect() as client:
                    client.sendall(begun.replace(b"/ping", path.encode()) + b"no chunk\r\n")
                    rest(client)
                with server.connect() as client:
                    client.sendall(begun.replace(b"/ping", path.encode()))
                    assert client.recv(1 << 16)
                    client.sendall(b"no chunk\r\n")
                    rest(client)
        said = server.end().splitlines()
    assert set(said) == {"Invalid HTTP request received."}


@pytest.mark.parametrize("name", ["header_seconds", "body_seconds", "unread_seconds"])
def test_a_limit_that_nobody_could_keep_is_refused(name: str) -> None:
    for value in (0, -1, float("nan")):
        with pytest.raises(InvalidOption, match=f"{name}.*{value}"):
            ServeOptions(limits=ConnectionLimits(**{name: value}))  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="connections"):
        ConnectionLimits(connections=0)
