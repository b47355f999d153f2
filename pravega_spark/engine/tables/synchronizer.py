"""A state that many processes share: each holds a copy, and all changes have one order.

(Pravega's StateSynchronizer.) The state is the rows of a Delta table, which a change replaces by
compare-and-set on the table's version; so SQL reads it at any retained version, and the table's
history tells every change. What a state is, and how it becomes rows, its owner says by a Codec.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.garbage import delete_unreferenced_files, raise_horizon
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.tables.row_files import Rows
from pravega_spark.engine.tables.state_table import Decide, StateTable, TableChange, TableState
from pravega_spark.errors import IllegalState

COMPACTED_DOMAIN = "pravega.compacted"
"""The version that the last compaction found."""

_State = TypeVar("_State")
_Value = TypeVar("_Value")


class Codec(Protocol[_State]):
    """How a state becomes rows, and rows a state again. ``decode(encode(s)) == s``."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""

    @property
    def key(self) -> str:
        """The column that names a row."""

    def encode(self, state: _State, /) -> Rows:
        """Return the rows by key, at least one."""

    def decode(self, rows: Rows, /) -> _State:
        """Return the state that these rows are."""


@dataclass(frozen=True, slots=True)
class Versioned(Generic[_State]):
    """A state, and the version of its table that holds it."""

    version: int
    state: _State


Generator = Callable[[_State], tuple[_State | None, _Value]]
"""Given the newest state, the next one (None: it stays) and a value for the caller."""


class Synchronizer(Generic[_State]):
    """One shared state as one process sees it; thread-safe.

    The local copy may be old, but never goes back. Two processes that update at once are put in
    an order by the table's log: the later one's generator runs again, on what the first one left.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        codec: Codec[_State],
        runtime: Runtime = SYSTEM,
        told: Callable[[_State, _State], object] = lambda before, after: None,
    ) -> None:
        """Name the table at ``path``; nothing is read yet, and it need not exist.

        ``told`` is called after each update of this process, with the state before and after it.
        """
        self.table = StateTable(store, path, codec.schema, codec.key, runtime)
        self._codec = codec
        self._told = told
        self._lock = threading.Lock()
        self._local: tuple[Rows, Versioned[_State]] | None = None
        self._made: tuple[Rows, _State] | None = None
        """The state that was made here last, and its rows."""

    @property
    def local(self) -> Versioned[_State]:
        """The last state known here. Raises IllegalState before there is one."""
        if self._local is None:
            raise self._absent()
        return self._local[1]

    def _absent(self) -> IllegalState:
        return IllegalState(f"the state at {self.table.log.path} was not initialised yet.")

    def fetch(self) -> Versioned[_State] | None:
        """Bring the local copy up to date and return it; None if there is no state yet.

        One storage call if nothing is new.
        """
        return self._take(self.table.read())

    def has_newer_version(self) -> bool:
        """Tell by one storage call whether somebody has changed the state that is known here."""
        return self.table.log.has_newer_version()

    def _take(self, table: TableState) -> Versioned[_State] | None:
        """Keep a state that was read, unless a newer one is known, and return the newer one."""
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
        """Begin with ``state``; False if somebody else began first, whose state is adopted."""

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
        """Change the state by what ``generator`` makes of the newest one, and return its value.

        It runs again after each lost race, so it must have no effects of its own. None, or an
        equal state, writes nothing. What it raises on the newest state is raised here. Raises
        IllegalState before there is a state, CommitUnknown if nobody can tell what became of it.
        """
        made: list[tuple[_State, _State]] = []

        def decide(table: TableState) -> tuple[TableChange | None, _Value]:
            made.clear()
            if not table.rows:
                raise self._absent()
            state = self._decode(table)
            after, value = generator(state)
            if after is None or after == state:
                return None, value
            rows = self._codec.encode(after)
            made.append((state, after))
            self._made = rows, after
            return TableChange(operation, rows, parameters=dict(parameters or {})), value

        value = self._change(decide)
        for before, after in made:
            self._told(before, after)
        return value

    def _change(self, decide: Decide[_Value]) -> _Value:
        """Change the table, and keep the state that this leaves."""
        table, value = self.table.change(decide)
        self._take(table)
        return value

    def apply(self, operation: str, change: Callable[[_State], _State]) -> _State:
        """Change the state whatever it is now; return it as it was after the change.

        (Pravega's unconditional update.)
        """

        def generator(state: _State) -> tuple[_State, _State]:
            after = change(state)
            return after, after

        return self.update(operation, generator)

    def compact(self) -> int:
        """Let go the versions before the last compaction; return the oldest one that is retained.

        So a process that knows a state from before this compaction has until the next one to
        catch up, and after that it opens the table anew by itself. Files go at once, log entries
        as the rule of the table's log has it, by a later sweep.
        """

        def decide(table: TableState) -> tuple[TableChange | None, int]:
            if not table.rows or table.snapshot is None:
                raise self._absent()
            before = int(table.snapshot.get(COMPACTED_DOMAIN) or 0)
            return TableChange(
                "COMPACT", table.rows, {COMPACTED_DOMAIN: str(table.version)}
            ), before

        table, previous = self.table.change(decide)
        self._take(table)
        failpoint("synchronizer.compact")
        checkpointing.maintain(self.table.log.reader, table.version)
        snapshot = raise_horizon(self.table.log, previous, previous)
        delete_unreferenced_files(self.table.log)
        self.fetch()
        return snapshot.cleanup
