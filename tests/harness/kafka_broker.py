"""A real Kafka broker on loopback: one process of one node, with Kafka's own jars.

A test that needs one calls :func:`start_kafka`, which skips it where the jars are missing
(``make setup`` fetches them, see ``spark_jars``). A benchmark calls :func:`running_broker`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

from tests.harness.spark_jars import has_kafka, jars

_START_ATTEMPTS = 3
_START_SECONDS = 90.0
_STOP_SECONDS = 30.0
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.partitions={partitions}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.flush.interval.messages=9223372036854775807
"""


@contextlib.contextmanager
def start_kafka(partitions: int = 2) -> Iterator[str]:
    """Start a broker, and yield its ``bootstrap.servers``; a topic appears when it is written.

    Skips the test if the jars of the broker or of Spark's connector are missing.
    """
    import pytest

    if not has_kafka():
        pytest.skip("Kafka's jars are missing: python -m tests.harness.spark_jars fetches them")
    with running_broker(partitions) as servers:
        yield servers


@contextlib.contextmanager
def running_broker(
    partitions: int = 2, within: Path | None = None, jvm: Sequence[str] = _JVM
) -> Iterator[str]:
    """Start a broker, yield its ``bootstrap.servers``, and end it.

    Its log is below ``within``, by default in the folder of temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=within) as folder:
        process, servers = _started(Path(folder), partitions, jvm)
        try:
            yield servers
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _started(
    folder: Path, partitions: int, jvm: Sequence[str]
) -> tuple[subprocess.Popen[bytes], str]:
    for attempt in range(_START_ATTEMPTS):
        place = folder / str(attempt)
        place.mkdir()
        port, controller = _free_port(), _free_port()
        settings = place / "server.properties"
        settings.write_text(
            _SETTINGS.format(port=port, controller=controller, folder=place, partitions=partitions)
        )
        tool = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)]
        subprocess.run(_java(*tool), check=True, capture_output=True, timeout=_START_SECONDS)
        output = (place / "output").open("wb")
        process = subprocess.Popen(
            _java("kafka.Kafka", str(settings), jvm=jvm),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=place,
            start_new_session=True,
        )
        output.close()
        if _is_open(port, process):
            return process, f"127.0.0.1:{port}"
        process.kill()
        process.wait()
    raise AssertionError(f"no Kafka broker: {(place / 'output').read_text()[-2_000:]}")


def _java(*words: str, jvm: Sequence[str] = _JVM) -> list[str]:
    """Return a command that runs a class of Kafka."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin/java")) if home else "java"
    scala = Path(pyspark.__file__).parent.glob("jars/scala-library-*.jar")  # not fetched again
    classes = os.pathsep.join(map(str, [*jars("broker"), *scala]))
    return [program, *jvm, "-cp", classes, *words]


def _is_open(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the port accepts a connection; False if the process ended, as by a taken port."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
