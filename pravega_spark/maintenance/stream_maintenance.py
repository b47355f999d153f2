"""The streams of a root in the order in which shares visit them, and the work at each."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.due_hints import DueHints, basis_of
from pravega_spark.engine.tables.maintenance_table import open_maintenance
from pravega_spark.engine.tables.open_scopes import open_scope
from pravega_spark.engine.tables.scopes import log_names
from pravega_spark.engine.tables.settings_table import open_settings
from pravega_spark.errors import Damaged, NoSuchScope, PravegaSparkError
from pravega_spark.maintenance import table_folding
from pravega_spark.maintenance.stream_work import WorkOptions, do_work
from pravega_spark.maintenance.unit_work import RoundTask, do_task, stream_hints
from pravega_spark.model import MaintenanceKind
from pravega_spark.names import MAX_SCOPE_LENGTH, is_name
from pravega_spark.reader_groups.group_repair import repair_changing_groups

_LAST: Final = "~"
"""After all names: no name has this character, and those that names have are before it."""


class RootStreams:
    """The streams of a root in the order of scope and name; keeps what it has read."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Name the root; reads nothing yet."""
        self._store = store
        self._runtime = runtime
        self._options = WorkOptions()
        """With the settings of the root, as read for the present share."""
        self._hints: dict[str, DueHints] = {}
        """Of the scopes that the present share has visited."""
        self.was_idle = False
        """Whether the stream that was visited last needed no work."""

    def open(self, name: str) -> StreamLog:
        """Return a stream by its name."""
        return open_stream(self._store, name, self._runtime)

    def after(
        self, name: str, without: Collection[str | None] = ()
    ) -> Iterator[tuple[str, PravegaSparkError | None]]:
        """Yield the names of all streams after a name; "" is before the first one.

        Scopes in ``without`` are left out. A scope is read when its first stream is asked for. It
        has one name of its own, behind all of its streams; with the error if its index cannot be
        read.
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
            yield f"{following}/{_LAST}", None

    def _names(self, scope: str) -> list[str]:
        with contextlib.suppress(NoSuchScope):  # deleted since it was listed
            return sorted(log_names(open_scope(self._store, scope, self._runtime)))
        return []

    def prepare(self, kind: MaintenanceKind, *, is_first: bool) -> None:
        """Do what a share of a run of that kind does before its streams; more before the first."""
        self._options = WorkOptions(open_settings(self._store, self._runtime).read())
        self._hints.clear()
        if kind is MaintenanceKind.RETENTION and is_first:
            repair_changing_groups(self._store, self.open, self._runtime)
        if kind is MaintenanceKind.SWEEPING and is_first:
            self._sweep_tables("")

    def maintain(self, kind: MaintenanceKind, name: str) -> Mapping[str, str]:
        """Do what the job of that kind does with a stream, by the root's and its own settings.

        ``was_idle`` then says whether the stream had nothing new and was not due, which costs one
        storage call. A name of a scope stands for its own tables, which are swept; returns an
        error for each that failed. Raises what the work on a stream raises; NoSuchStream for one
        that was deleted since it was listed.
        """
        scope, _, short = name.partition("/")
        self.was_idle = False
        if short == _LAST:
            return self._sweep_tables(scope) if kind is MaintenanceKind.SWEEPING else {}
        if kind not in table_folding.kinds_of(short, (kind,)):
            self.was_idle = True
            return {}
        hints = self._hints_of(scope)
        if short not in hints.due((kind,), self._now_ms(), (short,)):
            self.was_idle = True
            return {}
        try:
            done = do_work(self.open(name), kind, self._options)
        except Exception:
            hints.drop(short)
            raise
        hints.note(short, kind, done.version, done.written_ms, done.due_ms, done.checked_ms)
        return {}

    def finish(self) -> None:
        """Write down when the streams of a share are due again."""
        for hints in self._hints.values():
            hints.save()

    def _hints_of(self, scope: str) -> DueHints:
        if scope not in self._hints:
            basis = basis_of(self._options.root)
            self._hints[scope] = stream_hints(self._store, scope, self._names(scope), basis)
        return self._hints[scope]

    def _now_ms(self) -> int:
        return open_maintenance(self._store, self._runtime).about_now_ms()

    def _sweep_tables(self, scope: str) -> dict[str, str]:
        task = RoundTask(scope, (MaintenanceKind.SWEEPING,))
        done = do_task(self._store, task, self._options, self._runtime)
        return {what: error for found in done for what, error in found.failures.items()}


def is_stream(name: str) -> bool:
    """Return whether a visited name is that of a stream, and not of a scope's tables."""
    return not name.endswith(f"/{_LAST}")
