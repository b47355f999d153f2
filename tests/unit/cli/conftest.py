"""A root in memory, and functions that run command lines on it in this process."""

from __future__ import annotations

import io
import itertools
import json
import sys
from dataclasses import dataclass
from typing import Any, Protocol

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


@dataclass
class Shell:
    """Runs command lines on a root."""

    manager: StreamManager
    _run: CommandLine

    def __call__(self, *argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """Return exit status, output and errors."""
        return self._run(*argv, stdin=stdin)

    def ok(self, *argv: str, stdin: bytes = b"") -> str:
        """Return the output of a command that succeeds."""
        status, text, error = self._run(*argv, stdin=stdin)
        assert (status, error) == (0, ""), error
        return text

    def json(self, *argv: str) -> Any:
        """Return what a command prints as JSON."""
        return json.loads(self.ok(*argv, "--output", "json"))

    def failed(self, *argv: str, stdin: bytes = b"") -> str:
        """Return the line of a command that fails or is misused."""
        status, _, error = self._run(*argv, stdin=stdin)
        assert status in (1, 2, 3)
        assert error.count("\n") == 1, error
        return error


@pytest.fixture
def shell(manager: StreamManager, run: CommandLine) -> Shell:
    """Run command lines whose success or failure is expected."""
    return Shell(manager, run)
