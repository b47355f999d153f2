"""Group commit while its writers are killed and stopped: many real processes on one stream."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.harness.hard_killed_writers import HardKilledWriters
from tests.harness.s3_server import S3Server
from tests.harness.tcp_proxy import Network, tcp_proxy
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and SIGSTOP"),
    pytest.mark.slow,
    pytest.mark.long,
]
WRITERS = sized(6, 16, "KILL_WRITERS")
SECONDS = float(sized(3, 180, "KILL_SECONDS"))
SEED = sized(1, 2, "KILL_SEED")


def proved(writers: HardKilledWriters) -> None:
    events = [event.data.decode() for event in writers.manager.read(STREAM)]
    acknowledged = writers.check(events)
    versions = writers.manager.stream_info(STREAM).version
    print(
        f"{writers.killed} kills, {writers.stopped} stops: {acknowledged} events acknowledged, "
        f"{len(events)} in {versions} commits"
    )
    assert acknowledged > WRITERS
    assert writers.killed > 0
    assert writers.stopped > 0


def test_writers_on_a_disk(tmp_path: Path) -> None:
    writers = HardKilledWriters(str(tmp_path / "root"), {}, tmp_path, WRITERS, SEED)
    writers.run(SECONDS)
    proved(writers)


def test_writers_on_s3_behind_a_bad_network(tmp_path: Path, s3: S3Server) -> None:
    with tcp_proxy(s3.endpoint_url) as proxy:
        options = {**s3.options, "endpoint_url": proxy.url}
        times = {"read_timeout": "2 s", "connect_timeout": "2 s"}
        root = f"s3://{s3.bucket}/{tmp_path.name}"
        writers = HardKilledWriters(root, {**options, **times}, tmp_path, WRITERS, SEED)

        def spoil(chance: random.Random) -> None:
            """Change the network in every third step; it is good half of the time."""
            if chance.random() < 0.3:
                bad = chance.choice((Network.CUT, Network.SLOW, Network.REFUSE, Network.STALL))
                proxy.network = chance.choice((Network.GOOD, bad))

        writers.run(SECONDS, spoil, lambda: setattr(proxy, "network", Network.GOOD))
        proved(writers)
