"""Streaming queries over an outage of their object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from pravega_spark.cli import main
from tests.harness.s3_server import S3Server
from tests.harness.tcp_proxy import Network, tcp_proxy
from tests.harness.tiers import only_long

pytestmark = pytest.mark.extended


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


@pytest.mark.s3
@pytest.mark.long
@only_long(
    "the listener's part is in tests/unit/spark/groups/test_group_listener.py: threads, an outage, "
    "the end of a process"
)
def test_run_in_a_group_that_ends_in_an_outage_is_acknowledged_after_it(
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = f"s3://{s3.bucket}/group-outage"
    manager = StreamManager(root, storage_options=s3.options)
    manager.create_scope("s")
    for name in ("steady", "last"):
        manager.create_stream(f"s/{name}")
        with manager.create_writer(f"s/{name}") as writer:
            writer.write_events([b"%d" % n for n in range(10)], "k").result(30)

    def left(name: str) -> int:
        return manager.reader_group(f"s/of-{name}").lag().events

    with tcp_proxy(s3.endpoint_url) as proxy:
        command = [sys.executable, "-m", "tests.harness.outage_group_app", root, str(tmp_path)]
        environment = os.environ | s3.environment | {"AWS_ENDPOINT_URL": proxy.url}
        environment["PRAVEGA_SPARK_RETRY_TIMEOUT"] = "1 s"
        with (
            (tmp_path / "log").open("w") as log,
            subprocess.Popen(
                command,
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
            proxy.network = Network.REFUSE
            process.stdin.write("\n")
            process.stdin.flush()
            in_outage = json.loads(process.stdout.readline())
            assert in_outage["late"] < 10, "Spark's listener thread is free"
            assert in_outage["in_vain"], "its batch is done, not the report"
            assert left("last") == 10
            proxy.network = Network.GOOD
            deadline = time.monotonic() + 60
            while left("last"):
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.1)
            with manager.create_writer("s/steady") as writer:
                writer.write_events([b"%d" % n for n in range(10, 15)], "k").result(30)
            out, _ = process.communicate("\n", 120)
        assert json.loads(out.splitlines()[-1]) == {"steady": None, "is_measured": True}
    assert left("steady") == 0, "the end of the process waits for the report"
    log_text = (tmp_path / "log").read_text()
    assert "It is tried again as long as this process runs." in log_text
    for name, value in (s3.environment | {"AWS_ENDPOINT_URL": s3.endpoint_url}).items():
        monkeypatch.setenv(name, value)
    for name in ("steady", "last"):
        assert main(["reader-group", "sync", "--checkpoint", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out.endswith("  known\n"), "nothing is left to do"
