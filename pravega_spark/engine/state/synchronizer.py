"""A state that many processes share: each holds a copy, and all changes have one order.

The state is the rows of a Delta table, and a commit replaces them by compare-and-set on the table's
version. So SQL reads the state at any retained version, and the table's history lists every change.
Changes of one process that wait at the same time are one commit. A Codec converts between the state
and its rows.

The updates of one process that wait for a commit, and who commits them. One thread leads at a time:
it commits for all that wait, and each caller gets its own outcome. Then the caller of the next
update leads, which has waited since.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.sweep import delete_unreferenced_files
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import SYSTEM, ProcessGuard, Runtime
from pravega_spark.engine.state.state_table import Decide, Rows, StateTable, TableChange, TableState
from pravega_spark.engine.store import Store
from pravega_spark.errors import CommitUnknown, IllegalState, PravegaSparkError
from pravega_spark.primitives.process_locks import new_lock, new_rlock

_State = TypeVar("_State")

_AnyGenerator = Callable[[_State], tuple[_State | None, Any]]
"""Given the newest state, the next one (None: no change) and a value for the caller."""


class WaitingUpdate(Generic[_State]):
    """An update whose caller waits, with the outcome of its last try."""

    __slots__ = (
        "_error", "_value", "change", "generator", "is_done", "operation", "parameters", "thread",
        "wake",
    )  # fmt: skip

    def __init__(
        self, operation: str, generator: _AnyGenerator[_State], parameters: Mapping[str, Any]
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

    def state_after(self, state: _State) -> _State:
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


COMPACTED_DOMAIN = "pravega.compacted"
"""Domain: the version of the table before its last compaction."""

_Value = TypeVar("_Value")


class Codec(Protocol[_State]):
    """Converts a state into rows and back: ``decode(encode(state)) == state``."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""

    @property
    def key(self) -> str:
        """The column with the key of a row."""

    def encode(self, state: _State, /) -> Rows:
        """Return the rows of a state by key; there must be at least one."""

    def decode(self, rows: Rows, /) -> _State:
        """Return the state of these rows."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[_State]):
    """A state, and the version of its table that holds it."""

    version: int
    state: _State


Generator = Callable[[_State], tuple[_State | None, _Value]]
"""Given the newest state, the next one (None: no change) and a value for the caller."""


class Synchronizer(Generic[_State]):
    """One process's copy of the state; thread-safe.

    The local copy may be old, but its version never decreases. The table's log orders concurrent
    updates: the generator of the later one runs again, on the state that the first one committed.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        codec: Codec[_State],
        runtime: Runtime = SYSTEM,
        on_update: Callable[[_State, _State], object] = lambda before, after: None,
    ) -> None:
        """Name the table at ``path``; nothing is read yet, and it need not exist.

        ``on_update(before, after)`` is called with the states of each update of this process.
        """
        self.table = StateTable(store, path, codec.schema, codec.key, runtime)
        self._codec = codec
        self._on_update = on_update
        self._queue = UpdateQueue[_State](
            runtime, ProcessGuard(f"the state at {path}"), self._commit
        )
        self._reading = new_rlock()
        """Held while a thread fetches: of those that wait, one reads and decodes for all."""
        self._fetches_begun = self._fetches_ended = 0
        """The number of the last fetch that began, and of the last one that has succeeded."""
        self._lock = new_lock()
        self._local: tuple[Rows, Versioned[_State]] | None = None
        self._made: tuple[Rows, _State] | None = None
        """The last state that an update of this process produced, and its rows."""

    @property
    def local(self) -> Versioned[_State]:
        """The newest state known to this process. Raises IllegalState if there is none."""
        if self._local is None:
            raise self._absent()
        return self._local[1]

    def _absent(self) -> IllegalState:
        return IllegalState(
            f"the state at {self.table.log.path} is not initialised. Initialise it first."
        )

    def fetch(self) -> Versioned[_State] | None:
        """Refresh the local copy and return it; None if there is no state yet.

        Costs one storage call if nothing changed; none if another thread reads it meanwhile.
        """
        known = self._fetches_begun
        with self._reading:
            if self._fetches_ended > known:  # another thread's began after this call
                return None if self._local is None else self._local[1]
            self._fetches_begun += 1
            number = self._fetches_begun
            found = self._adopt(self.table.read())
            self._fetches_ended = number
            return found

    def has_newer_version(self) -> bool:
        """Return whether the state changed since the local copy was read; one storage call."""
        return self.table.log.has_newer_version()

    def _adopt(self, table: TableState) -> Versioned[_State] | None:
        """Make a state the local copy unless that is newer; return the local copy."""
        if not table.rows:
            return None
        with self._lock:
            known = self._local
            if known is None or known[1].version < table.version:
                state = self._decode(table)
                known = self._local = (table.rows, Versioned(table.version, state))
            return known[1]

    def _decode(self, table: TableState) -> _State:
        known, made = self._local, self._made
        if known is not None and known[0] is table.rows:
            return known[1].state
        if made is not None and made[0] == table.rows:
            return made[1]
        return self._codec.decode(table.rows)

    def initialise(
        self,
        state: _State,
        operation: str = "INITIALISE",
        domains: Mapping[str, str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> bool:
        """Write the first state; return False if one exists already, and adopt that one."""

        def decide(table: TableState) -> tuple[TableChange | None, bool]:
            if table.rows:
                return None, False
            rows = self._codec.encode(state)
            return TableChange(operation, rows, dict(domains or {}), dict(parameters or {})), True

        return self._change(decide)

    def update(
        self,
        operation: str,
        generator: Generator[_State, _Value],
        parameters: Mapping[str, Any] | None = None,
    ) -> _Value:
        """Replace the newest state by the one that ``generator`` returns; return its value.

        The generator runs again after each lost race, so it must have no side effects. None or an
        equal state writes nothing. An error that it raises on the newest state is raised here.
        Raises IllegalState if there is no state yet, and CommitUnknown if the outcome is unknown.
        """
        waiting = WaitingUpdate(operation, generator, parameters or {})
        value: _Value = self._queue.run(waiting)
        return value

    def _commit(self, take: Callable[[], Sequence[WaitingUpdate[_State]]]) -> None:
        """Commit the updates that ``take`` returns, one after the other on the newest state."""
        taken = take()

        def decide(table: TableState) -> tuple[TableChange | None, bool]:
            nonlocal taken
            if not table.rows:
                raise self._absent()
            state = before = self._decode(table)
            taken = take()
            for one in taken:
                state = one.state_after(state)
            if state is before or state == before:
                return None, False
            rows = self._codec.encode(state)
            self._made = rows, state
            return _joined(rows, [one for one in taken if one.change]), True

        try:
            has_changed = self._change(decide)
        except PravegaSparkError as error:
            for one in taken:
                one.fail(error)
            return
        except BaseException as error:  # in the thread that leads
            for one in taken:
                one.fail(self._unknown(error))
            raise
        for one in taken:
            if has_changed and one.change:
                self._on_update(*one.change)
            one.finish()

    def _unknown(self, error: BaseException) -> CommitUnknown:
        return CommitUnknown(
            f"the state at {self.table.log.path}: it is unknown whether a change was committed, "
            f"because the thread that committed it was stopped ({error!r}). Read the state again, "
            "and continue from what it reports."
        )

    def _change(self, decide: Decide[_Value]) -> _Value:
        """Change the table, and adopt the state after the change."""
        table, value = self.table.change(decide)
        self._adopt(table)
        return value

    def apply(self, operation: str, change: Callable[[_State], _State]) -> _State:
        """Change the state without a condition; return the state after the change.

        This is Pravega's unconditional update.
        """

        def generator(state: _State) -> tuple[_State, _State]:
            after = change(state)
            return after, after

        return self.update(operation, generator)

    def compact(self) -> int:
        """Release the versions before the previous compaction; return the oldest retained version.

        A process whose copy is from before this compaction can catch up until the next one. After
        that it opens the table again. Files are deleted immediately, commits by a later sweep.
        """

        def decide(table: TableState) -> tuple[TableChange | None, int]:
            if not table.rows or table.snapshot is None:
                raise self._absent()
            before = int(table.snapshot.get(COMPACTED_DOMAIN) or 0)
            return TableChange(
                "COMPACT", table.rows, {COMPACTED_DOMAIN: str(table.version)}
            ), before

        table, previous = self.table.change(decide)
        self._adopt(table)
        failpoint("synchronizer.compact")
        checkpoint.maintain(self.table.log.reader, table.version)
        snapshot = raise_horizon(self.table.log, previous, previous)
        delete_unreferenced_files(self.table.log)
        self.fetch()
        return snapshot.retention_mark


def _joined(rows: Rows, changes: Sequence[WaitingUpdate[Any]]) -> TableChange:
    """Return one change for several: it names all of their operations and parameters."""
    first, *others = changes
    if not others:
        return TableChange(first.operation, rows, parameters=dict(first.parameters))
    named: dict[str, list[str]] = {}
    for one in changes:
        for name, value in one.parameters.items():
            named.setdefault(name, []).append(str(value))
    return TableChange(
        ", ".join(sorted({one.operation for one in changes})),
        rows,
        parameters={name: ",".join(dict.fromkeys(values)) for name, values in named.items()},
    )
