"""The data source's options: one table for reads, one for writes, and the parser of both.

Spark passes keys in lower case. An empty text counts as not set. An unknown option is an error
that names the nearest known one; an option of a later version is an error that says so.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import InvalidOption
from pravega_spark.spark import kafka_values, option_values
from pravega_spark.spark.kafka_options import KAFKA_READ, KAFKA_WRITE
from pravega_spark.spark.option_values import Option
from pravega_spark.spark.target_options import TARGET
from pravega_spark.values.checks import shown

logger = own_logger(__name__)


READ = (
    *TARGET,
    Option("subscribe", option_values.name_list, "-", "Several streams, separated by commas."),
    Option(
        "subscribePattern",
        option_values.regular_expression,
        "-",
        "A regular expression that must match the whole name of a stream.",
    ),
    *KAFKA_READ,
    Option(
        "startingOffsets",
        option_values.segment_offsets,
        "latest (streaming), earliest (batch)",
        "earliest, latest, or JSON by stream and segment with -2 (earliest) and -1 (latest).",
    ),
    Option(
        "endingOffsets",
        option_values.segment_offsets,
        "latest",
        "Like startingOffsets; a streaming query reads no further than this.",
    ),
    Option(
        "startingStreamCut",
        option_values.stream_cuts,
        "-",
        "The text of a StreamCut (several are separated by ;), earliest, latest, or a saved cut.",
        ("start_stream_cut",),
    ),
    Option(
        "endingStreamCut",
        option_values.stream_cuts,
        "-",
        "Like startingStreamCut, for the end.",
        ("end_stream_cut",),
    ),
    Option(
        "startingTimestamp",
        option_values.timestamp,
        "-",
        "Milliseconds since 1970, ISO-8601, a date, or -1h; overrides cuts, which override "
        "offsets.",
    ),
    Option(
        "endingTimestamp",
        option_values.timestamp,
        "-",
        "Like startingTimestamp; only events before it are read.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        option_values.one_of("error", "latest"),
        "error",
        "If a stream has no event at or after the starting time: fail, or start at its tail.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        option_values.positive_integer,
        "no limit",
        "Maximum number of events in a micro-batch, shared over the segments by backlog.",
        ("maxRowsPerTrigger",),
    ),
    Option(
        "maxBytesPerTrigger",
        option_values.size_bytes,
        "no limit",
        "Approximate maximum of payload bytes in a micro-batch, such as 256m.",
        ("approx_bytes_per_trigger",),
    ),
    Option(
        "maxEventBytes",
        option_values.size_bytes,
        "64m",
        "A large event above this size is read as its reference (JSON) instead of its bytes.",
    ),
    Option(
        "minOffsetsPerTrigger",
        option_values.positive_integer,
        "no wait",
        "Wait for this number of events, for at most maxTriggerDelay; not with availableNow.",
    ),
    Option(
        "maxTriggerDelay",
        option_values.duration_ms,
        "15m",
        "Longest wait for minOffsetsPerTrigger.",
    ),
    Option(
        "minPartitions",
        option_values.positive_integer,
        "small segments share one; batch reads split large ones",
        "Desired number of partitions: batch reads split by offset, micro-batches by routing key.",
    ),
    Option(
        "failOnDataLoss",
        option_values.boolean,
        "true",
        "Fail if events to be read were deleted or truncated; false logs and skips them.",
    ),
    Option(
        "readerGroup",
        option_values.any_text,
        "-",
        "The group `scope/group` that keeps the query's position (streaming only); created if "
        "missing.",
        ("consumerId",),
    ),
    Option(
        "readerGroupMode",
        option_values.one_of("observer", "subscriber"),
        "that of the group; observer for a new group",
        "subscriber: streams with a policy by consumption keep what the query has not read.",
    ),
    Option(
        "readerGroupInterval",
        option_values.duration_ms,
        "5s",
        "Shortest time between two reports of finished batches to the group.",
    ),
    Option(
        "maintain",
        option_values.one_of("auto", "off"),
        "the root's setting",
        "auto: the driver does a part of the root's maintenance while the query runs (streaming "
        "only).",
    ),
    Option(
        "columns",
        option_values.name_list,
        "all",
        "The columns to read; others are not transferred.",
    ),
    Option(
        "routingKeys",
        option_values.key_list,
        "all",
        "Only events with these routing keys, such as UA,DL, or a JSON list; others are not read.",
    ),
    Option(
        "pushFilters",
        option_values.boolean,
        "false",
        "Let conditions on the frame skip files before a task starts; see Filters (batch only).",
    ),
    Option(
        "columnNames",
        option_values.one_of("pravega", "kafka"),
        "pravega",
        "Names of the columns: Pravega's, or those of Spark's Kafka source.",
    ),
    Option(
        "schema",
        option_values.one_of("auto", "raw"),
        "auto",
        "auto: the columns of a typed stream, the bytes of another. raw: bytes, without looking.",
    ),
    Option(
        "includeWatermark",
        option_values.boolean,
        "false",
        "Add the column watermark: before it, nothing follows the micro-batch (streaming only).",
    ),
    Option(
        "metadata",
        option_values.one_of(
            "Streams",
            "StreamInfo",
            "Segments",
            "Epochs",
            "Schemas",
            "ReaderGroups",
            "Lag",
            "StreamCuts",
            "Watermarks",
            "JointTransactions",
            "Transactions",
            "Settings",
            "Storage",
            "Maintenance",
            "KeyValueTables",
        ),
        "-",
        "Read a table about streams and groups instead of events (batch only).",
    ),
)

WRITE = (
    *TARGET[:-1],
    Option(
        "stream",
        option_values.any_text,
        "the frame's column stream",
        "The stream as `scope/stream`; also the path of save() and start(). Without it each row "
        "goes to the stream that its column `stream` (or `topic`) names.",
        ("topic",),
    ),
    Option(
        "routingKey",
        option_values.any_text,
        "routing_key",
        "The column that holds the routing keys.",
    ),
    Option(
        "eventTime", option_values.any_text, "now", "The column that holds the events' timestamps."
    ),
    Option(
        "eventTimeDelay",
        option_values.duration_ms,
        "-",
        "Note the latest eventTime of each commit, less this duration, for the stream's watermark; "
        "0s for events in order.",
    ),
    Option(
        "txnAppId",
        option_values.any_text,
        "-",
        "With txnVersion: a batch write takes effect once, however often it is repeated.",
    ),
    Option(
        "txnVersion",
        option_values.non_negative_integer,
        "-",
        "An increasing number; a write at or below the last one of its txnAppId is skipped.",
    ),
    Option(
        "transaction",
        option_values.any_text,
        "-",
        "Id of an open transaction; the frame becomes visible when it commits (batch only).",
    ),
    Option(
        "createIfMissing",
        option_values.boolean,
        "true",
        "Create the scope and the stream if they do not exist.",
        ("allow_create_stream", "allow_create_scope"),
    ),
    Option(
        "numSegments",
        option_values.positive_integer,
        "1",
        "Number of segments of a stream that this write creates.",
        ("default_num_segments",),
    ),
    Option(
        "compression",
        option_values.one_of("zstd", "snappy", "gzip", "lz4", "none"),
        "zstd",
        "Codec of the data files.",
    ),
    Option(
        "maxRecordsPerFile",
        option_values.positive_integer,
        "1000000",
        "Maximum number of events in a file.",
    ),
    Option(
        "columnNames",
        option_values.one_of("pravega", "kafka"),
        "pravega",
        "kafka: write the columns key and value; partition is refused, and headers unless empty.",
    ),
    *KAFKA_WRITE,
    Option(
        "schema",
        option_values.one_of("auto", "infer", "raw"),
        "auto",
        "infer: a stream that this write creates is typed, with the frame's columns. raw: of "
        "bytes. auto: as the stream is, and raw if it is created.",
    ),
    Option(
        "badRecords",
        option_values.one_of("fail", "dlq"),
        "fail",
        "Rows that do not fit a typed stream's schema: fail, or write them to the stream "
        "`<stream>-dlq`, with the reason.",
    ),
    Option(
        "restoredLives",
        option_values.life_list,
        "-",
        "Lives of streams restored from a copy, separated by commas, as the error names them: no "
        "batch of this query is missing there.",
    ),
    Option(
        "acceptReplay",
        option_values.non_negative_integer,
        "-",
        "Number of a batch of several streams, as the error names it: the streams that lack it "
        "take its rows, though they are others than before its stop.",
    ),
    Option("columns", option_values.any_text, "-", "Ignored; a SQL view may set it for its reads."),
)

_SPARK_KEYS = frozenset({"path", "paths", "queryname", "checkpointlocation", "__paths__"})
_TABLE_KEYS = frozenset({"provider"})
"""Spark's catalog passes these only for CREATE TABLE."""
_NOT_YET_AVAILABLE = frozenset(
    {
        "default_retention_duration_milliseconds",
        "default_retention_size_bytes",
        "default_scale_factor",
        "default_segment_target_rate_bytes_per_sec",
        "default_segment_target_rate_events_per_sec",
        "maxfilespertrigger",
        "retention",
        "scalingpolicy",
        "transactiontimeout",
    }
)
_IGNORED = {
    "controller": "there is no server to connect to",
    "exactly_once": "every write is exactly-once",
    "exactlyonce": "every write is exactly-once",
    "read_after_write_consistency": "a commit is visible immediately",
    "transaction_timeout_ms": "a write is one commit and leaves no transaction open",
}


@dataclass(frozen=True, slots=True)
class Format:
    """The name of a data source, and its options for reading and for writing, for errors."""

    name: str
    read: tuple[Option, ...]
    write: tuple[Option, ...]


PRAVEGA = Format("pravega", READ, WRITE)


def parse(
    table: Iterable[Option], given: Mapping[str, str], source: Format = PRAVEGA
) -> dict[str, Any]:
    """Return the values of the given options by canonical name; raise InvalidOption."""
    by_key = {key.lower(): o for o in table for key in (o.name, *o.aliases)}
    found: dict[str, Any] = {}
    for key, text in given.items():
        option = by_key.get(key.lower())
        if option is None and source is PRAVEGA and kafka_values.is_leftover(key):
            continue
        if option is None:
            _check_foreign(key, by_key, source)
            continue
        if text is None or not text.strip():
            continue
        value = option.parse(option.name, text)
        if found.setdefault(option.name, value) != value:
            raise InvalidOption(
                f"option {option.name} is set twice, to {shown(found[option.name])} and, by an "
                f"alias, to {shown(value)}; set it once."
            )
    return found


def _check_foreign(key: str, by_key: Mapping[str, Option], source: Format) -> None:
    """Accept Spark's own keys, warn about ignored options, raise InvalidOption for the rest."""
    low = key.lower()
    if low in _SPARK_KEYS:
        return
    if low in _TABLE_KEYS:
        raise InvalidOption(
            f"CREATE TABLE ... USING {source.name} is not supported, since Spark does not pass a "
            "table's options to a Python data source; use CREATE TEMPORARY VIEW name USING "
            f"{source.name} OPTIONS (...)."
        )
    if low in _IGNORED:
        fields = log_fields("read options", option=key)
        logger.warning("option %s is ignored: %s.", key, _IGNORED[low], extra=fields)
        return
    if low in _NOT_YET_AVAILABLE:
        raise InvalidOption(
            f"option {key} is not available in this version of pravega_spark; remove it."
        )
    other = {o.name.lower() for o in (*source.read, *source.write)}
    if low in other - set(by_key):
        side = "writing" if low in {o.name.lower() for o in source.write} else "reading"
        raise InvalidOption(f"option {key} is for {side} only; remove it.")
    near = difflib.get_close_matches(low, by_key, n=1, cutoff=0.5)
    names = ", ".join(sorted({option.name for option in by_key.values()}))
    hint = f"did you mean {by_key[near[0]].name}?" if near else f"the options are {names}."
    raise InvalidOption(f"unknown option {shown(key)} of format {source.name!r}: {hint}")
