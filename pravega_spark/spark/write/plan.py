"""What the driver fixes before the tasks of a write start: the stream, its life, the routing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.key_management import ChunkKey
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.root_marker import read_root
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.errors import NoSuchScope, NoSuchStream, RootChanged
from pravega_spark.manager import StreamManager
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.batch_source import UNREADABLE, QueryCheckpoint, query_id_of
from pravega_spark.spark.write.task_run import TaskRun
from pravega_spark.values.names import split_stream, split_table, table_of_log
from pravega_spark.values.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
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


class NewRoot(Exception):
    """The driver leaves a root without a marker to the tasks, which see the number of the batch.

    A disk that is not mounted looks like a new root. Only the first batch of a query makes one.
    """


def plan_staging(
    settings: WriteSettings, new: Callable[[], StreamConfiguration], task: TaskRun | None
) -> tuple[StagingPlan, StreamView]:
    """Return the plan of a write, and the view that it is made from.

    Creates the scope and the stream if they are missing and the settings allow it; ``new`` returns
    its configuration. ``task`` is None on the driver, which raises NewRoot rather than make a root.
    Raises NoSuchScope, NoSuchStream, StreamSealed, and RootChanged if a root is missing that an
    earlier batch of the query has used.
    """
    stream = open_stream(settings.root, settings.stream)
    try:
        view = existing_view(stream)
    except NoSuchStream:
        is_new_root(settings, task)  # first: what else is wrong is so because it is not there
        if not settings.create_if_missing:
            raise
        _create(settings, new())
        view = stream.view()
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)
    plan = StagingPlan(
        root=stream.root_url,
        stream=settings.stream,
        life=view.life,
        version=view.version,
        segments=view.active.segments,
        folder=version_folder(view.version),
        key=stream.chunk_key,
        schema=view.event_format.schema,
    )
    return plan, view


def is_new_root(settings: WriteSettings, task: TaskRun | None) -> bool:
    """Return whether the root has no marker; raise RootChanged if the query has used it before."""
    store = open_store(settings.root)
    if read_root(store) is not None:
        return False
    batch = _batch(settings, task)
    if batch:
        query_id = (task and task.query_id) or query_id_of(settings.checkpoint)
        query = query_id or f"with the checkpoint {settings.checkpoint}"
        raise RootChanged(
            f"root {store.url} has no marker, and this is batch {batch} of query {query}: only "
            "batch 0 finds a root that is new, so this one was removed, moved or is not mounted. "
            "Nothing was written. Mount or restore it, and start the query again; if the root is "
            f"new for this query, first {_creation(settings, store)}"
        )
    if task is None:
        raise NewRoot
    return True


def _batch(settings: WriteSettings, task: TaskRun | None) -> int | None:
    """Return the number of the query's batch; None if nothing tells it.

    The tasks of a thread that ``foreachBatch`` started do not see it, but a write may name the
    checkpoint. Where that cannot be read, the number of the write stands for it.
    """
    if task is not None and task.batch is not None:
        return task.batch
    if settings.checkpoint is None:
        return None
    try:
        return QueryCheckpoint(settings.checkpoint).last_batch()
    except UNREADABLE:
        return settings.application[1] if task and settings.application else None


def _creation(settings: WriteSettings, store: Store) -> str:
    stream = settings.stream or "scope/stream"
    table = table_of_log(stream)
    if table is None:
        command = f"stream create --root {store.url} --create-scope {stream}"
        return f"create the stream: pravega-spark {command}"
    scope = split_table(table)[0]
    return (
        f"create the scope and the table: pravega-spark scope create --root {store.url} {scope}, "
        f"then pravega-spark kvt create --root {store.url} {table}"
    )


def _create(settings: WriteSettings, configuration: StreamConfiguration) -> None:
    manager = StreamManager(settings.root)
    try:
        manager.create_stream(settings.stream, configuration)
    except NoSuchScope:
        manager.create_scope(split_stream(settings.stream)[0])
        manager.create_stream(settings.stream, configuration)
