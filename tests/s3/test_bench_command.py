"""``bench`` on a real S3 server: its counts are the server's, and its folder is gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.harness.latency_proxy import start_latency_proxy
from pravega_spark import StreamManager
from pravega_spark.engine.store import Store, open_store
from tests.harness.s3_server import S3Server

pytestmark = pytest.mark.s3
COMMAND = [sys.executable, "-u", "-m", "pravega_spark.cli", "bench", "--seconds", "10 min"]
BUCKET = "bench"


@pytest.fixture
def store(s3: S3Server) -> Iterator[Store]:
    """The whole bucket, with an object of somebody else, which stays as it is."""
    s3.make_bucket(BUCKET)
    store = open_store(f"s3://{BUCKET}", **s3.options)
    store.put("trial/mine", b"kept")
    yield store
    assert [(entry.key, store.get(entry.key)) for entry in store.list("")] == [
        ("trial/mine", b"kept")
    ]
    assert store.discard_unfinished("", 0) == []


def environment(s3: S3Server, endpoint_url: str) -> dict[str, str]:
    return {**os.environ, **s3.environment, "AWS_ENDPOINT_URL": endpoint_url}


@pytest.mark.usefixtures("store")
def test_calls_are_those_that_the_server_gets(s3: S3Server) -> None:
    argv = [*COMMAND, "--root", f"s3://{BUCKET}/trial/", "--calls", "1500", "--output", "json"]
    with start_latency_proxy(s3.endpoint_url, 0.0) as proxy:
        done = subprocess.run(
            argv,
            env=environment(s3, proxy.endpoint_url),
            capture_output=True,
            text=True,
            check=False,
        )
        sent = proxy.calls()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    counted = found["used"]["calls"]
    assert found["proof"]["is_complete"]
    assert found["proof"]["is_good"]
    assert found["proof"]["events"] == found["proof"]["acknowledged"] > 0
    assert sum(counted.values()) <= 1_500
    assert counted["PUT"] == sent["PUT"]
    uploads = 1  # the clean-up lists unfinished uploads, which the proxy takes for a GET
    assert counted["LIST"] == sent["LIST"] + uploads
    assert counted["GET"] == sent["GET"] + sent["HEAD"] - uploads
    assert 0 < sent["POST"] + sent["DELETE"] < counted["DELETE"]  # many objects a request


@pytest.mark.usefixtures("store")
def test_a_signal_leaves_no_object(s3: S3Server) -> None:
    argv = [*COMMAND, "--root", f"s3://{BUCKET}/trial"]
    env = environment(s3, s3.endpoint_url)
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "append:" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=300)
    assert (process.returncode, "Traceback" in error) == (128 + signal.SIGTERM, False)


def test_a_root_above_in_the_bucket_is_refused_and_rights_are_needed(
    s3: S3Server, store: Store
) -> None:
    StreamManager(f"s3://{BUCKET}/trial/root", storage_options=s3.options).create_scope("s")
    for place, env, part in (
        ("trial/root/s/deep", {}, "lies in s3://bench/trial/root, which is a root of streams"),
        (
            "trial/other",
            {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "reader-secret"},
            "pravega-spark: Store",
        ),
    ):
        done = subprocess.run(
            [*COMMAND, "--root", f"s3://{BUCKET}/{place}"],
            env={**environment(s3, s3.endpoint_url), **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert part in done.stderr
        assert "Traceback" not in done.stderr
    store.delete([entry.key for entry in store.list("trial/root")])
