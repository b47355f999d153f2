"""What maintenance does with one stream, and in which order it visits the streams of a root."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import repaired
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.scopes import Scope
from pravega_spark.engine.tables.settings_table import open_settings
from pravega_spark.errors import Damaged, NoSuchScope, PravegaSparkError
from pravega_spark.model import MaintenanceKind
from pravega_spark.names import MAX_SCOPE_LENGTH, is_name
from pravega_spark.reader_groups.group_repair import release_absent_groups, repair_changing_groups
from pravega_spark.retention.retention_options import DEFAULTS, RetentionOptions
from pravega_spark.retention.retention_run import run_retention
from pravega_spark.scaling.auto_scaling import run_scaling
from pravega_spark.transactions.sweeper import sweep_transactions

_LAST: Final = "~"
"""After all names: no name has this character, and those that names have are before it."""


class RootStreams:
    """The streams of a root in the order of scope and name; keeps what it has read."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Name the root; reads nothing yet."""
        self._store = store
        self._runtime = runtime
        self._scopes: dict[str, Scope] = {}
        self._options = DEFAULTS
        """Of retention: the settings of the root, as read for the present share."""

    def open(self, name: str) -> StreamLog:
        """Return a stream by its name."""
        return open_stream(self._store, name, self._runtime)

    def after(
        self, name: str, without: Collection[str | None] = ()
    ) -> Iterator[tuple[str, PravegaSparkError | None]]:
        """Yield the names of all streams after a name; "" is before the first one.

        Scopes in ``without`` are left out. A scope is read when its first stream is asked for. A
        scope whose index cannot be read has one name, behind all of its streams, and the error.
        """
        scope, _, stream = name.partition("/")
        found = (s for s in self._store.folders("") if is_name(s, MAX_SCOPE_LENGTH))
        for following in sorted(s for s in found if s >= scope and s not in without):
            if (following, _LAST) == (scope, stream):
                continue
            try:
                names = self._names(following)
            except Damaged as error:
                yield f"{following}/{_LAST}", error
                continue
            for short in names:
                if (following, short) > (scope, stream):
                    yield f"{following}/{short}", None

    def _names(self, scope: str) -> list[str]:
        known = self._scopes.setdefault(scope, Scope(self._store, scope, self._runtime))
        with contextlib.suppress(NoSuchScope):  # deleted since it was listed
            return sorted(known.rows())
        del self._scopes[scope]
        return []

    def prepare(self, kind: MaintenanceKind, *, is_first: bool) -> None:
        """Do what a share of a run of that kind does before its streams; more before the first."""
        if kind is MaintenanceKind.RETENTION:
            self._options = RetentionOptions(root=open_settings(self._store, self._runtime).read())
            if is_first:
                repair_changing_groups(self._store, self.open, self._runtime)

    def maintain(self, kind: MaintenanceKind, name: str) -> None:
        """Do what the job of that kind does with a stream, by the root's and its own settings.

        Raises what that raises; NoSuchStream for a stream that was deleted since it was listed.
        """
        stream = self.open(name)
        works: Mapping[MaintenanceKind, Callable[[StreamLog], Any]] = {
            MaintenanceKind.RETENTION: self._retain,
            MaintenanceKind.SCALING: run_scaling,
            MaintenanceKind.TRANSACTIONS: sweep_transactions,
        }
        repaired(stream, partial(works[kind], stream))

    def _retain(self, stream: StreamLog) -> None:
        release_absent_groups(stream, self.open)
        run_retention(stream, self._options)
