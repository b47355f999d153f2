"""The web server of a root on a real S3 server, which hangs in the middle of a download."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pravega_spark import StreamManager
from tests.harness.s3_server import S3Server
from tests.harness.tcp_proxy import Network, tcp_proxy
from tests.harness.web_world import web_client

pytestmark = pytest.mark.s3
PAYLOAD = "/api/streams/s/t/event/payload?at=0%230%3D0"
SIZE = 12 << 20
WAIT_SECONDS = 120.0


def test_downloads_that_the_storage_stalls_are_answered_and_leave_their_threads(
    s3: S3Server,
) -> None:
    root = f"s3://{s3.bucket}/page"
    manager = StreamManager(root, storage_options=s3.options)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t", large_events=True) as writer:
        writer.write_event(bytes(SIZE), "k").result()
    with tcp_proxy(s3.endpoint_url) as proxy:
        limits = {"connect_timeout": "1 s", "read_timeout": "1 s", "retry_timeout": "1 s"}
        options = {**s3.options, "endpoint_url": proxy.url, **limits}
        served = StreamManager(root, storage_options=options)
        with web_client(served) as client, ThreadPoolExecutor(8) as clients:
            assert client.get("/api/streams/s/t").status_code == 200
            proxy.network = Network.SLOW
            before = proxy.answered_bytes
            asked = [clients.submit(client.get, PAYLOAD) for _ in range(8)]
            end = time.monotonic() + WAIT_SECONDS
            while proxy.answered_bytes < before + (1 << 20):
                assert time.monotonic() < end
                time.sleep(0.02)
            proxy.network = Network.STALL
            answers = [one.result(WAIT_SECONDS) for one in asked]
            assert {answer.status_code for answer in answers} == {503}
            assert {answer.json()["error"]["type"] for answer in answers} == {"StoreUnavailable"}
            proxy.network = Network.GOOD
            found = client.get(PAYLOAD)
            assert (found.status_code, len(found.content)) == (200, SIZE)
