"""Measures a root for metrics: its scopes, streams, reader groups and maintenance.

A measurement reads logs and changes nothing. Its storage calls are bounded by the numbers of
scopes, streams, groups and readers, whatever they hold: about two for each. What cannot be read is
counted and logged, and the rest is measured.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.backlog import known_backlog, oldest_seconds
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.scopes import GROUP, STREAM, TABLE
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import (
    NoSuchScope,
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
    without_credentials,
)
from pravega_spark.manager import StreamManager
from pravega_spark.metrics.metric_values import MetricValues
from pravega_spark.metrics.stream_measurement import DroppedTotals, measure_stream
from pravega_spark.names import split_log
from pravega_spark.reader_groups.group_description import with_heartbeats
from pravega_spark.reader_groups.group_state import GroupState, Phase
from pravega_spark.reader_groups.group_table import open_group_state

logger = own_logger(__name__)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RootNames:
    """The names that a measurement found, in order."""

    streams: Sequence[str]
    groups: Sequence[str]


class RootMeasurement:
    """Measures one root again and again; what it has opened stays open. For one thread at a time.

    At most ``max_streams`` streams, the first by name, have metrics, and as many groups. So the
    number of series is bounded, too.
    """

    def __init__(self, manager: StreamManager, max_streams: int, scopes: Sequence[str]) -> None:
        """Take the root; without ``scopes`` all of them are measured."""
        self._manager = manager
        self._store, self._runtime = manager._store, manager._runtime
        self._max = max_streams
        self._scopes = scopes
        self._dropped: dict[str, DroppedTotals] = {}
        self._groups: dict[str, Synchronizer[GroupState]] = {}

    def measure(self) -> MetricValues:
        """Return the values of all metrics of the root, as of now. Raises StoreError."""
        began = self._runtime.monotonic()
        values, errors, skipped = MetricValues(), Counter[str](), Counter[str]()
        names = self._names(values, errors)
        streams, groups = names.streams[: self._max], names.groups[: self._max]
        skipped["stream"] = len(names.streams) - len(streams)
        skipped["group"] = len(names.groups) - len(groups)
        self._forget(streams, groups)
        views: dict[str, StreamView] = {}
        for name, found in zip(streams, self._each(self._stream, streams, errors), strict=True):
            if found is not None:
                values.update(found[0])
                views[name] = found[1]
        for part in self._each(partial(self._group, views=views), groups, errors):
            if part is not None:
                values.update(part)
        for part in self._each(self._maintenance, ["maintenance"], errors):
            if part is not None:
                values.update(part)
        for kind in ("scope", "stream", "group", "maintenance"):
            values.set("pravega_scrape_errors", errors[kind], kind)
        for kind in ("stream", "group"):
            values.set("pravega_scrape_skipped", skipped[kind], kind)
        values.set("pravega_scrape_duration_seconds", self._runtime.monotonic() - began)
        values.set("pravega_scrape_timestamp_seconds", self._runtime.now_ms() / 1_000)
        return values

    def _each(
        self,
        measure: Callable[[str], tuple[str, _Result | None]],
        names: Sequence[str],
        errors: Counter[str],
    ) -> list[_Result | None]:
        """Measure all of these in parallel; count those that cannot be read."""
        found = []
        for error, result in self._runtime.each(measure, names):
            errors[error] += bool(error)
            found.append(result)
        return found

    def _forget(self, streams: Sequence[str], groups: Sequence[str]) -> None:
        for name in self._dropped.keys() - set(streams):
            del self._dropped[name]
        for name in self._groups.keys() - set(groups):
            del self._groups[name]

    def _names(self, values: MetricValues, errors: Counter[str]) -> RootNames:
        """Find the streams and groups, and set how many there are in each scope."""
        manager = self._manager
        scopes = self._scopes or manager.list_scopes()
        streams, groups, existing = list[str](), list[str](), 0

        def look(scope: str) -> dict[str, list[str]] | PravegaSparkError:
            try:
                return manager._scope(scope).names()
            except PravegaSparkError as error:
                return error

        for scope, found in zip(scopes, in_rounds(self._store, look, scopes), strict=True):
            if isinstance(found, NoSuchScope):
                continue
            if isinstance(found, PravegaSparkError):
                _log("scope", scope, found)
                errors["scope"] += 1
                continue
            existing += 1
            values.set("pravega_streams", len(found[STREAM]), scope)
            values.set("pravega_reader_groups", len(found[GROUP]), scope)
            values.set("pravega_key_value_tables", len(found[TABLE]), scope)
            streams += (f"{scope}/{name}" for name in found[STREAM])
            groups += (f"{scope}/{name}" for name in found[GROUP])
        values.set("pravega_scopes", existing)
        return RootNames(streams, groups)

    def _stream(self, name: str) -> tuple[str, tuple[MetricValues, StreamView] | None]:
        values = MetricValues()
        try:
            log = open_stream(self._store, name, self._runtime)
            view, self._dropped[name] = measure_stream(log, values, self._dropped.get(name))
        except NoSuchStream:  # deleted since it was listed, or not created yet
            return "", None
        except (PravegaSparkError, OSError) as error:
            _log("stream", name, error)
            return "stream", None
        return "", (values, view)

    def _group(self, name: str, *, views: dict[str, StreamView]) -> tuple[str, MetricValues | None]:
        values = MetricValues()
        try:
            state = self._state_of(name)
            if state is None:
                return "", None
            values.set("pravega_group_readers", len(state.readers), name)
            values.set("pravega_group_unassigned_segments", len(state.unassigned), name)
            for stream in sorted(state.lives):
                with contextlib.suppress(NoSuchStream, StaleIdentity):
                    self._lag(values, state, stream, views.get(stream))
        except (PravegaSparkError, OSError) as error:
            _log("reader group", name, error)
            return "group", None
        return "", values

    def _state_of(self, group: str) -> GroupState | None:
        sync = self._groups.get(group)
        if sync is None:
            sync = self._groups[group] = open_group_state(self._store, group, self._runtime)
        known = sync.fetch()
        if known is None or known.state.phase in (Phase.DELETING, Phase.DELETED):
            return None
        return with_heartbeats(self._store, known.state)

    def _lag(
        self, values: MetricValues, state: GroupState, stream: str, view: StreamView | None
    ) -> None:
        """Set the lag of a group in a stream; a stream that is not measured is read for that."""
        log, cut = open_stream(self._store, stream, self._runtime), state.cut(stream)
        if view is None:
            log.log.expect_files()
            view = log.view(life=cut.life)
        view.check_life(cut.life)
        unread = known_backlog(log, view, cut, state.ends.get(stream))
        labels = state.group, *split_log(stream)
        values.set("pravega_group_lag_events", sum(len(part.unread) for part in unread), *labels)
        values.set("pravega_group_lag_bytes", sum(part.size_bytes for part in unread), *labels)
        seconds = oldest_seconds(part.seconds for part in unread)
        values.set("pravega_group_lag_seconds", seconds, *labels)

    def _maintenance(self, _: str) -> tuple[str, MetricValues | None]:
        values = MetricValues()
        try:
            for info in self._manager.maintenance():
                labels = info.kind.value, info.scope or ""
                if info.age_seconds is not None:
                    values.set("pravega_maintenance_age_seconds", info.age_seconds, *labels)
                values.set("pravega_maintenance_overdue", info.is_overdue, *labels)
                values.set("pravega_maintenance_failed_streams", info.failed, *labels)
        except (PravegaSparkError, OSError) as error:
            _log("maintenance of root", without_credentials(self._store.url), error)
            return "maintenance", None
        return "", values


def _log(what: str, name: str, error: Exception) -> None:
    is_group, is_stream = what == "reader group", what == "stream"
    logger.warning(
        "%s %s could not be measured: %s",
        what,
        name,
        error,
        extra=log_fields(
            "measure", name if is_stream else "", group=name if is_group else "", failed=name
        ),
    )
