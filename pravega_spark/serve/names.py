"""The names that a root holds, as last listed: its scopes, streams, reader groups and tables.

The root is listed, and the index of each scope is read, at most every few seconds. A poll whose
budget is spent leaves the other scopes to the next one; what was known of them stays until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pravega_spark.engine.kinds import GROUP, STREAM, TABLE
from pravega_spark.engine.state.scopes import ACTIVE, Scope
from pravega_spark.engine.store.open_objects import OpenObjects
from pravega_spark.engine.store.root_marker import scope_folders
from pravega_spark.errors import Damaged, ForeignTable, NoSuchScope
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.call_budget import BudgetSpent
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.values.limits import OPEN_SCOPE_BYTES

NAMES_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names of a root, sorted as texts: pages of a list go on after the last name."""

    scopes: tuple[str, ...]
    streams: tuple[str, ...]
    groups: tuple[str, ...]
    tables: tuple[str, ...]
    tagged: dict[str, frozenset[str]]
    """The tags of each stream that has some."""
    damaged: dict[str, str]
    """The scopes whose index cannot be read, with the error."""
    is_whole: bool
    """Whether the index of every scope was read."""


@dataclass(frozen=True, slots=True)
class _ScopeNames:
    read_at: float
    names: dict[str, list[str]]
    tags: dict[str, frozenset[str]]
    problem: str = ""


_NOTHING: Final[dict[str, list[str]]] = {STREAM: [], GROUP: [], TABLE: []}


class RootNames:
    """The names of one root; thread-safe."""

    def __init__(self, root: ServedRoot) -> None:
        self._root = root
        self._lock = new_lock()
        self._scopes = OpenObjects(
            lambda store, name: Scope(store, name, root.runtime),
            lambda scope: scope.held_bytes,
            OPEN_SCOPE_BYTES,
        )
        self._listed_at: float | None = None
        self._read: dict[str, _ScopeNames | None] = {}
        """What was read of each scope that is listed; None before that."""
        self._known: KnownNames | None = None

    def known(self) -> KnownNames:
        """Return the names, which may be a few seconds old.

        Costs a listing of the root and two storage calls a scope, or nothing. Raises BudgetSpent
        before the first listing.
        """
        with self._lock:
            now = self._root.runtime.monotonic()
            if self._listed_at is None or now - self._listed_at >= NAMES_SECONDS:
                try:
                    folders = scope_folders(self._root.store)
                except BudgetSpent:
                    if self._known is None:
                        raise
                    return self._known
                self._listed_at = now
                self._read = {name: self._read.get(name) for name in folders}
            if self._read_old(now) or self._known is None:
                self._known = self._joined()
            return self._known

    def _read_old(self, now: float) -> bool:
        """Read the scopes that were read long ago, the oldest first; return whether any was."""
        ages = {
            name: -1.0 if found is None else found.read_at for name, found in self._read.items()
        }
        old = [name for name in ages if ages[name] < 0 or now - ages[name] >= NAMES_SECONDS]
        if not old:
            return False
        ordered = sorted(old, key=lambda name: (ages[name], name))
        found = self._root.runtime.each(lambda name: self._scope(name, now), ordered)
        self._read.update(
            (name, read) for name, read in zip(ordered, found, strict=True) if read is not None
        )
        return True

    def _scope(self, name: str, now: float) -> _ScopeNames | None:
        """Return what a scope holds now; None if the budget is spent."""
        scope = self._scopes.get(self._root.store, name)
        try:
            if scope.state() != ACTIVE:
                return _ScopeNames(now, _NOTHING, {}, "not active")
            names = scope.names()
        except BudgetSpent:
            return None
        except NoSuchScope:  # deleted since it was listed
            return _ScopeNames(now, _NOTHING, {}, "not active")
        except (Damaged, ForeignTable) as error:
            return _ScopeNames(now, _NOTHING, {}, said(error, self._root.store.url))
        rows = scope.table.known_rows
        tags = {row: frozenset(found["tags"] or ()) for row, found in rows.items()}
        return _ScopeNames(now, names, tags)

    def _joined(self) -> KnownNames:
        found = {name: read for name, read in self._read.items() if read is not None}
        active = {n: read for n, read in found.items() if read.problem != "not active"}

        def every(kind: str) -> tuple[str, ...]:
            return tuple(
                sorted(f"{s}/{name}" for s, read in active.items() for name in read.names[kind])
            )

        streams = every(STREAM)
        return KnownNames(
            scopes=tuple(sorted(active)),
            streams=streams,
            groups=every(GROUP),
            tables=every(TABLE),
            tagged={
                name: active[name.partition("/")[0]].tags.get(name.partition("/")[2], frozenset())
                for name in streams
            },
            damaged={name: read.problem for name, read in active.items() if read.problem},
            is_whole=len(found) == len(self._read),
        )
