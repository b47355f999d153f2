"""A process that measures a peer where this one cannot: it answers each line of JSON with one."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_START_SECONDS = 300.0


class Worker:
    """A process that prints ``ready``, then an answer for each question; it ends with its input."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start it; raise RuntimeError if it is not ready in time. Its errors go to a file."""
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        try:
            if (line := self._line()) != "ready":
                raise RuntimeError(f"{command[0]} says {line!r}, not ready")
        except RuntimeError:
            self.close()
            raise
        finally:
            timer.cancel()

    @property
    def process(self) -> int:
        return self._process.pid

    def ask(self, **question: Any) -> Any:
        """Return the answer to a question; raise RuntimeError with the worker's own error."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._line())
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        """Close its input, after which it ends, and wait for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            told = self._log.read_text(errors="replace")[-500:]
            raise RuntimeError(f"the process has ended: {told}")
        return line.strip()
