"""Lines of the crontab work as cron runs them: almost without an environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.launch_lines import DEPLOY
from tests.harness.tiers import only_long

CRON_PATH = "/usr/bin:/bin"
LINE = re.compile(r"^(?:# )?(?:[\d*/,-]+ +){5}(/.*)$", re.MULTILINE)
ON_SPARK = pytest.param(
    "maintenance",
    marks=[
        pytest.mark.spark,
        pytest.mark.long,
        only_long("the other line has the same environment, and Spark looks for java by itself"),
    ],
)


@pytest.mark.medium
@pytest.mark.parametrize("work", ["maintain", ON_SPARK])
def test_line_runs_without_an_environment(work: str, tmp_path: Path) -> None:
    StreamManager(tmp_path / "root").create_scope("s")
    log = tmp_path / "work.log"
    lines = LINE.findall((DEPLOY / "cron/pravega-spark.crontab").read_text())
    (line,) = (line for line in lines if f"{work} --root" in line)
    for documented, here in (
        ("/opt/pravega_spark/.venv/bin", str(Path(sys.executable).parent)),
        ("/data/streams", str(tmp_path / "root")),
        (f"/var/log/pravega-spark-{work}.log", str(log)),
    ):
        assert documented in line
        line = line.replace(documented, here)
    java = {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env={"PATH": CRON_PATH, "HOME": str(tmp_path), "LOGNAME": "nobody", **java},
        cwd=tmp_path,
        check=False,
    )
    text = log.read_text()
    assert done.returncode == 0, text
    assert json.loads(text.splitlines()[-1])["streams"] == 0
