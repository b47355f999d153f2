"""The programs of the simulator's workloads in real processes, which are killed and come back."""

from __future__ import annotations

import importlib
import json
import os
import random
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pravega_spark
from pravega_spark import StreamManager
from tests.sim.answers import told_by
from tests.sim.history import Call, History
from tests.sim.lives import Life, is_refusal

LONGEST_WAIT = 1.0
"""Seconds: what a simulated process waits for is shorter here, where seconds pass."""


class Kept(MutableMapping[str, Any]):
    """What a program knows in its next life: each change is in a file before it returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value
        self._write()

    def __delitem__(self, key: str) -> None:
        del self._values[key]
        self._write()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _write(self) -> None:
        """Replace the file: a kill leaves one of the two. Only a power cut could lose it."""
        aside = self._path.with_suffix(".aside")
        aside.write_text(json.dumps(self._values))
        os.replace(aside, self._path)


class RealCall:
    """A call of the package that is being recorded."""

    def __init__(self, call: Call, works: Path) -> None:
        self._call, self._works = call, works

    def failed(self, error: BaseException) -> None:
        """It was refused."""
        self._call.failed(error, told_by(error))

    def ok(self, value: Any = None) -> None:
        """It returned a value."""
        self._call.ok(value)
        self._works.touch()

    def ended_with(self, error: BaseException) -> None:
        """Record an error by what it says of the effect."""
        if is_refusal(error):
            self.failed(error)
        else:
            self._call.unknown()


class RealLife(Life):
    """A program in a thread of a real process."""

    package = pravega_spark
    pinned_for = "5 minutes"

    def __init__(
        self,
        manager: StreamManager,
        history: History,
        author: str,
        lives: int,
        scope: str,
        state: Kept,
        seed: str,
        folder: Path,
        works: Path,
    ) -> None:
        """``folder`` is its own, in all lives, and need not exist.

        ``works`` is the file that says that a call has succeeded.
        """
        self._manager, self._history, self._works = manager, history, works
        self.author, self.lives, self.scope, self.state = author, lives, scope, state
        self.name = author if lives == 1 else f"{author}.{lives}"
        self.source = random.Random(f"{seed} {self.name}")
        self.segments, self.made, self.copied = 2, set(), scope
        self.root, self.folder = manager.root, folder

    def module(self, path: str) -> Any:
        return importlib.import_module(f"pravega_spark.{path}")

    def manager(self) -> StreamManager:
        return self._manager

    def place_of(self, copy: str) -> str:
        return str(self.folder / copy)

    def now(self) -> int:
        return time.monotonic_ns()

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, LONGEST_WAIT))

    def begin(self, operation: str, **arguments: Any) -> RealCall:
        return RealCall(self._history.invoke(self.name, operation, **arguments), self._works)
