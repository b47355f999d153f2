from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pravega_spark.spark.worker_garbage import FREEZES

PROGRAM = f"""
import gc
import pravega_spark.spark
gc.collect()
frozen = gc.get_freeze_count()
ring = []
ring.append(ring)
found = type("Found", (list,), {{}})
held = found()
held.append(held)
import weakref
alive = weakref.ref(held)
del held
gc.collect()
print(frozen > 1_000, alive() is None)
for _ in range({FREEZES}):
    gc.collect()
last = gc.get_freeze_count()
more = [[] for _ in range(1_000)]
gc.collect()
print(gc.get_freeze_count() == last)
"""


@pytest.mark.parametrize(
    ("variables", "is_frozen"),
    [
        ({"SPARK_REUSE_WORKER": "1"}, True),
        ({"SPARK_PYTHON_RUNTIME": "PYTHON_WORKER"}, True),
        ({}, False),
    ],
)
def test_only_python_workers_freeze_imports_and_they_still_collect_later_garbage(
    variables: dict[str, str], is_frozen: bool
) -> None:
    marks = ("SPARK_REUSE_WORKER", "SPARK_PYTHON_RUNTIME")
    kept = {name: value for name, value in os.environ.items() if name not in marks}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"{is_frozen} True", "True"]
