"""The updates of one process that wait for a commit of a shared state, and who commits them.

One thread leads at a time: it commits for all that wait, and each caller gets its own outcome. Then
the caller of the next update leads, which has waited since.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.runtime import ProcessGuard, Runtime
from pravega_spark.errors import PravegaSparkError
from pravega_spark.process_locks import new_rlock

_State = TypeVar("_State")

Generator = Callable[[_State], tuple[_State | None, Any]]
"""Given the newest state, the next one (None: no change) and a value for the caller."""


class WaitingUpdate(Generic[_State]):
    """An update whose caller waits, with the outcome of its last try."""

    __slots__ = (
        "_error", "_value", "change", "generator", "is_done", "operation", "parameters", "thread",
        "wake",
    )  # fmt: skip

    def __init__(
        self, operation: str, generator: Generator[_State], parameters: Mapping[str, Any]
    ) -> None:
        """Begin to wait; called by the thread that waits."""
        self.operation, self.parameters, self.generator = operation, parameters, generator
        self.change: tuple[_State, _State] | None = None
        """The states before and after it, if it has changed anything."""
        self.thread = threading.get_ident()
        self.is_done = False
        self.wake = threading.Event()
        """Set when the outcome is final, or when the caller must lead."""
        self._value: Any = None
        self._error: BaseException | None = None

    def tried(self, state: _State) -> _State:
        """Return the state after the update; its error is an outcome, and changes nothing."""
        self.change = self._error = None
        try:
            after, self._value = self.generator(state)
        except Exception as error:
            self._error = error
            return state
        if after is None or after == state:
            return state
        self.change = state, after
        return after

    def finish(self) -> None:
        """Make the outcome of the last try final."""
        self.is_done = True
        self.wake.set()

    def fail(self, error: PravegaSparkError) -> None:
        """End with an error that says nothing about this update; each caller gets its own."""
        self._error = error if self.thread == threading.get_ident() else copy.copy(error)
        self.finish()

    def outcome(self) -> Any:
        """Return the value of the generator, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._value


class UpdateQueue(Generic[_State]):
    """The updates of one process that wait; thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        guard: ProcessGuard,
        commit: Callable[[Callable[[], Sequence[WaitingUpdate[_State]]]], None],
    ) -> None:
        """Begin without updates; ``commit`` ends all that its argument returns when it decides."""
        self._runtime, self._guard, self._commit = runtime, guard, commit
        self._lock = new_rlock()  # a signal handler may run while its thread holds it
        self._waiting: list[WaitingUpdate[_State]] = []
        self._leader: WaitingUpdate[_State] | None = None

    def _all(self) -> list[WaitingUpdate[_State]]:
        with self._lock:
            return list(self._waiting)

    def run(self, one: WaitingUpdate[_State]) -> Any:
        """Wait until the update is done, or lead; return its value or raise its error."""
        self._guard.check()
        with self._lock:
            leader = self._leader
            is_within = leader is not None and leader.thread == one.thread
            if not is_within:
                self._waiting.append(one)
                self._leader = leader or one
        if is_within:  # a signal handler of the thread that leads
            self._commit(lambda: [one])
            return one.outcome()
        failpoint("update.waiting")
        try:
            while self._leader is not one and not one.is_done:
                self._runtime.wait(one.wake, None)
            if not one.is_done:
                self._commit(self._all)
        finally:
            self._leave(one)
        return one.outcome()

    def _leave(self, one: WaitingUpdate[_State]) -> None:
        """Let the next caller lead if this one did."""
        with self._lock:
            self._waiting = [
                other for other in self._waiting if not (other is one or other.is_done)
            ]
            if self._leader is one:
                self._leader = next(iter(self._waiting), None)
                if self._leader is not None:
                    self._leader.wake.set()
