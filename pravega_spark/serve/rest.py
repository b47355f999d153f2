"""Pravega's REST API: scopes, streams, reader groups and health.

Pravega's health endpoints: ``/ping`` and ``/v1/health``. The contributors are ``storage``, whether
the root's marker can be read, and ``maintenance``, whether a kind of it is overdue. A result is
kept for a few seconds, so that probes cost little.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from pravega_spark.engine.store.root_marker import MARKER_KEY, way_on
from pravega_spark.errors import (
    ConfigurationConflict,
    InvalidName,
    InvalidTime,
    NoSuchReaderGroup,
    NoSuchScope,
    NoSuchStream,
    NotFound,
    PravegaSparkError,
)
from pravega_spark.reader_groups.description import GroupVersion, get_group
from pravega_spark.serve.answer_cache import AnswerCache
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.rest_models import (
    CreateScopeRequest,
    CreateStreamRequest,
    HealthResult,
    HealthStatus,
    ReaderGroupName,
    ReaderGroupProperty,
    ReaderGroupsList,
    RestRoute,
    ScaleMetadata,
    ScaleSegment,
    ScopeProperty,
    ScopesList,
    StreamProperty,
    StreamsList,
    StreamStateRequest,
    UpdateStreamRequest,
    decode_configuration,
    encode_stream,
)
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.web_problems import problem
from pravega_spark.values.names import check_scope, split_group, split_stream, table_log
from pravega_spark.values.segments import Epoch
from pravega_spark.values.times import utc_text

NOT_FOUND: Final[dict[int | str, dict[str, Any]]] = {404: {"description": "Not found"}}
CONFLICT: Final[dict[int | str, dict[str, Any]]] = {409: {"description": "It exists already"}}
PRECONDITION: Final[dict[int | str, dict[str, Any]]] = {
    412: {"description": "Not empty, or not sealed"}
}


def existing_scope(root: ServedRoot, scope: str) -> str:
    """Return the name of a scope that exists; raise NoSuchScope for any other."""
    try:
        if root.manager.scope_exists(check_scope(scope)):
            return scope
    except InvalidName:
        pass  # a name that no scope can have
    ending = way_on(root.store, "; create it first.")
    raise NoSuchScope(f"scope {scope[:300]} does not exist{ending}", scope=scope)


def scope_routes(root: ServedRoot) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/v1/scopes", route_class=RestRoute, tags=["Scopes"])

    @routes.get("", operation_id="listScopes")
    def list_scopes() -> ScopesList:
        """List all scopes."""
        return ScopesList(scopes=[ScopeProperty(scopeName=s) for s in root.manager.list_scopes()])

    @routes.post(
        "",
        operation_id="createScope",
        status_code=201,
        response_model=ScopeProperty,
        responses=CONFLICT,
    )
    def create_scope(wanted: CreateScopeRequest) -> Any:
        """Create a scope."""
        if not root.manager.create_scope(wanted.scopeName):
            return problem(409, "ScopeExists", f"scope {wanted.scopeName} exists already.")
        return ScopeProperty(scopeName=wanted.scopeName)

    @routes.get("/{scope}", operation_id="getScope", responses=NOT_FOUND)
    def get_scope(scope: str) -> ScopeProperty:
        """Return a scope that exists."""
        return ScopeProperty(scopeName=existing_scope(root, scope))

    @routes.delete(
        "/{scope}",
        operation_id="deleteScope",
        status_code=204,
        responses={**NOT_FOUND, **PRECONDITION},
    )
    def delete_scope(scope: str) -> None:
        """Delete an empty scope."""
        existing_scope(root, scope)
        root.manager.delete_scope(scope)

    return routes


def existing_group(root: ServedRoot, scope: str, name: str) -> GroupVersion:
    """Return a group; raise NoSuchReaderGroup also for a name that no group can have."""
    full = f"{scope}/{name}"
    try:
        split_group(full)
    except InvalidName:
        raise NoSuchReaderGroup(
            f"reader group {full[:600]} does not exist; create it first.", group=full
        ) from None
    return get_group(root.store, full)


def reader_group_routes(root: ServedRoot) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(
        prefix="/v1/scopes/{scope}/readergroups", route_class=RestRoute, tags=["ReaderGroups"]
    )

    @routes.get("", operation_id="listReaderGroups", responses=NOT_FOUND)
    def list_reader_groups(scope: str) -> ReaderGroupsList:
        """List the reader groups of a scope."""
        existing_scope(root, scope)
        names = [group.partition("/")[2] for group in root.manager.list_reader_groups(scope)]
        return ReaderGroupsList(
            readerGroups=[ReaderGroupName(readerGroupName=name) for name in names]
        )

    @routes.get("/{group}", operation_id="getReaderGroup", responses=NOT_FOUND)
    def get_reader_group(scope: str, group: str) -> ReaderGroupProperty:
        """Return the streams and the readers of a group."""
        state = existing_group(root, scope, group).state
        prefix = f"{scope}/"
        return ReaderGroupProperty(
            scopeName=scope,
            readerGroupName=group,
            streamList=[stream.removeprefix(prefix) for stream in sorted(state.lives)],
            onlineReaderIds=sorted(state.readers),
        )

    @routes.delete(
        "/{group}", operation_id="deleteReaderGroup", status_code=204, responses=NOT_FOUND
    )
    def delete_reader_group(scope: str, group: str) -> None:
        """Delete a group, and release the data that it held."""
        found = existing_group(root, scope, group)
        root.manager.delete_reader_group(found.state.group)

    return routes


_UPDATE_ATTEMPTS = 5
_MAX_TIME_MS = (1 << 63) - 1
TimeMs = Annotated[int, Query(ge=0, le=_MAX_TIME_MS)]


def stream_name(scope: str, name: str) -> str:
    """Return ``scope/name`` of a stream; raise NoSuchStream if no stream can have that name."""
    full = f"{scope}/{name}"
    with contextlib.suppress(InvalidName):
        split_stream(full)
        return full
    raise NoSuchStream(f"stream {full[:600]} does not exist; create it first.", stream=full)


def stream_routes(root: ServedRoot) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(prefix="/v1/scopes/{scope}/streams", route_class=RestRoute, tags=["Streams"])
    _add_reads(routes, root)
    _add_changes(routes, root)
    return routes


def _property(root: ServedRoot, stream: str) -> StreamProperty:
    scope, _, name = stream.partition("/")
    return encode_stream(scope, name, root.view(stream).record.configuration)


def _listed(root: ServedRoot, scope: str, internal: bool, tag: str | None) -> list[str]:
    if internal:
        tables = root.manager.list_key_value_tables(scope)
        return [table_log(scope, table.partition("/")[2]) for table in tables]
    return root.manager.list_streams(scope, tag=tag)


def _add_reads(routes: APIRouter, root: ServedRoot) -> None:
    @routes.get("", operation_id="listStreams", responses=NOT_FOUND)
    def list_streams(
        scope: str, filter_type: str | None = None, filter_value: str | None = None
    ) -> StreamsList:
        """List the streams of a scope.

        ``filter_type=tag`` with a ``filter_value`` selects those with that tag;
        ``filter_type=showInternalStreams`` lists the change logs of key-value tables instead.
        """
        existing_scope(root, scope)
        tag = filter_value if filter_type == "tag" else None
        found = []
        for stream in _listed(root, scope, filter_type == "showInternalStreams", tag):
            with contextlib.suppress(NoSuchStream):  # deleted since it was listed
                found.append(_property(root, stream))
        return StreamsList(streams=found)

    @routes.get("/{stream}", operation_id="getStream", responses=NOT_FOUND)
    def get_stream(scope: str, stream: str) -> StreamProperty:
        """Return a stream and its configuration."""
        return _property(root, stream_name(scope, stream))

    @routes.get("/{stream}/scaling-events", operation_id="getScalingEvents", responses=NOT_FOUND)
    def get_scaling_events(
        scope: str,
        stream: str,
        start_ms: Annotated[TimeMs, Query(alias="from")],
        end_ms: Annotated[TimeMs, Query(alias="to")],
    ) -> list[ScaleMetadata]:
        """Return the scale events between two times in ms since 1970, and the one before them."""
        if start_ms > end_ms:
            raise InvalidTime(f"'from' ({start_ms}) is later than 'to' ({end_ms}); exchange them.")
        opened = root.manager.stream(stream_name(scope, stream))
        epochs = opened.epochs(start_ms=start_ms, end_ms=end_ms)
        oldest = min(segment.epoch for epoch in epochs for segment in epoch.segments)
        starts: dict[int, int] = {}
        for epoch in opened.epochs(oldest, epochs[-1].number):
            for segment in epoch.segments:
                starts.setdefault(segment.segment_id, epoch.created_ms)
        return [_scale_event(epoch, starts) for epoch in epochs if epoch.created_ms <= end_ms]


def _scale_event(epoch: Epoch, starts: dict[int, int]) -> ScaleMetadata:
    """Return an epoch as Pravega does; ``starts`` has when each segment was opened."""
    segments = []
    for segment in epoch.segments:
        started_ms = starts[segment.segment_id]
        segments.append(
            ScaleSegment(
                number=segment.number,
                epoch=segment.epoch,
                start=started_ms,
                startTime=started_ms,
                keyStart=segment.key_range.low,
                keyEnd=segment.key_range.high,
            )
        )
    return ScaleMetadata(
        timestamp=epoch.created_ms,
        segments=segments,
        segmentList=segments,
        splits=epoch.splits,
        merges=epoch.merges,
    )


def _add_changes(routes: APIRouter, root: ServedRoot) -> None:
    @routes.post(
        "",
        operation_id="createStream",
        status_code=201,
        response_model=StreamProperty,
        responses={**NOT_FOUND, **CONFLICT},
    )
    def create_stream(scope: str, wanted: CreateStreamRequest) -> Any:
        """Create a stream."""
        existing_scope(root, scope)
        name = f"{scope}/{wanted.streamName}"
        split_stream(name)
        if not root.manager.create_stream(name, decode_configuration(wanted)):
            return problem(409, "StreamExists", f"stream {name} exists already.")
        return _property(root, name)

    @routes.put("/{stream}", operation_id="updateStream", responses=NOT_FOUND)
    def update_stream(scope: str, stream: str, wanted: UpdateStreamRequest) -> StreamProperty:
        """Set the scaling policy, the retention policy and the tags of a stream."""
        name = stream_name(scope, stream)
        for attempt in range(_UPDATE_ATTEMPTS):
            record = root.view(name).record
            configuration = decode_configuration(wanted, record.configuration)
            try:
                root.manager.update_stream(
                    name, configuration, expected_version=record.configuration_version
                )
                break
            except ConfigurationConflict:
                if attempt == _UPDATE_ATTEMPTS - 1:
                    raise
        return _property(root, name)

    @routes.put("/{stream}/state", operation_id="updateStreamState", responses=NOT_FOUND)
    def update_stream_state(
        scope: str, stream: str, wanted: StreamStateRequest
    ) -> StreamStateRequest:
        """Seal a stream; that is the only state that can be set."""
        root.manager.seal_stream(stream_name(scope, stream))
        return wanted

    @routes.delete(
        "/{stream}",
        operation_id="deleteStream",
        status_code=204,
        responses={**NOT_FOUND, **PRECONDITION},
        response_model=None,
    )
    def delete_stream(scope: str, stream: str) -> Any:
        """Delete a sealed stream."""
        name = stream_name(scope, stream)
        if not root.manager.delete_stream(name):
            raise NoSuchStream(f"stream {name} does not exist.", stream=name)


_KEPT_SECONDS: Final = 5.0
NAME: Final = "pravega-spark"


class ServerHealth:
    """The health of a server: of itself, its storage, and the root's maintenance."""

    def __init__(self, root: ServedRoot, cache: AnswerCache) -> None:
        """Take the root, and the cache in which results are kept."""
        self._root = root
        self._cache = cache

    def result(self) -> HealthResult:
        """Return the health with that of all contributors: one or two storage calls, or none."""
        return self._cache.get(("health",), None, _KEPT_SECONDS, self._look)

    def find(self, name: str | None) -> HealthResult:
        """Return the health of a contributor, or of all; raises NotFound."""
        found = self.result()
        if name in (None, found.name):
            return found
        if name not in found.children:
            raise NotFound(
                f"there is no health contributor {str(name)[:100]!r}; there are "
                f"{', '.join(found.children)}."
            )
        return found.children[name]

    def _look(self) -> HealthResult:
        storage = self._storage()
        children = {"storage": storage}
        if storage.readiness:
            children["maintenance"] = self._maintenance()
        return _health(NAME, storage.readiness, {}, children)

    def _storage(self) -> HealthResult:
        try:
            is_found = self._root.store.exists(MARKER_KEY)
        except (PravegaSparkError, OSError) as error:
            return self._storage_down(said(error, self._root.store.url))
        if not is_found:
            return self._storage_down("the root's marker is missing.")
        self._root.storage_answered()
        return _health("storage", True, {"root": self._root.url})

    def _storage_down(self, error: str) -> HealthResult:
        since = utc_text(self._root.storage_failed())
        return _health("storage", False, {"root": self._root.url, "error": error, "since": since})

    def _maintenance(self) -> HealthResult:
        """Return the overdue work. It does not call for a restart, so the server stays UP."""
        try:
            found = self._root.manager.maintenance()
        except (PravegaSparkError, OSError) as error:
            return _health("maintenance", False, {"error": said(error, self._root.store.url)})
        overdue = [info.kind.value for info in found if info.is_overdue and info.scope is None]
        return _health("maintenance", True, {"overdue": ", ".join(overdue) or "nothing"})


def _health(
    name: str,
    is_up: bool,
    details: dict[str, str],
    children: dict[str, HealthResult] | None = None,
) -> HealthResult:
    status = HealthStatus.UP if is_up else HealthStatus.DOWN
    return HealthResult(
        name=name,
        status=status,
        readiness=is_up,
        liveness=True,
        details=details,
        children=children or {},
    )


def health_routes(health: ServerHealth) -> APIRouter:
    """Return the routes."""
    routes = APIRouter(route_class=RestRoute, tags=["Health"])

    @routes.get("/ping", operation_id="ping", response_class=Response)
    async def ping() -> Response:
        """Answer 200 while the server runs."""
        return Response()

    @routes.get("/v1/health/liveness", operation_id="getLiveness")
    async def liveness() -> bool:
        """Return true while the server runs, even if the storage hangs and holds all threads."""
        return True

    def add(path: str, name: str, look: Any, model: Any) -> None:
        def of_all() -> Any:
            return look(health.find(None))

        def of_one(contributor: str) -> Any:
            return look(health.find(contributor))

        kind = name.lower()
        if path != "/liveness":
            routes.add_api_route(
                f"/v1/health{path}",
                of_all,
                response_model=model,
                operation_id=f"get{name}",
                summary=f"Return the {kind} of the server",
            )
        routes.add_api_route(
            f"/v1/health{path}/{{contributor}}",
            of_one,
            response_model=model,
            operation_id=f"getContributor{name}",
            summary=f"Return the {kind} of one contributor",
            responses=NOT_FOUND,
        )

    add("/readiness", "Readiness", lambda found: found.readiness, bool)
    add("/liveness", "Liveness", lambda found: found.liveness, bool)
    add("/details", "Details", lambda found: found.details, dict[str, str])
    add("/status", "Status", lambda found: found.status, HealthStatus)
    add("", "Health", lambda found: found, HealthResult)
    return routes
