"""Runs an action before any line of the package that a call executes, such as an interrupt."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pravega_spark
from pravega_spark.engine.store import memory

OURS = str(Path(pravega_spark.__file__).parent)
STORAGE = memory.__file__
"""Stands for a storage elsewhere, which no interrupt of this process reaches."""


@cache
def _with_lines(path: str) -> frozenset[int]:
    """Return the lines of ``with``: Python visits them again at the end, before the exit.

    No signal is handled there, so that nothing of the package can prevent what a trace does.
    """
    tree = ast.parse(Path(path).read_text())
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.With))
    return frozenset(n for node in blocks for n in range(node.lineno, node.body[0].lineno))


class AtLine:
    """Runs an action before the n-th line of the package that this thread executes.

    The collector waits meanwhile: it would run finalizers of earlier objects among these lines.
    """

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        self.left, self.action = number, action
        self.done = False
        self.lines: dict[FrameType, int] = {}

    def __enter__(self) -> AtLine:
        self.before, self.collects = sys.gettrace(), gc.isenabled()
        gc.disable()
        sys.settrace(self._called)
        return self

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(OURS) and name != STORAGE else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        before, self.lines[frame] = self.lines.get(frame, 0), frame.f_lineno
        leaves = before > frame.f_lineno in _with_lines(frame.f_code.co_filename)
        if event == "line" and not self.done and not leaves:
            self.left -= 1
            if self.left < 0:
                self.done = True
                sys.settrace(self.before)
                self.action()
        return self._line

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)
        self.lines.clear()  # frames, which keep all that the call had in its hands
        if self.collects:
            gc.enable()


def interrupt() -> None:
    raise KeyboardInterrupt


def lines_in(call: Callable[[], object]) -> int:
    """Return the number of lines of the package that a call executes in this thread."""
    counter = AtLine(1 << 30, interrupt)
    with counter:
        call()
    return (1 << 30) - counter.left
