"""A root in memory, and a function that runs command lines on it in this process."""

from __future__ import annotations

import io
import itertools
import sys
from typing import Protocol

import pytest

from pravega_spark.cli import main
from pravega_spark.manager import StreamManager

_roots = itertools.count()


class CommandLine(Protocol):
    """Runs ``pravega-spark`` with arguments; returns its status, output and errors."""

    def __call__(self, *argv: str, stdin: str | bytes = b"") -> tuple[int, str, str]: ...


@pytest.fixture
def manager() -> StreamManager:
    """A root of its own with two scopes."""
    made = StreamManager(f"memory://command-line-{next(_roots)}")
    for scope in ("s", "other"):
        made.create_scope(scope)
    return made


@pytest.fixture
def run(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """Run a command line on the root of ``manager``."""
    monkeypatch.setenv("PRAVEGA_SPARK_ROOT", manager.root)

    def run(*argv: str, stdin: str | bytes = b"") -> tuple[int, str, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capsys.readouterr()
        status = main(argv)
        return status, *capsys.readouterr()

    return run
