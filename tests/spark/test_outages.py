"""A streaming query over an outage of its object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.s3_server import S3Server
from tests.harness.tcp_proxy import Network, tcp_proxy


@pytest.mark.s3
@pytest.mark.slow
def test_query_sits_out_an_outage_and_copies_each_event_once(s3: S3Server, tmp_path: Path) -> None:
    root = f"s3://{s3.bucket}/query-outage"
    manager = StreamManager(root, storage_options=s3.options)
    manager.create_scope("s")
    for stream in ("s/in", "s/out"):
        manager.create_stream(stream)
    with tcp_proxy(s3.endpoint_url) as proxy, manager.create_writer("s/in") as writer:
        writer.write_events([b"%d" % n for n in range(50)], "k").result(30)
        command = [sys.executable, "-m", "tests.harness.outage_query_app", root]
        environment = os.environ | s3.environment | {"AWS_ENDPOINT_URL": proxy.url}
        environment["PRAVEGA_SPARK_RETRY_TIMEOUT"] = "0"  # the query has an option that says more
        with (
            (tmp_path / "log").open("w") as log,
            subprocess.Popen(
                [*command, str(tmp_path / "checkpoint")],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for n in range(50, 100, 10):  # batches are under way when the network fails
                writer.write_events([b"%d" % m for m in range(n, n + 10)], "k").result(30)
                time.sleep(0.2)
                proxy.network = Network.REFUSE
            time.sleep(3)
            proxy.network = Network.GOOD
            out, _ = process.communicate("\n", 120)
        assert json.loads(out.splitlines()[-1]) == {"failure": None}
    assert "query-outage does not answer; each call" in (tmp_path / "log").read_text()
    assert [int(event.data) for event in manager.read("s/out")] == list(range(100))
