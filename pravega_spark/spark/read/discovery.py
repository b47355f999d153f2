"""The streams that a streaming query reads, found by name or by pattern, and their newest views.

Lives in the process that Spark keeps for a query's source; it is never pickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption, NoSuchStream
from pravega_spark.spark.read.bounds import EndingCut
from pravega_spark.spark.read.data_loss import check_root
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.values.limits import DISCOVERY_SECONDS, STREAM_REFRESH_SECONDS

logger = own_logger(__name__)


@dataclass(slots=True)
class TrackedStream:
    """An open stream, where its reading ends, and its view when it was last refreshed."""

    stream: StreamLog
    ending: EndingCut
    view: StreamView
    refreshed_at: float


@dataclass(slots=True)
class StreamDiscovery:
    """Tracks the streams of one run of a query; limits how often storage is asked.

    ``since`` is when the planning began, by the boot clock.
    """

    settings: ReadSettings
    clock: Callable[[], float]
    since: float | None = None
    _tracked: dict[str, TrackedStream] = field(default_factory=dict)
    _missing: dict[str, tuple[float, NoSuchStream]] = field(default_factory=dict)
    _deleted: dict[str, bool] = field(default_factory=dict)
    _names: tuple[str, ...] = ()
    _listed_at: float | None = None

    def names(self) -> tuple[str, ...]:
        """Return the names of the streams that the query reads; a pattern's may change."""
        if self.settings.pattern is None:
            return self.settings.streams
        now = self.clock()
        if self._listed_at is None or now - self._listed_at >= DISCOVERY_SECONDS:
            self._names = tuple(matching_streams(self.settings.root, self.settings.pattern))
            self._listed_at = now
        return self._names

    def expire_names(self) -> None:
        """Let the next call of :meth:`names` search again."""
        self._listed_at = None

    def track(self, name: str, *, refresh: bool = True) -> tuple[TrackedStream, StreamView]:
        """Return a stream and its view, refreshed if ``refresh`` is set and it is due."""
        tracked, now = self._tracked.get(name), self.clock()
        if tracked is None:
            stream, view = planned_view(open_store(self.settings.root), name, self.since)
            ending = EndingCut(stream, self.settings.ending)
            tracked = self._tracked[name] = TrackedStream(stream, ending, view, now)
        elif refresh and self._is_due(tracked, now):
            tracked.view, tracked.refreshed_at = begun_view(tracked.stream), now
        return tracked, tracked.view

    def _is_due(self, tracked: TrackedStream | None, now: float) -> bool:
        if tracked is None or tracked.stream.store.is_local:
            return True
        return now - tracked.refreshed_at >= STREAM_REFRESH_SECONDS

    def tracked(self, name: str) -> TrackedStream:
        """Return a stream whose view was asked for before."""
        return self._tracked[name]

    def newest(self, name: str) -> tuple[StreamLog, StreamView]:
        """Return a stream and the newest view that this process has, without a refresh."""
        stream = self.track(name, refresh=False)[0].stream
        return stream, stream.view(refresh=False)

    def known_views(self) -> dict[str, StreamView]:
        """Return the views of the query's streams that are tracked, without a refresh."""
        tracked = ((name, self._tracked.get(name)) for name in self.names())
        return {name: t.view for name, t in tracked if t is not None}

    def views(
        self, names: Collection[str], in_checkpoint: Collection[str] = ()
    ) -> dict[str, StreamView]:
        """Return the views of the streams that exist, by name.

        With failOnDataLoss=false a missing stream is left out, unless the query names its streams
        and none of them exists. Otherwise NoSuchStream is raised; for a stream of the checkpoint
        it says that unread events may be lost. Raises RootChanged if the root of such a stream is
        gone.
        """
        strict, wanted, now = self.settings.fail_on_data_loss, sorted(names), self.clock()

        def look(name: str) -> StreamView | NoSuchStream:
            try:
                return self._view(name, was_read=name in in_checkpoint)
            except NoSuchStream as error:
                may_lose = strict and name in in_checkpoint
                return _unread_error(name, error) if may_lose else error

        due = [name for name in wanted if self._is_due(self._tracked.get(name), now)]
        looks = dict(zip(due, in_rounds(open_store(self.settings.root), look, due), strict=True))
        found: dict[str, StreamView] = {}
        errors = []
        for name in wanted:
            view = looks[name] if name in looks else self._tracked[name].view
            if isinstance(view, NoSuchStream):
                errors.append(view)
            else:
                found[name] = view
        if errors and (strict or not (found or self.settings.pattern)):
            raise errors[0]
        return found

    def _view(self, name: str, *, was_read: bool) -> StreamView:
        """Return a stream's view; search for a missing stream only when it is due."""
        now = self.clock()
        if name in self._missing:
            searched_at, error = self._missing[name]
            if now - searched_at < DISCOVERY_SECONDS:
                raise error
        try:
            view = self.track(name)[1]
        except NoSuchStream as error:
            if was_read:
                check_root(open_store(self.settings.root))
            self._deleted.pop(name, None)
            if name not in self._missing and not self.settings.fail_on_data_loss:
                logger.warning(
                    "failOnDataLoss=false: continued without stream %s: %s",
                    name,
                    error,
                    extra=log_fields("read", name),
                )
            self._missing[name] = now, error
            self._tracked.pop(name, None)
            raise
        self._missing.pop(name, None)
        return view

    def is_deleted(self, name: str) -> bool:
        """Return whether the log of a stream that is not read says that it was deleted.

        Without a log it may come back. Looked up once, and again after a search for the stream.
        Raises RootChanged if the root of the stream is gone.
        """
        if name not in self._deleted:
            view = open_stream(self.settings.root, name).current_view()
            if view is None:
                check_root(open_store(self.settings.root))
            self._deleted[name] = view is not None and view.record.state is StreamState.DELETED
        return self._deleted[name]

    def dropped(self, in_checkpoint: Iterable[str]) -> list[str]:
        """Return the streams that the query was reading and that its options no longer name.

        Raises InvalidOption if it may not leave their unread events (failOnDataLoss).
        """
        settings, named = self.settings, set(self.settings.streams)
        pattern = None if settings.pattern is None else re.compile(settings.pattern)
        dropped = [
            name
            for name in sorted(in_checkpoint)
            if (name not in named if pattern is None else not pattern.fullmatch(name))
        ]
        if dropped:
            lost = ", ".join(dropped)
            change = (
                f"the query's checkpoint has read {lost}, and the query now reads "
                f"{settings.pattern or ', '.join(settings.streams)} instead"
            )
            if settings.fail_on_data_loss:
                raise InvalidOption(
                    f"{change}. Name {lost} too, start with a new checkpoint folder, or set "
                    f"failOnDataLoss to false to leave the unread events of {lost}."
                )
            logger.warning(
                "failOnDataLoss=false: %s. A query that names %s again continues there.",
                change,
                lost,
                extra=log_fields("read", dropped=lost),
            )
        return dropped


def planned_view(store: Store, name: str, since: float | None) -> tuple[StreamLog, StreamView]:
    """Return a stream and its view for one that plans a read.

    It is the newest, or was so after ``since`` by the boot clock. The files are read with it, which
    planning needs next.
    """
    stream = open_stream(store, name)
    stream.log.expect_files()
    return stream, begun_view(stream, since)


def matching_streams(root: str, pattern: str) -> list[str]:
    """Return the streams under a root whose whole name matches a pattern."""
    from pravega_spark.manager import StreamManager, root_of  # most reads name their streams

    manager = StreamManager(root)
    wanted = re.compile(pattern)
    return sorted(filter(wanted.fullmatch, root_of(manager).in_scopes(manager.list_streams)))


def _unread_error(name: str, error: NoSuchStream) -> NoSuchStream:
    return NoSuchStream(
        f"{error} The query's checkpoint has read stream {name}, which may have had unread events "
        "when it was deleted. Start the query without it and with a new checkpoint folder, or set "
        "failOnDataLoss to false to continue with the other streams.",
        stream=name,
    )
