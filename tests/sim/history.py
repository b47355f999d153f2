"""Histories: what processes asked of the package and what it answered, as JSON lines.

``docs/histories.md`` describes the format. The order of the lines is the order of what happened:
a call that ended on a line above another's ``invoke`` ended before that one began. No clock is
read.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FORMAT = 1


class Call:
    """A call that has begun. It is given one outcome, or none: then it is open to the end."""

    def __init__(self, history: History, number: int) -> None:
        self._history = history
        self.number = number

    def ok(self, value: Any = None) -> None:
        """It returned, and ``value`` is what the caller got."""
        self._history._end(self.number, {"type": "ok", "value": value})

    def failed(self, error: BaseException | str, value: Any = None) -> None:
        """It was refused, and is certainly without effect; ``value`` is what the refusal told."""
        name = error if isinstance(error, str) else type(error).__name__
        told = {} if value is None else {"value": value}
        self._history._end(self.number, {"type": "fail", "error": name, **told})

    def unknown(self) -> None:
        """It may have had its effect, may have it at any later step, or never."""
        self._history._end(self.number, {"type": "info"})


class History:
    """A history that is being recorded; any thread may record.

    ``step`` returns the number of the present step, which never goes back; without it each line
    is a step. ``about`` is put into the first line: a seed, for example.
    """

    def __init__(self, step: Callable[[], int] | None = None, **about: Any) -> None:
        self._step = step if step is not None else itertools.count(1).__next__
        self._lock = threading.Lock()
        self._open: set[int] = set()
        self._last = self._calls = 0
        self.lines = [encode({"history": FORMAT, **about})]

    def invoke(self, process: str, operation: str, **arguments: Any) -> Call:
        """Record that a call begins now: before the package is asked."""
        with self._lock:
            number = self._calls
            line = {"type": "invoke", "process": process, "operation": operation}
            self._add(number, {**line, "arguments": arguments})
            self._calls += 1
            self._open.add(number)
        return Call(self, number)

    def text(self) -> str:
        """Return all lines, each with its line end."""
        return "".join(f"{line}\n" for line in self.lines)

    def save(self, path: Path | str) -> None:
        """Write the history to a file."""
        Path(path).write_text(self.text())

    def _end(self, number: int, line: dict[str, Any]) -> None:
        with self._lock:
            if number not in self._open:
                raise ValueError(f"call {number} has an outcome already")
            self._add(number, line)
            self._open.remove(number)

    def _add(self, number: int, line: dict[str, Any]) -> None:
        step = self._step()
        if step < self._last:
            raise ValueError(f"step {step} after step {self._last}: steps never go back")
        self.lines.append(encode({"step": step, "call": number, **line}))
        self._last = step


class SharedHistory(History):
    """A history in one file that several operating system processes record into.

    Each line is one appending write, so the order in the file is that of the writes. A process
    that is killed leaves its calls open. ``joined`` makes the history of the file.
    """

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self._mine = f"{os.getpid()}.{os.urandom(4).hex()}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _add(self, number: int, line: dict[str, Any]) -> None:
        data = f"{encode({'call': [self._mine, number], **line})}\n".encode()
        if os.write(self._file, data) != len(data):
            raise OSError("a line of a history was written in part")


def joined(path: Path | str, **about: Any) -> str:
    """Return the history that processes recorded into a file: numbered, one step a line."""
    history = History(**about)
    numbers: dict[tuple[str, int], int] = {}
    for text in Path(path).read_text().splitlines():
        line = json.loads(text)
        recorder, number = line.pop("call")
        key = (recorder, number)
        if line["type"] == "invoke":
            numbers[key] = history._calls
            history.invoke(line["process"], line["operation"], **line["arguments"])
        else:
            history._end(numbers[key], line)
    return history.text()


def encode(line: Mapping[str, Any]) -> str:
    """Return the one form of a line: keys sorted, no spaces, ASCII, no floating point specials."""
    return json.dumps(
        line, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
