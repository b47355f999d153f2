"""What a server knows of a root: its names, and one watch for each stream that was looked at.

A look at the names costs a listing of the root and one storage call a scope, at most every few
seconds. A look at a stream costs one storage call, at most once a poll interval. All viewers share
both, and nothing is asked while nobody looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pravega_spark.engine.eviction import ChanceCache
from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.errors import Damaged, ForeignTable, NotFound
from pravega_spark.process_locks import new_lock
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.api_models import StreamRow
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.stream_watch import StreamWatch

NAMES_SECONDS: Final = 10.0
MAX_WATCHES: Final = 1_024


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names of a root, sorted as texts: pages of a list go on after the last name."""

    scopes: tuple[str, ...]
    streams: tuple[str, ...]
    groups: tuple[str, ...]
    tables: tuple[str, ...]
    tagged: dict[str, frozenset[str]]
    """The tags of each stream that has some."""


class RootWatch:
    """The names and streams of a root, as last seen; thread-safe."""

    def __init__(self, root: ServedRoot, cache: AnswerCache, poll_seconds: float) -> None:
        """Take the root; nothing is read yet."""
        self.root = root
        self.poll_seconds = poll_seconds
        self._cache = cache
        self._lock = new_lock()
        self._watches = ChanceCache[str, StreamWatch](MAX_WATCHES, SYSTEM.random)

    def names(self) -> KnownNames:
        """Return the names, which may be a few seconds old."""
        return self._cache.get(("names",), None, NAMES_SECONDS, self._list)

    def stream(self, name: str) -> StreamWatch:
        """Return the watch of a stream, which need not exist."""
        with self._lock:
            watch = self._watches.get(name)
            if watch is None:
                watch = StreamWatch(self.root.log(name))
                self._watches.put(name, watch)
            return watch

    def rows(self, names: Sequence[str]) -> list[StreamRow]:
        """Return the rows of streams, looked at in parallel; those that do not exist are absent.

        A damaged stream has a row that says so.
        """
        found = SYSTEM.each(self._row, list(names))
        return [row for row in found if row is not None]

    def _row(self, name: str) -> StreamRow | None:
        watch = self.stream(name)
        try:
            return watch.row(watch.look(self.poll_seconds / 2))
        except NotFound:
            return None
        except (Damaged, ForeignTable):
            return _damaged(name)

    def _list(self) -> KnownNames:
        manager = self.root.manager
        scopes, streams, groups, tables = list[str](), list[str](), list[str](), list[str]()
        tagged: dict[str, frozenset[str]] = {}

        def listed(scope: str) -> Iterator[tuple[str, dict[str, Any], list[str], list[str]]]:
            rows = manager._scope(scope).rows()
            groups, tables = manager.list_reader_groups(scope), manager.list_key_value_tables(scope)
            yield scope, rows, groups, tables

        for scope, rows, its_groups, its_tables in manager._in_scopes(listed):
            names = sorted(rows)
            tagged |= {f"{scope}/{n}": frozenset(rows[n]["tags"]) for n in names}
            groups += its_groups
            tables += its_tables
            streams += [f"{scope}/{name}" for name in names]
            scopes.append(scope)
        found = [tuple(sorted(names)) for names in (streams, groups, tables)]
        return KnownNames(tuple(scopes), found[0], found[1], found[2], tagged)


def _damaged(name: str) -> StreamRow:
    scope, _, stream = name.partition("/")
    return StreamRow(
        scope=scope,
        stream=stream,
        state="DAMAGED",
        tags=[],
        segments=0,
        epoch=0,
        events=0,
        size_bytes=0,
        events_per_second=0.0,
        bytes_per_second=0.0,
        series=[],
        version=-1,
        created_ms=0,
        updated_ms=0,
    )
