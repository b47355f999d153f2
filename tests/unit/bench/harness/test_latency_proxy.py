"""The proxy of the S3 benchmarks: it delays and counts calls, and lets them run side by side."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.harness.latency_proxy import RequestCounter, start_latency_proxy
from tests.harness.fault_proxy import Reply, start_proxy

CALLS = (
    b"PUT /b/a HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET / HTTP/1.1\r\n\r\n.."
    b"GET /b?list-type=2&prefix=x HTTP/1.1\r\nHost: h\r\n\r\n"
    b"PUT /b/c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    b"HEAD /b/a HTTP/1.1\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 7, 30])
def test_calls_are_counted_wherever_the_bytes_are_split(size: int) -> None:
    counts: Counter[str] = Counter()
    counter = RequestCounter(counts)
    for call in CALLS.partition(b"HEAD")[0], b"HEAD" + CALLS.partition(b"HEAD")[2]:
        for start in range(0, len(call), size):
            counter.feed(call[start : start + size])
    assert counts == {"PUT": 2, "LIST": 1, "HEAD": 1}


def test_calls_wait_side_by_side_and_are_counted() -> None:
    together = threading.Barrier(8, timeout=240)

    def answer(method: str, path: str) -> Reply:
        together.wait()  # until all calls are there, as they are at the same time
        return Reply(200, "x")

    with start_proxy("http://127.0.0.1:9") as server:  # a server that sends replies of its own
        server.decide = answer
        with start_latency_proxy(server.endpoint_url, 0.2) as slow:
            begun = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda n: get(f"{slow.endpoint_url}/{n}"), range(8)))
            assert time.monotonic() - begun >= 0.2
            assert slow.calls() == {"GET": 8}
            assert slow.calls() == {}
        assert slow.process.wait(60) == 0


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=240) as answer:
        content: bytes = answer.read()
        return content
