"""Our own API for the root, its streams, reader groups and key-value tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeVar

from fastapi import APIRouter, Query

from pravega_spark.config.descriptions import MaintenanceInfo
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.serve import views
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.api_models import (
    HistoryPage,
    MaintenanceRow,
    RetentionAnswer,
    RootOverview,
    SegmentPicture,
    StorageAnswer,
    StreamDetails,
    StreamsPage,
    StreamTraffic,
    TransactionsPage,
    WatermarksPage,
)
from pravega_spark.serve.attention import Attention
from pravega_spark.serve.group_models import StreamReaders
from pravega_spark.serve.groups import StreamReadersOf
from pravega_spark.serve.names import KnownNames
from pravega_spark.serve.rest import NOT_FOUND, stream_name
from pravega_spark.serve.traffic import RANGES
from pravega_spark.serve.views import MAX_EPOCHS, segment_picture
from pravega_spark.serve.watch import RootWatch

_Answer = TypeVar("_Answer")
_ANSWER_SECONDS: Final = 10.0
"""How long an answer is kept while its stream does not change: ages in it grow."""
_STORAGE_SECONDS: Final = 60.0
"""The storage panel lists all objects of a stream."""
_RANGES_MS: Final = dict(zip(("15m", "1h", "24h"), RANGES, strict=True))
Search = Annotated[str | None, Query(max_length=200)]
Name = Annotated[str | None, Query(max_length=600)]
PageSize = Annotated[int, Query(ge=1, le=200)]
Offset = Annotated[int, Query(ge=0, le=1_000_000)]


class StreamAnswers:
    """What the routes of streams share."""

    def __init__(self, watch: RootWatch, cache: AnswerCache, readers: StreamReadersOf) -> None:
        """Take the watch of the root, and the cache."""
        self.watch = watch
        self.readers = readers
        self.manager = watch.root.manager
        self._cache = cache

    def view(self, name: str) -> StreamView:
        """Return a view that is at most half a poll old. Raises NoSuchStream."""
        return self.watch.stream(name).look(self.watch.poll_seconds / 2)

    def of_version(
        self,
        kind: tuple[str | int | None, ...],
        name: str,
        compute: Callable[[StreamView], _Answer],
    ) -> _Answer:
        """Return an answer for the stream's version, computed once for all viewers."""
        view = self.view(name)
        key = *kind, name
        version = view.life, view.version
        return self._cache.get(key, version, _ANSWER_SECONDS, lambda: compute(view))

    def storage(self, name: str) -> StorageAnswer:
        """Return what a stream stores, which may be a minute old."""
        self.view(name)

        def compute() -> StorageAnswer:
            return views.storage_answer(self.manager.stream_storage(name))

        return self._cache.get(("storage", name), None, _STORAGE_SECONDS, compute)


def selected(
    names: KnownNames, scope: str | None, search: str | None, tag: str | None
) -> list[str]:
    """Return the streams of a scope and a tag whose name or tags contain a text."""
    found = list(names.streams)
    if scope is not None:
        found = [name for name in found if name.startswith(f"{scope}/")]
    if tag is not None:
        found = [name for name in found if tag in names.tagged[name]]
    if search:
        text = search.lower()
        found = [n for n in found if text in " ".join((n, *names.tagged[n])).lower()]
    return found


def stream_api(answers: StreamAnswers) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/api/streams", tags=["Page"])
    _add_list(routes, answers)
    _add_panels(routes, answers)
    _add_log_panels(routes, answers)
    return routes


def _add_list(routes: APIRouter, answers: StreamAnswers) -> None:
    @routes.get("", operation_id="pageOfStreams")
    def list_streams(
        scope: Name = None,
        search: Search = None,
        tag: Search = None,
        after: Name = None,
        limit: PageSize = 100,
    ) -> StreamsPage:
        """Return streams by name, with their rates and sizes. ``search`` is in a name or a tag."""
        names = selected(answers.watch.names(), scope, search, tag)
        rest = [name for name in names if after is None or name > after]
        page = rest[:limit]
        with answers.watch.budget.of_gets().applied():
            rows = answers.watch.rows(page)
        return StreamsPage(
            streams=rows,
            total=len(names),
            next=page[-1] if len(rest) > limit else None,
        )


def _add_panels(routes: APIRouter, answers: StreamAnswers) -> None:
    @routes.get("/{scope}/{stream}", operation_id="streamDetails", responses=NOT_FOUND)
    def details(scope: str, stream: str) -> StreamDetails:
        """Return a stream's configuration, cuts, files, and active segments with their rates."""
        name = stream_name(scope, stream)
        watch = answers.watch.stream(name)
        view = answers.view(name)
        info = answers.of_version(("info",), name, lambda view: answers.manager.stream_info(name))
        return views.stream_details(watch.row(view), view, info, watch.segment_rates())

    @routes.get("/{scope}/{stream}/traffic", operation_id="streamTraffic", responses=NOT_FOUND)
    def traffic(scope: str, stream: str, last: Literal["15m", "1h", "24h"] = "1h") -> StreamTraffic:
        """Return the rates and the size over the last 15 minutes, hour, or day.

        Of a past in which nobody looked each answer knows more: ``is_reading`` says so.
        """
        name = stream_name(scope, stream)
        answers.view(name)
        return answers.watch.stream(name).traffic(_RANGES_MS[last])

    @routes.get("/{scope}/{stream}/segments", operation_id="streamSegments", responses=NOT_FOUND)
    def segments(
        scope: str, stream: str, limit: Annotated[int, Query(ge=1, le=MAX_EPOCHS)] = MAX_EPOCHS
    ) -> SegmentPicture:
        """Return the segments of the newest ``limit`` epochs: their keys, times and rates."""
        name = stream_name(scope, stream)
        log = answers.watch.root.log(name)
        return answers.of_version(
            ("segments", limit), name, lambda view: segment_picture(log, view, limit)
        )

    @routes.get("/{scope}/{stream}/readers", operation_id="streamReaders", responses=NOT_FOUND)
    def readers(scope: str, stream: str) -> StreamReaders:
        """Return the reader groups and subscribers of a stream, and how far behind they are."""
        view = answers.view(stream_name(scope, stream))
        groups = answers.watch.names().groups
        return answers.readers.answer(view, groups)

    @routes.get("/{scope}/{stream}/retention", operation_id="streamRetention", responses=NOT_FOUND)
    def retention(scope: str, stream: str) -> RetentionAnswer:
        """Return what a run of retention would delete now, what stays, and for whom."""
        name = stream_name(scope, stream)

        def explain(view: StreamView) -> RetentionAnswer:
            return views.retention_answer(answers.manager.retention(name).explain())

        return answers.of_version(("retention",), name, explain)

    @routes.get(
        "/{scope}/{stream}/watermarks", operation_id="streamWatermarks", responses=NOT_FOUND
    )
    def watermarks(scope: str, stream: str) -> WatermarksPage:
        """Return the newest watermarks, and the times that writers noted last."""
        name = stream_name(scope, stream)
        return answers.of_version(("watermarks",), name, views.watermarks_page)

    @routes.get("/{scope}/{stream}/storage", operation_id="streamStorage", responses=NOT_FOUND)
    def storage(scope: str, stream: str) -> StorageAnswer:
        """Return what a stream stores, and why; lists all its objects at most once a minute."""
        return answers.storage(stream_name(scope, stream))


def _add_log_panels(routes: APIRouter, answers: StreamAnswers) -> None:
    @routes.get(
        "/{scope}/{stream}/transactions", operation_id="streamTransactions", responses=NOT_FOUND
    )
    def transactions(
        scope: str, stream: str, offset: Offset = 0, limit: PageSize = 20
    ) -> TransactionsPage:
        """Return the open transactions, and completed ones from ``offset`` on, newest first."""
        name = stream_name(scope, stream)

        def find(view: StreamView) -> TransactionsPage:
            opened = answers.manager.list_transactions(name)
            completed = answers.manager.list_completed_transactions(name)
            return views.transactions_page(opened, completed, offset, limit)

        return answers.of_version(("transactions", offset, limit), name, find)

    @routes.get("/{scope}/{stream}/history", operation_id="streamHistory", responses=NOT_FOUND)
    def history(
        scope: str,
        stream: str,
        before: Annotated[int | None, Query(ge=0, le=1 << 62)] = None,
        limit: PageSize = 30,
    ) -> HistoryPage:
        """Return the commits below the version ``before``, the newest first; appends as one."""
        name = stream_name(scope, stream)
        log = answers.watch.root.log(name)
        return answers.of_version(
            ("history", before, limit),
            name,
            lambda view: views.commit_history(log, view, before, limit),
        )


def root_api(
    watch: RootWatch,
    attention: Attention,
    *,
    version: str,
    allow_changes: bool,
) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/api", tags=["Page"])

    @routes.get("/overview", operation_id="overview")
    def overview() -> RootOverview:
        """Return the root: its scopes, how much it holds, and the last runs of maintenance."""
        names = watch.names()
        found, overdue = attention.upkeep().infos, attention.overdue()
        return RootOverview(
            root=watch.root.url,
            version=version,
            allow_changes=allow_changes,
            poll_seconds=watch.poll_seconds,
            scopes=list(names.scopes),
            streams=len(names.streams),
            reader_groups=len(names.groups),
            tables=len(names.tables),
            maintenance=[
                _maintenance(info, is_overdue=info.kind in overdue)
                for info in found
                if info.scope is None
            ],
        )

    return routes


def page_of_names(
    names: Sequence[str], search: str | None, after: str | None, limit: int
) -> tuple[list[str], int, str | None]:
    """Return a page of the names that contain a text, how many do, and where the next begins."""
    found = [name for name in names if not search or search.lower() in name.lower()]
    rest = [name for name in found if after is None or name > after]
    page = rest[:limit]
    return page, len(found), page[-1] if len(rest) > limit else None


def _maintenance(info: MaintenanceInfo, *, is_overdue: bool) -> MaintenanceRow:
    return MaintenanceRow(
        kind=info.kind.value,
        is_overdue=is_overdue,
        finished_ms=info.finished_ms,
        by=info.by,
        streams=info.streams,
        failed=info.failed,
        claimed_by=info.claimed_by,
    )
