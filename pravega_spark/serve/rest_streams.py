"""Pravega's REST API for streams: ``/v1/scopes/{scope}/streams``."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Query

from pravega_spark.errors import ConfigurationConflict, InvalidName, InvalidTime, NoSuchStream
from pravega_spark.model import Epoch
from pravega_spark.names import split_stream, table_log
from pravega_spark.serve.rest_models import (
    CreateStreamRequest,
    RestRoute,
    ScaleMetadata,
    ScaleSegment,
    StreamProperty,
    StreamsList,
    StreamStateRequest,
    UpdateStreamRequest,
)
from pravega_spark.serve.rest_policies import decode_configuration, encode_stream
from pravega_spark.serve.rest_scopes import CONFLICT, NOT_FOUND, PRECONDITION, existing_scope
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.web_problems import problem

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
            raise InvalidTime(f"'from' ({start_ms}) is later than 'to' ({end_ms}).")
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
