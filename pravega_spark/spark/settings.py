"""Validated settings of a read or a write, made from Spark's options. Picklable, no I/O.

A field that one option sets is declared by the option's name, and has its default from the table
of options. The others follow from several options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from pravega_spark.errors import InvalidName, InvalidOption
from pravega_spark.spark import options
from pravega_spark.spark.option_values import (
    AssignedSegments,
    CutName,
    LogVersion,
    SegmentOffsets,
    TimesBySegment,
    named,
)
from pravega_spark.values.checks import shown
from pravega_spark.values.names import check_scope, split_group, split_stream
from pravega_spark.values.segments import StreamCut
from pravega_spark.values.times import Timestamp

if TYPE_CHECKING:
    from pravega_spark.stream import Stream

_TIMEOUTS = {
    "retryTimeout": "retry_timeout",
    "connectTimeout": "connect_timeout",
    "readTimeout": "read_timeout",
}
"""Options of a query, and the storage options that they set."""


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Where a read starts or ends, as given by the user; ``option`` names it in errors."""

    option: str
    value: (
        str
        | SegmentOffsets
        | dict[str, StreamCut]
        | CutName
        | Timestamp
        | LogVersion
        | TimesBySegment
    )
    is_partial: bool = False
    """Whether offsets may name some segments only: the read is limited to those (``assign``)."""

    @property
    def is_latest(self) -> bool:
        """Whether the bound is the word ``latest``."""
        return self.value == "latest"


def _field(use: options.Use, name: str, unset: Any = None) -> Any:
    """Return a field that an option sets; ``unset`` is its value if the table has no default."""
    option = next(option for option in options.options_of(use) if option.name == name)
    value = unset if option.default is None else option.parse(name, option.default)
    return field(default=value, metadata={"option": name})


def fields_of(settings: type, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of ``settings`` that the options which were found set."""
    of_options = {f.name: f.metadata["option"] for f in fields(settings) if "option" in f.metadata}
    return {name: found[option] for name, option in of_options.items() if option in found}


_of_read = partial(_field, options.READ)
_of_write = partial(_field, options.WRITE)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """What a read covers: streams, bounds, limits of a micro-batch, columns, reader group."""

    root: str
    streams: tuple[str, ...] = ()
    pattern: str | None = _of_read("subscribePattern")
    starting: ReadBound | None = None
    ending: ReadBound | None = None
    timestamp_strategy: str = _of_read("startingOffsetsByTimestampStrategy")
    max_events: int | None = _of_read("maxOffsetsPerTrigger")
    max_bytes: int | None = _of_read("maxBytesPerTrigger")
    max_event_bytes: int = _of_read("maxEventBytes")
    min_events: int | None = _of_read("minOffsetsPerTrigger")
    max_trigger_delay_ms: int = _of_read("maxTriggerDelay")
    limit_first_batch: bool = _of_read("limitFirstBatch")
    min_partitions: int = _of_read("minPartitions", 0)
    fail_on_data_loss: bool = _of_read("failOnDataLoss")
    columns: tuple[str, ...] = _of_read("columns", ())
    routing_keys: tuple[str, ...] = _of_read("routingKeys", ())
    """The routing keys whose events are read; empty: all events."""
    push_filters: bool = _of_read("pushFilters")
    column_names: str = _of_read("columnNames")
    metadata: str | None = _of_read("metadata")
    scope: str | None = None
    group: str | None = None
    group_mode: str | None = _of_read("readerGroupMode")
    group_interval_ms: int = _of_read("readerGroupInterval")
    maintain: str | None = _of_read("maintain")
    include_watermark: bool = _of_read("includeWatermark")
    include_headers: bool = _of_read("includeHeaders")
    schema: str = _of_read("schema")
    key_encoding: str = _of_read("keyEncoding")
    assigned: AssignedSegments | None = _of_read("assign")  # noqa: RUF009 - immutable
    """The segments of each stream that are read; None: all of them."""
    leftovers: tuple[str, ...] = ()
    """Options of a Kafka query that mean nothing here."""


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """What a write needs: the stream, the frame's columns, idempotence, and file settings.

    An empty ``stream`` is that of each row; ``scope`` completes a name that has none.
    """

    root: str
    stream: str
    routing_key: str | None = _of_write("routingKey")
    event_time: str | None = _of_write("eventTime")
    event_time_delay_ms: int | None = _of_write("eventTimeDelay")
    """How much earlier than the latest event of a commit the next one may be; None: not noted."""
    application: tuple[str, int] | None = None
    transaction: str | None = _of_write("transaction")
    create_if_missing: bool = _of_write("createIfMissing")
    segments: int = _of_write("numSegments")
    compression: str = _of_write("compression")
    max_rows: int = _of_write("maxRecordsPerFile")
    column_names: str = _of_write("columnNames")
    checkpoint: str | None = None
    scope: str | None = None
    key_encoding: str = _of_write("keyEncoding")
    null_values: str = _of_write("nullValues")
    schema: str = _of_write("schema")
    bad_records: str = _of_write("badRecords")
    restored_lives: frozenset[int] = _of_write("restoredLives", frozenset())
    """Lives of restored streams of which the user says that no batch is missing."""

    accept_replay: int | None = _of_write("acceptReplay")
    """The number of a batch of several streams that may have other rows than before its stop."""

    leftovers: tuple[str, ...] = ()


def call_options(
    path: str | Stream | None,
    root: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    **arguments: Any,
) -> dict[str, str]:
    """Return the arguments of a call as Spark gives options: texts, with names in lower case.

    ``arguments`` are those that set an option under a Python name, ``txn_app_id`` for txnAppId. A
    root stays what it is: ``manager.root`` may have a file system with it. Raises InvalidOption for
    an option that is set twice.
    """
    options = dict(options)
    root = options.pop("root", None) if root is None else root
    folder: str | None = None if root is None else os.fspath(root)
    name: str | None = None
    if path is not None:
        name, folder = named(path, root)
    given: list[tuple[str, str, Any]] = [("path", "stream", name), ("root", "root", folder)]
    given += [(key.replace("_", "").lower(), key, value) for key, value in arguments.items()]
    given += [(key.lower(), key, value) for key, value in options.items()]
    found: dict[str, tuple[str, Any]] = {}
    for key, label, value in given:
        if value is None:
            continue
        if key in found:
            other, first = found[key]
            raise InvalidOption(
                f"{other}={shown(first)} and {label}={shown(value)} set one option: give one of "
                "them."
            )
        found[key] = label, value
    return {key: _text(value) for key, (_, value) in found.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_settings(given: Mapping[str, str]) -> ReadSettings:
    """Parse the options of ``spark.read`` and ``spark.readStream``; raise InvalidOption."""
    found = options.parse(options.READ, given)
    scope = found.get("scope")
    if "metadata" in found and scope is None and "stream" not in found:
        path = path_of(given)
        if path is not None and "/" not in path:
            scope, given = path, {k: v for k, v in given.items() if k.lower() != "path"}
    streams = _streams(found, given, scope)
    if not streams and "subscribePattern" not in found and "metadata" not in found:
        raise InvalidOption(
            "no stream is named: call .load('scope/stream'), or set the option stream, subscribe, "
            "subscribePattern or assign."
        )
    if "maxTriggerDelay" in found and "minOffsetsPerTrigger" not in found:
        raise InvalidOption("option maxTriggerDelay needs minOffsetsPerTrigger; set both.")
    return ReadSettings(
        root=given_root(found),
        streams=streams,
        starting=bound_of(found, "starting"),
        ending=bound_of(found, "ending"),
        scope=None if scope is None else check_scope(scope),
        group=group_of(found, scope),
        leftovers=options.for_brokers(given),
        **fields_of(ReadSettings, found),
    )


def check_batch(settings: ReadSettings, streaming: str = "readStream") -> None:
    """Raise InvalidOption for what only a streaming read has; ``streaming`` is the name of one."""
    if settings.group is not None:
        raise InvalidOption(
            f"option readerGroup={settings.group} is for {streaming}; a batch read keeps no "
            "position. To read from the group's position, set the option startingStreamCut to "
            "str(group.stream_cuts()[stream])."
        )
    if settings.include_watermark or "watermark" in map(str.lower, settings.columns):
        raise InvalidOption(
            f"the column watermark is for {streaming}, where it bounds the times of later events; "
            "for a batch read take cuts from manager.event_time(stream)."
        )


def write_settings(given: Mapping[str, str]) -> WriteSettings:
    """Parse the options of ``frame.write`` and ``frame.writeStream``; raise InvalidOption."""
    found = options.parse(options.WRITE, given)
    streams = _streams(found, given, found.get("scope"))
    application = application_of(found)
    if "transaction" in found:
        found.setdefault("createIfMissing", False)
        if found["createIfMissing"] or "numSegments" in found:
            raise InvalidOption(
                f"option transaction={found['transaction']} is for a stream that exists: remove "
                "createIfMissing and numSegments."
            )
    _check_delay(found)
    return WriteSettings(
        root=given_root(found),
        stream=streams[0] if streams else "",
        application=application,
        checkpoint=given.get("checkpointlocation"),
        scope=found.get("scope"),
        leftovers=options.for_brokers(given),
        **fields_of(WriteSettings, found),
    )


def application_of(found: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the application and its version by which a batch write takes effect once."""
    if ("txnAppId" in found) != ("txnVersion" in found):
        raise InvalidOption("options txnAppId and txnVersion need each other; set both or neither.")
    return (found["txnAppId"], found["txnVersion"]) if "txnAppId" in found else None


def _check_delay(found: Mapping[str, Any]) -> None:
    """Raise InvalidOption for an eventTimeDelay without times, or without a separate commit."""
    if "eventTimeDelay" not in found:
        return
    if "eventTime" not in found:
        raise InvalidOption(
            "option eventTimeDelay needs eventTime, the column whose latest time is noted; set "
            "both."
        )
    if "transaction" in found:
        raise InvalidOption(
            f"option eventTimeDelay has no effect with transaction={found['transaction']}, whose "
            "commit notes a time: remove it, and use commit(timestamp=...)."
        )


def path_of(given: Mapping[str, str]) -> str | None:
    """Return the path of load(), save() or start()."""
    return next((v for k, v in given.items() if k.lower() == "path" and v), None)


def given_root(found: Mapping[str, Any]) -> str:
    """Return the root; raise InvalidOption without one, and for one that tasks cannot reach."""
    if "root" not in found:
        raise InvalidOption(
            "option root is missing: name the folder or URL that holds the streams, such as "
            ".option('root', 's3://bucket/streams')."
        )
    root: str = found["root"]
    if root.lower().startswith("memory:"):
        raise InvalidOption(
            f"option root={root!r} is in the memory of one process, and Spark's tasks run in "
            "others; use a folder or an object store."
        )
    # Relative to the driver's folder: a task may have another working directory.
    if ":/" in root:
        return _timed(root, found)
    return os.path.abspath(os.path.expanduser(root))


def _timed(root: str, found: Mapping[str, Any]) -> str:
    """Return the URL of a root with the query's time-outs; they mean nothing for a local disk."""
    timeouts = {
        name: found[option] / 1_000 for option, name in _TIMEOUTS.items() if option in found
    }
    if not timeouts:
        return root
    # Imported on use: Spark loads the source for queries of other sources, too.
    from pravega_spark.engine.store.client_options import TIMEOUTS
    from pravega_spark.engine.store.opening import has_timeouts, is_s3
    from pravega_spark.engine.store.root_url import RootUrl

    if not has_timeouts(root):
        return root
    for option, name in _TIMEOUTS.items():
        if option in found and name in TIMEOUTS and not is_s3(root):
            raise InvalidOption(
                f"option {option} is for S3 only: the driver of {root} sets its own time-outs. "
                "Remove it."
            )
        if name in TIMEOUTS and timeouts.get(name) == 0:
            raise InvalidOption(f"option {option} must be more than 0, or no call could succeed.")
    return RootUrl(root, timeouts)


def _streams(
    found: Mapping[str, Any], given: Mapping[str, str], scope: str | None
) -> tuple[str, ...]:
    """Return the streams named by path, ``stream`` (with ``scope``) or ``subscribe``."""
    path = path_of(given)
    ways = ("stream", "subscribe", "subscribePattern", "assign")
    used = [name for name in ways if name in found]
    if path is not None:
        used.insert(0, "path")
    if len(used) > 1:
        raise InvalidOption(
            f"the stream is named by {' and by '.join(used)}; use only one of them."
        )
    named = found.get("subscribe") or tuple(found.get("assign", ()))
    named = named or tuple(filter(None, (found.get("stream"), path)))
    full = tuple(f"{scope}/{n}" if scope is not None and "/" not in n else n for n in named)
    for name in full:
        _check_stream(name)
    return tuple(sorted(full))


def _check_stream(name: str) -> None:
    try:
        split_stream(name)
    except InvalidName as error:
        raise InvalidOption(f"{error} The storage is named by the option root.") from None


def group_of(found: Mapping[str, Any], scope: str | None) -> str | None:
    """Return the full name of the query's reader group."""
    name = found.get("readerGroup")
    if name is None:
        for option in ("readerGroupMode", "readerGroupInterval"):
            if option in found:
                raise InvalidOption(f"option {option} needs readerGroup; set both.")
        return None
    if "subscribePattern" in found:
        raise InvalidOption(
            f"option readerGroup={name} needs a fixed set of streams: name them by subscribe "
            "instead of subscribePattern."
        )
    if "assign" in found:
        raise InvalidOption(
            f"option readerGroup={name} reads whole streams, and the group would release events "
            "that the query is not assigned: remove assign, or readerGroup."
        )
    full = f"{scope}/{name}" if scope is not None and "/" not in name else str(name)
    try:
        split_group(full)
    except InvalidName as error:
        raise InvalidOption(f"option readerGroup: {error}") from None
    return full


def bound_of(found: Mapping[str, Any], side: str) -> ReadBound | None:
    """Return the start or the end of the read: a time overrides a cut, a cut offsets."""
    times = (f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    for name in (*times, f"{side}StreamCut", f"{side}Offsets"):
        if name in found:
            return ReadBound(name, found[name], is_partial="assign" in found)
    return None
