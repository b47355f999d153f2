"""Every line of the pages that starts a job is one that the job's parser takes."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.harness.launch_lines import JOBS, REPOSITORY, job_of

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
FILES = "|".join(JOBS)
WHEEL = "|".join(f"pravega-spark-{job.replace('_', '-')}" for job in JOBS)
LAUNCHED = re.compile(
    rf"(?:^|[ `(])((?:python -m pravega_spark\.jobs\.(?:{FILES})|{WHEEL}|jobs/(?:{FILES})\.py) "
    r"--[^`\n]*)",
    re.MULTILINE,
)
"""A job with options, after whatever starts it, such as spark-submit with options of its own."""


LINES = [
    line for page in PAGES for line in LAUNCHED.findall(re.sub(r" *\\\n *", " ", page.read_text()))
]


@pytest.mark.parametrize("line", LINES)
def test_job_takes_its_line_of_a_page(line: str) -> None:
    words = shlex.split(line.partition("  #")[0])
    if (
        "--root" not in words
    ):  # a mention of one option, such as `... jobs.retention --confirm-clock`
        words += ["--root", "/data"]
    assert job_of(words)[0] in JOBS


def test_pages_have_lines_of_every_launcher() -> None:
    assert any("--to delta" in line for line in LINES)
    assert any("--from delta" in line for line in LINES)
    for start in ("python -m ", "pravega-spark-", "jobs/"):
        assert any(line.startswith(start) for line in LINES), start
