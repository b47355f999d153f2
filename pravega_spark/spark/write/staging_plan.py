"""What the driver fixes before the tasks of a write start: the stream, its life, the routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pravega_spark.engine.key_management import ChunkKey
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_draft import sealed_error
from pravega_spark.errors import NoSuchScope, NoSuchStream
from pravega_spark.manager import StreamManager
from pravega_spark.model import Segment
from pravega_spark.names import split_stream
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.stream_schema import StreamSchema


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """Where all tasks of one write stage their chunks, and by which segments they route events.

    ``folder`` is that of the version, or of a transaction. ``key`` encrypts the chunks. ``schema``
    is that of a typed stream.
    """

    root: str
    stream: str
    life: int
    version: int
    segments: tuple[Segment, ...]
    folder: str
    key: ChunkKey | None
    schema: StreamSchema | None = None


def plan_staging(
    settings: WriteSettings, new: Callable[[], StreamConfiguration] | None = None
) -> tuple[StagingPlan, StreamView]:
    """Return the plan of a write, and the view that it is made from.

    Creates the scope and the stream if they are missing and the settings allow it; ``new`` returns
    its configuration, by default that of a raw stream. Raises NoSuchScope, NoSuchStream or
    StreamSealed before any task has run.
    """
    stream = open_stream(settings.root, settings.stream)
    try:
        view = existing_view(stream)
    except NoSuchStream:
        if not settings.create_if_missing:
            raise
        _create(settings, None if new is None else new())
        view = stream.view()
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)
    plan = StagingPlan(
        stream.root_url,
        settings.stream,
        view.life,
        view.version,
        view.active.segments,
        version_folder(view.version),
        stream.chunk_key,
        view.event_format.schema,
    )
    return plan, view


def _create(settings: WriteSettings, configuration: StreamConfiguration | None) -> None:
    manager = StreamManager(settings.root)
    if configuration is None:
        configuration = StreamConfiguration(scaling=ScalingPolicy.fixed(settings.segments))
    try:
        manager.create_stream(settings.stream, configuration)
    except NoSuchScope:
        manager.create_scope(split_stream(settings.stream)[0])
        manager.create_stream(settings.stream, configuration)
