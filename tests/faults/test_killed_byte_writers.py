"""Byte writers in processes that are killed at any moment: no hole, and nothing twice."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.byte_writer_app import STREAM, known_bytes
from tests.harness.tiers import sized
from tests.harness.warm_children import WarmChild

pytestmark = [pytest.mark.slow, pytest.mark.long]

PROJECT = Path(__file__).parents[2]
KILLS = sized(3, 40)
TOTAL = 2_000_000 * KILLS


def test_what_was_flushed_is_there_once_and_an_upload_continues(tmp_path: Path) -> None:
    root, ledger = tmp_path / "root", tmp_path / "ledger"
    ledger.touch()
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))
    chance = random.Random(7)
    lengths = []
    for kill in range(KILLS + 1):
        durable = ledger.stat().st_size
        module = "tests.harness.byte_writer_app"
        process = WarmChild(module, str(root), str(ledger), str(TOTAL))
        if kill < KILLS:
            while process.poll() is None and ledger.stat().st_size == durable:
                time.sleep(0.005)
            time.sleep(chance.random() / 10)
            process.kill()
        assert process.wait(240) in ((0, -9) if kill < KILLS else (0,))
        flushed = [int(line) for line in ledger.read_text().splitlines() if line]
        with manager.create_byte_reader(STREAM, follow=False) as reader:
            found = reader.read() or b""
        assert found == known_bytes(0, len(found)), f"after kill {kill}"
        assert len(found) >= max(flushed, default=0)
        lengths.append(len(found))
    assert lengths == sorted(lengths)
    assert lengths[-1] == TOTAL
    assert sum(len(event.data) for event in manager.read(STREAM)) == TOTAL
