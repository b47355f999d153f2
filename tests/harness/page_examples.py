"""The examples of the pages: finds their fenced blocks and runs them.

A page runs like a user's session: its blocks in order, in one Python namespace, with one Spark
session, and with a fresh folder instead of ``/tmp``. Python, SQL and shell blocks run; for ``make``
the test only checks that the target exists. A block that cannot run in the tests has a comment of
one line above it: ``<!-- not run: the reason -->``.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pravega_spark import cli
from pravega_spark.jobs import (
    compaction,
    maintenance,
    retention,
    scaling,
    transactions,
)
from pravega_spark.jobs.signals import StopSignal

REPOSITORY = Path(__file__).parents[2]
RUNNABLE = ("python", "sql", "sh")
OUTPUT = ("", "text", "json", "toml", "yaml")
"""Languages of blocks that show output, configuration or rules."""
MARKER = re.compile(r"<!-- not run: (\S.*) -->")
JOBS = {job.PROG: job for job in (compaction, maintenance, retention, scaling, transactions)}
_INPUT_MAKERS = ("printf", "seq")
JOB_MODULE = "pravega_spark.jobs."


@dataclass(frozen=True)
class Example:
    """A fenced block in a language that can run; ``reason``: why this one does not."""

    line: int
    language: str
    code: str
    reason: str | None = None

    @property
    def needs_spark(self) -> bool:
        """Whether the block starts Spark, or uses the page's session."""
        return self.language == "sql" or "session()" in self.code or JOB_MODULE in self.code


def pages() -> list[str]:
    """Return all pages for users and contributors; decisions have rules of their own."""
    found = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]
    return sorted(str(path.relative_to(REPOSITORY)) for path in found)


def examples_of(text: str) -> list[Example]:
    """Return the runnable blocks of a page. Raises ValueError for a block of another language."""
    found: list[Example] = []
    above, start, language = "", 0, ""
    block: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if block is None and line.lstrip().startswith("```"):
            start, language, block = number, line.strip().removeprefix("```"), []
            if language not in RUNNABLE + OUTPUT:
                raise ValueError(f"line {number}: {language!r} is none of {RUNNABLE + OUTPUT}")
        elif block is not None and line.strip() == "```":
            if language in RUNNABLE:
                marker = MARKER.fullmatch(above)
                reason = marker[1] if marker else None
                found.append(Example(start, language, "\n".join(block) + "\n", reason))
            above, block = "", None
        elif block is not None:
            block.append(line)
        elif line.strip():
            above = line.strip()
    if block is not None:
        raise ValueError(f"line {start}: the block has no end")
    return found


class PageRun:
    """Runs the blocks of one page, in order."""

    def __init__(
        self,
        page: str,
        folder: Path,
        spark: Callable[[], SparkSession],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self._page, self._folder, self._spark = page, folder, spark
        self._names: dict[str, object] = {}
        self._monkeypatch = monkeypatch

    def run(self, example: Example) -> None:
        """Run a block; an exception, or a status other than 0, is its failure."""
        code = example.code.replace("/tmp/", f"{self._folder}/")
        if example.language == "python":
            lines = "\n" * example.line + code  # so that tracebacks name the page's lines
            exec(compile(lines, self._page, "exec", dont_inherit=True), self._names)
        elif example.language == "sql":
            for statement in filter(str.strip, code.split(";\n")):
                self._spark().sql(statement).collect()
        else:
            for line in code.splitlines():
                if words := shlex.split(line, comments=True):
                    status = self._line(line, words)
                    assert status == 0, f"{self._page}: {line}: status {status}"

    def _line(self, line: str, words: list[str]) -> int:
        """Run a line; what makes input, with ``printf`` or ``seq``, runs in a shell."""
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._monkeypatch.setenv(name, value)
            return 0
        if words[0] not in _INPUT_MAKERS:
            return self._command(words)
        made, _, command = line.partition(" | ")
        done = subprocess.run(["bash", "-c", made], stdout=subprocess.PIPE, check=False)
        if not command:
            return done.returncode
        with self._monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(done.stdout)))
            return self._command(shlex.split(command, comments=True))

    def _command(self, words: list[str]) -> int:
        """Run a command of the package in this process: a job starts no Spark of its own."""
        match words:
            case ["make", target, *variables] if all("=" in each for each in variables):
                return 0 if f"\n{target}:" in (REPOSITORY / "Makefile").read_text() else 2
            case ["pravega-spark", *arguments]:
                return cli.main(arguments)
            case ["python", "-m", module, *arguments] if module.startswith(JOB_MODULE):
                with self._monkeypatch.context() as patch:
                    spark = self._spark()
                    patch.setattr(
                        maintenance, "run_job", lambda _, __, ___, work: work(spark, StopSignal())
                    )
                    status: int = JOBS[module.removeprefix(JOB_MODULE)].main(arguments)
                return status
        raise ValueError(f"{self._page}: {shlex.join(words)} is no command of the package")
