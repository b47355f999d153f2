from __future__ import annotations

import subprocess
import sys

from bench.harness.cpu_time import CpuMeter, compare


def test_processor_time_of_children_counts() -> None:
    meter = CpuMeter()
    with meter:
        subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert meter.seconds[0] > 0
    assert "against" in compare(meter, meter)
