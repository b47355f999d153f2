"""How far a round is, on stderr."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from pravega_spark.primitives.printable import printable
from pravega_spark.values.units import count_text

LINE_SECONDS: Final = 60.0
_BAR_SECONDS: Final = 0.5
_CELLS: Final = 20
_CLEAR: Final = "\r\x1b[K"
_REPEATED: Final = (
    "Spark has repeated the work on {}, whose task had failed or was lost: the sums lack its "
    "earlier work, so they are lower bounds."
)

Done = tuple[int, str]
"""How many tasks have ended, and what the last one worked on."""


class RoundProgress:
    """Tells how far the tasks of a job are, and counts those that Spark has repeated."""

    def __init__(self, prog: str = "") -> None:
        """Tell it in the name of a job; without a name nothing is told."""
        self._prog = prog
        self.repeated = 0
        """How many pieces of work come from a task that had failed before, or was lost."""
        self._said = 0

    def say_repeated(self) -> None:
        """Say that work was repeated, unless that was said."""
        if self.repeated > self._said:
            self._said = self.repeated
            what = count_text(self.repeated, "stream")
            print(f"{self._prog}: {_REPEATED.format(what)}", file=sys.stderr)

    @contextmanager
    def over(self, what: str, total: int, look: Callable[[], Done | None]) -> Iterator[None]:
        """Tell in the block how many of ``total`` are done, as ``look`` says; None is not known."""
        if not self._prog:
            yield
            return
        ended, began = threading.Event(), time.monotonic()
        out, is_terminal = sys.stderr, sys.stderr.isatty()
        pause = _BAR_SECONDS if is_terminal else LINE_SECONDS

        def tell() -> None:
            while not ended.wait(pause):
                seconds = time.monotonic() - began
                text = progress_text(what, total, look(), seconds)
                if is_terminal:
                    width = shutil.get_terminal_size().columns - 1
                    out.write(f"{_CLEAR}{self._prog}: {text}"[: width + len(_CLEAR)])
                    out.flush()
                else:
                    print(f"{datetime.now():%H:%M:%S} {self._prog}: {text}", file=out, flush=True)

        teller = threading.Thread(target=tell, name="round-progress", daemon=True)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()
            if is_terminal:
                out.write(_CLEAR)
                out.flush()


def progress_text(what: str, total: int, done: Done | None, seconds: float) -> str:
    """Return how far a round has come in ``seconds``."""
    if done is None:  # Spark Connect does not tell
        return f"{total:,} {what}, for {seconds:.0f} s"
    count, last = min(done[0], total), printable(done[1])
    full = _CELLS * count // total if total else _CELLS
    text = f"[{'#' * full}{'.' * (_CELLS - full)}] {count:,} of {total:,} {what}"
    if not count:
        return f"{text}, for {seconds:.0f} s"
    return f"{text}, last {last}, about {seconds * (total - count) / count:.0f} s left"
