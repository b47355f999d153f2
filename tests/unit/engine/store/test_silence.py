"""A server that accepts connections and hangs is warned of while the call waits."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

from pravega_spark.engine.store import s3_client
from pravega_spark.engine.store.base import PutOutcome, Store
from pravega_spark.engine.store.retrying_store import RetryingStore
from pravega_spark.engine.store.s3 import S3Store
from pravega_spark.engine.store.s3_client import SILENCE_SECONDS, Silence

LONG_SECONDS = 120.0
OK = b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "tag"\r\n\r\n'


class Clock:
    """A clock that advances only while somebody waits for a socket, which stays silent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(s3_client, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(s3_client, "wait_for_read", self.wait)

    def wait(self, connection: socket.socket, seconds: float) -> bool:
        self.now += seconds
        return False


def unexpected(seconds: float) -> None:
    raise AssertionError(f"a silence of {seconds} s was reported")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_silence_is_reported_until_the_time_is_over(clock: Clock) -> None:
    reported: list[float] = []
    with pytest.raises(TimeoutError):
        Silence(reported.append).await_answer(object(), 3.5 * SILENCE_SECONDS)
    assert reported == [SILENCE_SECONDS, 2 * SILENCE_SECONDS, 3 * SILENCE_SECONDS]
    assert clock.now == 1_000.0 + 3.5 * SILENCE_SECONDS


def test_shorter_time_out_is_left_to_those_who_repeat_the_call(clock: Clock) -> None:
    reported: list[float] = []
    with pytest.raises(TimeoutError):
        Silence(reported.append).await_answer(object(), SILENCE_SECONDS)
    assert reported == []


def test_answer_that_is_there_is_waited_for_by_nobody() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"H")
        Silence(unexpected).await_answer(ours, LONG_SECONDS)
    with_pending = SimpleNamespace(pending=lambda: 1)  # bytes of TLS that no poll sees
    Silence(unexpected).await_answer(with_pending, LONG_SECONDS)


class HangingServer:
    """A server that accepts connections and reads requests, and answers when it is told.

    A request for ``quick`` is answered at once.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.answer = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):  # the client has gone
            while request := connection.recv(65_536):
                if b"/quick" not in request:
                    assert self.answer.wait(LONG_SECONDS)
                connection.sendall(OK)

    def close(self) -> None:
        self.answer.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[HangingServer]:
    made = HangingServer()
    yield made
    made.close()


def options(server: HangingServer) -> dict[str, str]:
    return {"endpoint_url": server.url, "key": "k", "secret": "s", "read_timeout": "1 hour"}


def test_slow_call_of_a_server_that_answers_others_is_not_reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, server: HangingServer
) -> None:
    store, waits = S3Store("s3://bucket/root", options(server)), iter(range(4))
    store.on_silence = unexpected

    def wait(connection: socket.socket, seconds: float) -> bool:
        """Answer another call in the middle of the wait; at last, the call itself."""
        clock.now += seconds / 2
        monkeypatch.setattr(s3_client, "wait_for_read", lambda *_: True)
        store.get("quick")
        monkeypatch.setattr(s3_client, "wait_for_read", wait)
        clock.now += seconds / 2
        if next(waits, None) is None:
            server.answer.set()
            return True
        return False

    monkeypatch.setattr(s3_client, "wait_for_read", wait)
    began = clock.now
    assert store.get("slow") == b""
    assert clock.now - began == 5 * SILENCE_SECONDS


class Lines(logging.Handler):
    """The lines of a logger, for which a test can wait."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []
        self.changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.changed:
            self.texts.append(record.getMessage())
            self.changed.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.texts) >= count, LONG_SECONDS)
            return self.texts


@pytest.mark.parametrize("creates", [False, True])
def test_server_that_hangs_is_one_warning_while_the_call_waits_and_one_line_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    server: HangingServer,
    creates: bool,
) -> None:
    monkeypatch.setattr(s3_client, "SILENCE_SECONDS", 0.02)
    lines = Lines()
    logger = logging.getLogger("pravega_spark.engine.store.retries")
    logger.addHandler(lines)
    caplog.set_level(logging.INFO, logger.name)
    store: Store = RetryingStore(S3Store, "s3://bucket/root", options(server))
    try:
        with ThreadPoolExecutor(1) as pool:
            create, read = partial(store.put_if_absent, "key", b"data"), partial(store.get, "key")
            call: Callable[[], object] = create if creates else read
            waiting = pool.submit(call)
            (warning,) = lines.wait_for(1)
            assert warning.startswith(
                "s3://bucket/root does not answer; each call is repeated for up to 60 s "
                "(retry_timeout): a call has had no answer for"
            )
            assert not waiting.done()
            server.answer.set()
            assert waiting.result(LONG_SECONDS) in (b"", PutOutcome.CREATED)
        warning, end = lines.wait_for(2)
        assert end.startswith("s3://bucket/root answers again, after")
    finally:
        logger.removeHandler(lines)
