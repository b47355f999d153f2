"""The options of the data sources ``pravega`` and ``pravega_kvt``: one table, and its parser.

Spark passes keys in lower case. An empty text counts as not set. An unknown option is an error
that names the nearest known one; an option of a later version is an error that says so. The tables
of the pages are made from this one, and the fields of the settings have their defaults from it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Final

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import InvalidOption
from pravega_spark.spark.option_values import (
    KEY_ENCODINGS,
    Parse,
    any_text,
    assigned_segments,
    boolean,
    duration_ms,
    key_list,
    life_list,
    name_list,
    non_negative_integer,
    one_of,
    positive_integer,
    regular_expression,
    rows_of_a_file,
    segment_offsets,
    size_bytes,
    stream_cuts,
    times_by_segment,
    timestamp,
)
from pravega_spark.values.checks import shown

logger = own_logger(__name__)


class Use(Flag):
    """What an option is for: a direction of a data source, or one of both kinds of table reads."""

    READ = auto()
    WRITE = auto()
    ENTRIES = auto()
    CHANGES = auto()
    UPSERT = auto()


READ, WRITE = Use.READ, Use.WRITE
"""Reads and writes of streams."""
ENTRIES, CHANGES, UPSERT = Use.ENTRIES, Use.CHANGES, Use.UPSERT
"""Reads of a key-value table, of its entries or of its changes; and writes to it."""
TABLE_READ: Final = ENTRIES | CHANGES
ALL: Final = READ | WRITE | TABLE_READ | UPSERT
FORMATS: Final = {"pravega": READ | WRITE, "pravega_kvt": TABLE_READ | UPSERT}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of some uses: its name and aliases, parser, meaning, and default.

    The default is what a user would write. Without one, ``unset`` says in words what holds.
    """

    name: str
    use: Use
    parse: Parse
    meaning: str
    default: str | None = None
    unset: str = "-"
    aliases: tuple[str, ...] = ()

    @property
    def default_text(self) -> str:
        """The default in a table of the pages."""
        return self.unset if self.default is None else self.default


OPTIONS: Final = (
    # Where the streams and tables are
    Option(
        "root", ALL, any_text, "The folder or URL that holds the streams.", aliases=("location",)
    ),
    Option(
        "retryTimeout",
        ALL,
        duration_ms,
        "How long a call is repeated while an object store does not answer; 0 repeats nothing.",
        unset="that of the environment, then 60s",
    ),
    Option(
        "connectTimeout",
        ALL,
        duration_ms,
        "How long one call waits for a connection; on S3.",
        unset="that of the environment, then 5s",
    ),
    Option(
        "readTimeout",
        ALL,
        duration_ms,
        "How long one call waits for the next bytes of an answer; on S3.",
        unset="that of the environment, then 15s",
    ),
    Option("scope", READ | WRITE, any_text, "The scope of `stream`, if that is a bare name."),
    Option("scope", TABLE_READ | UPSERT, any_text, "The scope of `table`, if that is a bare name."),
    Option(
        "stream",
        READ,
        any_text,
        "The stream as `scope/stream`; also the path of load(), save() and start().",
    ),
    Option(
        "stream",
        WRITE,
        any_text,
        "The stream as `scope/stream`; also the path of save() and start(). Without it each row "
        "goes to the stream that its column `stream` (or `topic`) names.",
        unset="the frame's column stream",
        aliases=("topic",),
    ),
    Option(
        "table",
        TABLE_READ | UPSERT,
        any_text,
        "The table as `scope/table`; also the path of load(), save() and start().",
    ),
    Option("subscribe", READ, name_list, "Several streams, separated by commas."),
    Option(
        "subscribePattern",
        READ,
        regular_expression,
        "A regular expression that must match the whole name of a stream.",
    ),
    Option(
        "assign",
        READ,
        assigned_segments,
        'The streams and the segments of them to read, as JSON: {"scope/stream": [0, "1#0"]}.',
    ),
    # Entries of tables
    Option(
        "versionAsOf",
        ENTRIES,
        non_negative_integer,
        "The version of the change log at which the table is read, such as `table.at().version`.",
        unset="the newest",
        aliases=("version",),
    ),
    Option(
        "prefix",
        ENTRIES,
        any_text,
        "Read the keys that begin with it. Keys of bytes are written in hexadecimal digits.",
    ),
    Option("low", ENTRIES, any_text, "Read the keys from this one on."),
    Option("high", ENTRIES, any_text, "Read the keys up to this one, included."),
    Option("primary", ENTRIES, any_text, "Read the entries of one primary key."),
    Option(
        "readChangeFeed",
        TABLE_READ,
        boolean,
        "Read the changes of the table in place of its entries.",
        unset="false; needed by readStream",
        aliases=("changelog",),
    ),
    # Where reads start and end
    Option(
        "startingOffsets",
        READ,
        segment_offsets,
        "earliest, latest, or JSON by stream and segment with -2 (earliest) and -1 (latest).",
        unset="latest (streaming), earliest (batch)",
    ),
    Option(
        "startingOffsets",
        CHANGES,
        one_of("earliest", "latest"),
        "Where the changes begin: at the oldest one that the change log has, or at its tail.",
        unset="latest (streaming), earliest (batch)",
    ),
    Option(
        "endingOffsets",
        READ,
        segment_offsets,
        "Like startingOffsets; a streaming query reads no further than this.",
        unset="latest",
    ),
    Option(
        "startingVersion",
        CHANGES,
        non_negative_integer,
        "The changes of this version of the change log and of all later ones, as in Delta.",
    ),
    Option(
        "endingVersion",
        CHANGES,
        non_negative_integer,
        "The last version whose changes are read.",
        unset="the newest",
    ),
    Option(
        "startingStreamCut",
        READ | CHANGES,
        stream_cuts,
        "The text of a StreamCut (several are separated by ;), earliest, latest, or a saved cut.",
        aliases=("start_stream_cut",),
    ),
    Option(
        "endingStreamCut",
        READ | CHANGES,
        stream_cuts,
        "Like startingStreamCut, for the end.",
        aliases=("end_stream_cut",),
    ),
    Option(
        "startingTimestamp",
        READ | CHANGES,
        timestamp,
        "Milliseconds since 1970, ISO-8601, a date, or -1h; overrides cuts, which override "
        "offsets.",
    ),
    Option(
        "endingTimestamp",
        READ | CHANGES,
        timestamp,
        "Like startingTimestamp; only events before it are read.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READ,
        times_by_segment,
        "JSON by stream and segment: where each begins, in milliseconds since 1970, -2 (earliest) "
        "or -1 (latest); below startingTimestamp.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        READ,
        times_by_segment,
        "Like startingOffsetsByTimestamp, for the end.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        READ | CHANGES,
        one_of("error", "latest"),
        "If a stream has no event at or after the starting time: fail, or start at its tail.",
        default="error",
    ),
    # How much at a time, and how
    Option(
        "maxOffsetsPerTrigger",
        READ | CHANGES,
        positive_integer,
        "Maximum number of events in a micro-batch, shared over the segments by backlog.",
        unset="no limit",
        aliases=("maxRowsPerTrigger",),
    ),
    Option(
        "maxBytesPerTrigger",
        READ | CHANGES,
        size_bytes,
        "Approximate maximum of payload bytes in a micro-batch, such as 256m.",
        unset="no limit",
        aliases=("approx_bytes_per_trigger",),
    ),
    # A task holds the bytes of a row three or four times.
    Option(
        "maxEventBytes",
        READ,
        size_bytes,
        "A large event above this size is read as its reference (JSON) instead of its bytes.",
        default="64m",
    ),
    Option(
        "minOffsetsPerTrigger",
        READ,
        positive_integer,
        "Wait for this number of events, for at most maxTriggerDelay; not with availableNow.",
        unset="no wait",
    ),
    Option(
        "maxTriggerDelay",
        READ,
        duration_ms,
        "Longest wait for minOffsetsPerTrigger.",
        default="15m",  # as in Spark's Kafka source
    ),
    Option(
        "limitFirstBatch",
        READ | CHANGES,
        boolean,
        "On Spark 4.0 and 4.1: let the limits hold for a run's first batch, too; see Spark 4.0 and "
        "4.1.",
        default="false",
    ),
    Option(
        "minPartitions",
        READ | CHANGES,
        positive_integer,
        "Desired number of partitions: batch reads split by offset, micro-batches by routing key.",
        unset="small segments share one; batch reads split large ones",
    ),
    Option(
        "failOnDataLoss",
        READ | CHANGES,
        boolean,
        "Fail if events to be read were deleted or truncated; false logs and skips them.",
        default="true",
    ),
    Option(
        "readerGroup",
        READ | CHANGES,
        any_text,
        "The group `scope/group` that keeps the query's position (streaming only); created if "
        "missing.",
        aliases=("consumerId",),
    ),
    Option(
        "readerGroupMode",
        READ | CHANGES,
        one_of("observer", "subscriber"),
        "subscriber: streams with a policy by consumption keep what the query has not read.",
        unset="that of the group; observer for a new group",
    ),
    Option(
        "readerGroupInterval",
        READ | CHANGES,
        duration_ms,
        "Shortest time between two reports of finished batches to the group.",
        default="5s",
    ),
    Option(
        "maintain",
        READ | CHANGES,
        one_of("auto", "off"),
        "auto: the driver does a part of the root's maintenance while the query runs (streaming "
        "only).",
        unset="the root's setting",
    ),
    # Which rows and columns are read
    Option(
        "columns",
        READ | TABLE_READ,
        name_list,
        "The columns to read; others are not transferred.",
        unset="all",
    ),
    Option(
        "routingKeys",
        READ,
        key_list,
        "Only events with these routing keys, such as UA,DL, or a JSON list; others are not read.",
        unset="all",
    ),
    Option(
        "pushFilters",
        READ,
        boolean,
        "Let conditions on the frame skip files before a task starts; see Filters (batch only).",
        default="false",
    ),
    Option(
        "columnNames",
        READ,
        one_of("pravega", "kafka"),
        "Names of the columns: Pravega's, or those of Spark's Kafka source.",
        default="pravega",
    ),
    Option(
        "keyEncoding",
        READ,
        one_of(*KEY_ENCODINGS),
        "percent: with columnNames=kafka, keys that were written so have their bytes again.",
        default="utf8",
    ),
    Option(
        "includeHeaders",
        READ,
        boolean,
        "Add the column headers, of the type that Spark's Kafka source has; a stream of bytes has "
        "none, and it is null.",
        default="false",
    ),
    Option(
        "schema",
        READ,
        one_of("auto", "raw"),
        "auto: the columns of a typed stream, the bytes of another. raw: bytes, without looking.",
        default="auto",
    ),
    Option(
        "includeWatermark",
        READ,
        boolean,
        "Add the column watermark: before it, nothing follows the micro-batch; null while no "
        "writer has noted a time (streaming only).",
        default="false",
    ),
    Option(
        "metadata",
        READ,
        one_of(
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
        "Read a table about streams and groups instead of events (batch only).",
    ),
    # What is written, and how
    Option(
        "routingKey",
        WRITE,
        any_text,
        "The column that holds the routing keys.",
        unset="routing_key",
    ),
    Option(
        "eventTime", WRITE, any_text, "The column that holds the events' timestamps.", unset="now"
    ),
    Option(
        "eventTimeDelay",
        WRITE,
        duration_ms,
        "Note the latest eventTime of each commit, less this duration, for the stream's watermark; "
        "0s for events in order.",
    ),
    Option(
        "duplicateKeys",
        UPSERT,
        one_of("fail", "last"),
        "Two rows of one key in one write: fail, with nothing written; or the last row in the "
        "order of the frame's partitions wins.",
        default="fail",
    ),
    Option(
        "txnAppId",
        WRITE | UPSERT,
        any_text,
        "With txnVersion: a batch write takes effect once, however often it is repeated.",
    ),
    Option(
        "txnVersion",
        WRITE | UPSERT,
        non_negative_integer,
        "An increasing number; a write at or below the last one of its txnAppId is skipped.",
    ),
    Option(
        "transaction",
        WRITE,
        any_text,
        "Id of an open transaction; the frame becomes visible when it commits (batch only).",
    ),
    Option(
        "createIfMissing",
        WRITE,
        boolean,
        "Create the scope and the stream if they do not exist.",
        default="true",
        aliases=("allow_create_stream", "allow_create_scope"),
    ),
    Option(
        "numSegments",
        WRITE,
        positive_integer,
        "Number of segments of a stream that this write creates.",
        default="1",
        aliases=("default_num_segments",),
    ),
    Option(
        "compression",
        WRITE | UPSERT,
        one_of("zstd", "snappy", "gzip", "lz4", "none"),
        "Codec of the data files.",
        default="zstd",
    ),
    Option(
        "maxRecordsPerFile",
        WRITE,
        rows_of_a_file,
        "Maximum number of events in a file.",
        default="1000000",
    ),
    Option(
        "columnNames",
        WRITE,
        one_of("pravega", "kafka"),
        "kafka: write the columns key and value; partition is refused, and headers unless empty.",
        default="pravega",
    ),
    Option(
        "keyEncoding",
        WRITE,
        one_of(*KEY_ENCODINGS),
        "utf8: a binary key that is not UTF-8 is refused; percent: it is written as text, %FF for "
        "a byte and %25 for %.",
        default="utf8",
    ),
    Option(
        "nullValues",
        WRITE,
        one_of("fail", "skip", "empty"),
        "A row without an event, such as a tombstone of Kafka: refused, left out, or written as an "
        "event of no bytes.",
        default="fail",
    ),
    Option(
        "schema",
        WRITE,
        one_of("auto", "infer", "raw"),
        "infer: a stream that this write creates is typed, with the frame's columns. raw: of "
        "bytes. auto: as the stream is, and raw if it is created.",
        default="auto",
    ),
    Option(
        "badRecords",
        WRITE,
        one_of("fail", "dlq"),
        "Rows that do not fit a typed stream's schema: fail, or write them to the stream "
        "`<stream>-dlq`, with the reason.",
        default="fail",
    ),
    Option(
        "restoredLives",
        WRITE | UPSERT,
        life_list,
        "Lives of streams restored from a copy, separated by commas, as the error names them: no "
        "batch of this query is missing there.",
    ),
    Option(
        "acceptReplay",
        WRITE,
        non_negative_integer,
        "Number of a batch of several streams, as the error names it: the streams that lack it "
        "take its rows, though they are others than before its stop.",
    ),
    Option("columns", WRITE | UPSERT, any_text, "Ignored; a SQL view may set it for its reads."),
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
_OF_BROKERS = re.compile(
    r"kafka\..*|kafkaconsumer\..*|fetchoffset\..*|groupidprefix|includetimestamp|kafkaclusterid",
    re.IGNORECASE,
)
"""Options that Spark's Kafka source and sink take for their brokers and clients."""


def options_of(use: Use) -> tuple[Option, ...]:
    """Return the options of a use, in the order of the table."""
    return tuple(option for option in OPTIONS if option.use & use)


def parse(use: Use, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the given options by canonical name; raise InvalidOption."""
    by_key = {key.lower(): o for o in options_of(use) for key in (o.name, *o.aliases)}
    found: dict[str, Any] = {}
    for key, text in given.items():
        option = by_key.get(key.lower())
        if option is None:
            _check_foreign(key, by_key, use)
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


def _check_foreign(key: str, by_key: Mapping[str, Option], use: Use) -> None:
    """Accept the keys of Spark and of brokers, warn about ignored ones, refuse the rest."""
    low, source = key.lower(), next(name for name, uses in FORMATS.items() if use in uses)
    if low in _SPARK_KEYS or (source == "pravega" and _OF_BROKERS.fullmatch(key)):
        return
    if low in _TABLE_KEYS:
        raise InvalidOption(
            f"CREATE TABLE ... USING {source} is not supported, since Spark does not pass a "
            "table's options to a Python data source; use CREATE TEMPORARY VIEW name USING "
            f"{source} OPTIONS (...)."
        )
    if low in _IGNORED:
        fields = log_fields("read options", option=key)
        logger.warning("option %s is ignored: %s.", key, _IGNORED[low], extra=fields)
        return
    if low == "filesystem":
        raise InvalidOption(
            "option filesystem is not of Spark, whose options are texts: give the file system to "
            "StreamManager(root, filesystem=...), and its streams to pravega_spark.read_frame and "
            "write_frame."
        )
    if low in _NOT_YET_AVAILABLE:
        raise InvalidOption(
            f"option {key} is not available in this version of pravega_spark; remove it."
        )
    if low in {option.name.lower() for option in options_of(FORMATS[source])}:
        side = "reading" if use & (WRITE | UPSERT) else "writing"
        raise InvalidOption(f"option {key} is for {side} only; remove it.")
    near = difflib.get_close_matches(low, by_key, n=1, cutoff=0.5)
    names = ", ".join(sorted({option.name for option in by_key.values()}))
    hint = f"did you mean {by_key[near[0]].name}?" if near else f"the options are {names}."
    raise InvalidOption(f"unknown option {shown(key)} of format {source!r}: {hint}")


def for_brokers(given: Iterable[str]) -> tuple[str, ...]:
    """Return the options that a query for Kafka has for its brokers and clients."""
    return tuple(filter(_OF_BROKERS.fullmatch, given))


def warn_of_leftovers(names: Sequence[str], what: str) -> None:
    """Log one warning with the options that a read or a write of ``what`` ignores, if any."""
    if names:
        logger.warning(
            "%s: ignored the options %s: they are for Kafka's brokers and clients, and a stream "
            "has neither. Remove them.",
            what,
            ", ".join(sorted(names)),
            extra=log_fields("read options", what),
        )
