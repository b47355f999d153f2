"""Measures a root and its streams for metrics.

A measurement reads logs and changes nothing. Its storage calls are bounded by the numbers of
scopes, streams, groups and readers, not with their sizes: about two for each. Objects that cannot
be read are counted and logged, and the rest is measured.

Measures one stream for metrics: from its newest version, and one small object beside its log.
Events, splits and merges of a stream are counted over its whole life. The counts that a truncation
dropped from the log's state are in the stream's history, which is read once, and again only after a
truncation that dropped more.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.kinds import GROUP, STREAM, TABLE
from pravega_spark.engine.log.sweep_record import read_swept
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.backlog import known_backlog, oldest_seconds
from pravega_spark.engine.stream.epoch_history import epochs_between
from pravega_spark.engine.stream.history import read_history
from pravega_spark.engine.stream.records import OUTCOME_PREFIX, SEGMENT_PREFIX, decode_segment
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import (
    StreamLog,
    clock_ahead_seconds,
    committed_ms,
)
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import known_watermarks
from pravega_spark.errors import (
    NoSuchScope,
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
    without_credentials,
)
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.metrics.catalog import MetricValues
from pravega_spark.reader_groups.description import with_heartbeats
from pravega_spark.reader_groups.state import GroupState, Phase
from pravega_spark.reader_groups.table import open_group_state
from pravega_spark.txn.lifecycle import ASKED_BY_APPLICATION
from pravega_spark.values.names import split_log
from pravega_spark.values.segments import segment_epoch

JUMP_COMMITS = 1_024
"""A measurement that is further behind a log than this opens it again, instead of reading on."""
OUTCOMES = ("committed", "aborted", "swept")


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedTotals:
    """What a life of a stream had before the oldest epoch that its log's state keeps."""

    life: int
    oldest_epoch: int
    events: int
    splits: int
    merges: int


def dropped_totals(
    stream: StreamLog, view: StreamView, known: DroppedTotals | None
) -> DroppedTotals:
    """Return the totals; the history is read unless ``known`` holds for the view, too."""
    if known is not None and (known.life, known.oldest_epoch) == (view.life, view.oldest_epoch):
        return known
    if view.epoch(view.oldest_epoch).created_ms <= view.record.created_ms:
        return DroppedTotals(
            life=view.life, oldest_epoch=view.oldest_epoch, events=0, splits=0, merges=0
        )
    epochs = epochs_between(stream, view, end=view.oldest_epoch - 1)
    first = epochs[0].number if epochs else view.oldest_epoch
    ends = dict[int, int]()
    for rows in read_history(stream, "segment"):
        for row in rows:  # by falling versions: what was appended last counts
            segment_id = int(row.name.removeprefix(SEGMENT_PREFIX))
            is_of_life = segment_epoch(segment_id) >= first and not view.has_segment(segment_id)
            if is_of_life and segment_id not in ends:
                ends[segment_id] = decode_segment(segment_id, row.value).next_offset
    splits, merges = sum(e.splits for e in epochs), sum(e.merges for e in epochs)
    return DroppedTotals(
        life=view.life,
        oldest_epoch=view.oldest_epoch,
        events=sum(ends.values()),
        splits=splits,
        merges=merges,
    )


def measure_stream(
    stream: StreamLog, values: MetricValues, known: DroppedTotals | None = None
) -> tuple[StreamView, DroppedTotals]:
    """Set the values of a stream; return its newest view, and what was dropped before that.

    Costs three storage calls, however many events there are, and one for each commit since the
    last measurement: at most some JUMP_COMMITS, since beyond the log is opened again from
    its newest state file. Raises NoSuchStream, and errors of damage.
    """
    log, seen = stream.log, stream.log.snapshot
    if seen is not None and log.reader.hint().newest - seen.version > JUMP_COMMITS:
        log.forget()
    log.expect_files()

    def measured(view: StreamView) -> tuple[StreamView, int, FileTotals]:
        size = stream.readable_bytes(view)
        with log.files() as files:
            return view, size, files.totals()

    view, size, files = stream.on_newest(measured, view=begun_view(stream))
    dropped = dropped_totals(stream, view, known)
    put = partial(_put, values, split_log(stream.name))
    _measure_amounts(view, size, dropped, put)
    put("last_commit_timestamp_seconds", committed_ms(stream, view) / 1_000)
    put("clock_ahead_seconds", clock_ahead_seconds(stream, view))
    put("files", files.files)
    put("files_bytes", files.size_bytes)
    swept = read_swept(log)
    put("swept_files_total", swept.files)
    put("swept_bytes_total", swept.size_bytes)
    _measure_transactions(view, put)
    put("subscribers", len(view.subscribers))
    for watermark in known_watermarks(view)[-1:]:
        put("watermark_lower_timestamp_seconds", watermark.lower_us / 1e6)
        put("watermark_upper_timestamp_seconds", watermark.upper_us / 1e6)
    return view, dropped


def _put(
    values: MetricValues, stream: tuple[str, str], name: str, value: float, *labels: str
) -> None:
    values.set(f"pravega_stream_{name}", value, *stream, *labels)


def _measure_amounts(
    view: StreamView, size: int, dropped: DroppedTotals, put: partial[None]
) -> None:
    record, configuration = view.record, view.record.configuration
    retention = "none" if configuration.retention is None else configuration.retention.type.value
    put("info", 1, record.state.value, configuration.scaling.type.value, retention)
    put("segments", len(view.active.segments))
    kept = [view.epoch(n) for n in range(view.oldest_epoch, record.active_epoch + 1)]
    put("segment_splits_total", dropped.splits + sum(epoch.splits for epoch in kept))
    put("segment_merges_total", dropped.merges + sum(epoch.merges for epoch in kept))
    ids = (int(n.removeprefix(SEGMENT_PREFIX)) for n in view.snapshot.names(SEGMENT_PREFIX))
    written = dropped.events + sum(view.segment(segment_id).next_offset for segment_id in ids)
    events = view.located_head.events_to(view.located_tail)
    put("written_events_total", written)
    put("written_bytes_total", view.total_bytes)
    put("events", events)
    put("size_bytes", size)
    put("truncated_events_total", written - events)
    put("truncated_bytes_total", view.total_bytes - size)
    if record.truncation is not None:
        put("last_truncation_timestamp_seconds", record.truncation.time_ms / 1_000)
    put("version", view.version)


def _measure_transactions(view: StreamView, put: partial[None]) -> None:
    put("open_transactions", len(view.transactions))
    if view.transactions:
        oldest_ms = min(opened.created_ms for opened in view.transactions.values())
        put("oldest_transaction_timestamp_seconds", oldest_ms / 1_000)
    counts = Counter[str]()
    for domain in view.snapshot.names(OUTCOME_PREFIX):
        outcome = view.outcome(domain.removeprefix(OUTCOME_PREFIX))
        if outcome is not None:
            ended = "aborted" if outcome.reason == ASKED_BY_APPLICATION else "swept"
            counts["committed" if outcome.committed else ended] += 1
    for name in OUTCOMES:
        put("recent_transactions", counts[name], name)


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
        self._root = root_of(manager)
        self._store, self._runtime = self._root
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
                return self._root.scope(scope).names()
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
            log = self._root.stream(name)
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
        log, cut = self._root.stream(stream), state.cut(stream)
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
