"""Real processes note times while they are killed: no watermark passes an event that follows it."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.killed_processes import KilledProcesses
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
    pytest.mark.long,
]
WRITERS = 3
KILLS = sized(3, 100)


def test_nothing_before_a_watermark_follows_its_cut_over_kills_and_a_split(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    stream_time = manager.event_time(STREAM)
    for worker in range(WRITERS):  # nobody notes a later time before all have noted the first one
        stream_time.note(f"w{worker}", 0)
    processes = KilledProcesses(
        tmp_path,
        "tests.harness.noting_processes",
        lambda worker, life: (root, f"w{worker}"),
        seed=3,
    )

    def split() -> None:
        manager.scale_stream(STREAM, seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
        while len(stream_time.watermarks()) < 3:  # the writers note on, so this ends
            stream_time.update()
            time.sleep(0.1)

    processes.run(WRITERS, KILLS, split)

    stream_time.update()
    watermarks = stream_time.watermarks()
    assert len(watermarks) > 2
    assert all(a.lower_us < b.lower_us for a, b in itertools.pairwise(watermarks))
    for watermark in watermarks:
        following = [int(event.data) for event in manager.read(STREAM, watermark.cut)]
        assert min(following, default=watermark.lower_us) * 1_000 >= watermark.lower_us
    noted = [int(line) for line in processes.acknowledged()]
    assert watermarks[-1].lower_us == max(noted) * 1_000, "all have left, with their last times"
    assert watermarks[-1].cut == manager.tail(STREAM)
    assert stream_time.marks() == []
