"""The crontab lines of the pages work as cron runs them: almost without an environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import StreamManager

REPOSITORY = Path(__file__).resolve().parents[2]
CRON_PATH = "/usr/bin:/bin"
LINE = re.compile(r"^(?:\S+ ){5} *(/.*)$", re.MULTILINE)


def command(page: str) -> str:
    """The command of a page's only crontab line."""
    (found,) = LINE.findall((REPOSITORY / "docs" / page).read_text())
    return str(found)


def test_pages_differ_only_in_the_job() -> None:
    assert command("scaling.md").replace("scaling", "retention") == command("retention.md")
    ours = command("maintenance.md").replace("maintenance", "retention")
    assert ours == command("retention.md")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_line_runs_without_an_environment(tmp_path: Path) -> None:
    StreamManager(tmp_path / "root").create_scope("s")
    log = tmp_path / "retention.log"
    line = command("retention.md")
    for documented, here in (
        ("/opt/pravega_spark/.venv/bin/python", sys.executable),
        ("/data/streams", str(tmp_path / "root")),
        ("/var/log/retention.log", str(log)),
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
