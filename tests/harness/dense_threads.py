"""Threads whose steps are mixed densely: at random lines of the package one waits for the others.

So a thread may stand still between any two lines while another one makes whole calls, as it does
on a busy machine once in many thousand runs. A run that does not end is an error with all stacks.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from faulthandler import dump_traceback
from types import FrameType
from typing import Any

from tests.harness.line_interrupts import OURS

HANG_SECONDS = 20.0
"""A run that takes longer hangs; one takes some milliseconds."""
_PAUSE_SECONDS, _STEP_SECONDS = 0.003, 0.0002
_MOST_PAUSES = 5
_HANDLES = tuple(
    f"{OURS}/{name}"
    for name in (
        "byte_streams/", "engine/runtime/shared_calls.py", "engine/writing/", "event_writer.py",
        "values/handles.py", "key_value/", "reader_groups/", "shared_state/", "txn/",
    )
)  # fmt: skip
"""What threads share lies here; elsewhere none pauses."""


class Hang(AssertionError):
    """Threads that did not end in time; the text has the stacks of all."""


class DenseThreads:
    """Pauses threads at random lines while a run is active."""

    def __init__(self) -> None:
        self.rng: random.Random | None = None
        self.chance = 0.0
        self.steps = 0
        self.pauses: dict[int, int] = {}

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Trace the threads that start from now on, also those that commit for writers."""
        before, interval = threading.gettrace(), sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        threading.settrace(self._called)
        try:
            yield
        finally:
            threading.settrace(before)
            sys.setswitchinterval(interval)

    def run(self, seed: int, bodies: Sequence[Callable[[], object]]) -> None:
        """Run each body in a thread, all from the same moment; raise Hang, or a body's error."""
        rng = random.Random(seed)
        self.pauses, self.chance = {}, rng.choice((0.0, 0.005, 0.02, 0.1))
        start = threading.Barrier(max(1, len(bodies)))
        failures: list[BaseException] = []

        def work(body: Callable[[], object]) -> None:
            try:
                start.wait(HANG_SECONDS)
                body()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(body,), daemon=True) for body in bodies]
        self.rng = rng
        try:
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + HANG_SECONDS
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            self.rng = None
        if any(thread.is_alive() for thread in threads):
            raise Hang(f"calls that did not return within {HANG_SECONDS:g} s:\n{stacks()}")
        if failures:
            raise failures[0]

    def step(self) -> None:
        """Tell that a thread has made a call, for which another one may have waited."""
        self.steps += 1

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        is_ours = self.rng is not None and frame.f_code.co_filename.startswith(_HANDLES)
        return self._line if is_ours else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        rng = self.rng
        if rng is None:
            return None
        if event == "line" and rng.random() < self.chance:
            me = threading.get_ident()
            count = self.pauses[me] = self.pauses.get(me, 0) + 1
            if count <= _MOST_PAUSES:
                before, deadline = self.steps, time.monotonic() + _PAUSE_SECONDS
                while self.steps == before and time.monotonic() < deadline:
                    time.sleep(_STEP_SECONDS)
        return self._line


def stacks() -> str:
    """Return the stacks of all threads."""
    with tempfile.TemporaryFile("w+") as file:
        dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
