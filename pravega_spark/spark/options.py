"""The options of the data source, each with its meaning in one table, and how they are read.

Spark hands keys on in lower case. An empty text counts as not set. What is unknown is an error
that names the nearest known option; what belongs to a later version says so.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.errors import InvalidOption
from pravega_spark.spark import option_values

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how its text is read, what holds without it, and what it means."""

    name: str
    parse: option_values.Parse
    default: str
    meaning: str
    aliases: tuple[str, ...] = ()


_TARGET = (
    Option(
        "root",
        option_values.any_text,
        "-",
        "Where the streams are: a folder or a URL.",
        ("location",),
    ),
    Option("scope", option_values.any_text, "-", "The scope, where `stream` is a bare name."),
    Option(
        "stream",
        option_values.any_text,
        "-",
        "The stream, `scope/stream`; also the path of load().",
    ),
)

READ = (
    *_TARGET,
    Option("subscribe", option_values.names, "-", "Several streams, separated by commas."),
    Option(
        "subscribePattern",
        option_values.pattern,
        "-",
        "A regular expression of whole stream names.",
    ),
    Option(
        "startingOffsets",
        option_values.offsets,
        "latest (streaming), earliest (batch)",
        "earliest, latest, or JSON by stream and segment with -2 (earliest) and -1 (latest).",
    ),
    Option(
        "endingOffsets",
        option_values.offsets,
        "latest",
        "As startingOffsets; a streaming query reads no further than this.",
    ),
    Option(
        "startingStreamCut",
        option_values.cuts,
        "-",
        "The text of a StreamCut (several: separated by ;), earliest or latest.",
        ("start_stream_cut",),
    ),
    Option(
        "endingStreamCut",
        option_values.cuts,
        "-",
        "As startingStreamCut; the end.",
        ("end_stream_cut",),
    ),
    Option(
        "startingTimestamp",
        option_values.instant,
        "-",
        "Milliseconds since 1970, ISO-8601, a date, or -1h; beats cuts, which beat offsets.",
    ),
    Option(
        "endingTimestamp", option_values.instant, "-", "As startingTimestamp; events before it."
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        option_values.one_of("error", "latest"),
        "error",
        "What to do where a stream has no event at or after startingTimestamp.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        option_values.whole,
        "no limit",
        "Most events of a micro-batch, shared over the segments by backlog.",
        ("maxRowsPerTrigger",),
    ),
    Option(
        "maxBytesPerTrigger",
        option_values.size,
        "no limit",
        "Bytes of payload of a micro-batch, such as 256m; soft.",
        ("approx_bytes_per_trigger",),
    ),
    Option(
        "minOffsetsPerTrigger",
        option_values.whole,
        "no wait",
        "Wait for so many events, at most for maxTriggerDelay; not with availableNow.",
    ),
    Option(
        "maxTriggerDelay",
        option_values.duration_ms,
        "15m",
        "Longest wait for minOffsetsPerTrigger.",
    ),
    Option(
        "minPartitions",
        option_values.whole,
        "one a segment; batch reads split large ones",
        "Wanted partitions: batch reads split by offset, micro-batches by routing key.",
    ),
    Option(
        "failOnDataLoss",
        option_values.flag,
        "true",
        "Fail where events to be read are gone; false skips and logs them.",
    ),
    Option(
        "readerGroup",
        option_values.any_text,
        "-",
        "The group, `scope/group`, that keeps the query's position (streaming only); made if new.",
        ("consumerId",),
    ),
    Option(
        "readerGroupMode",
        option_values.one_of("observer", "subscriber"),
        "as the group is; a new one observes",
        "subscriber: streams with a retention policy keep what the query has not read.",
    ),
    Option(
        "readerGroupInterval",
        option_values.duration_ms,
        "5s",
        "The query tells its group of finished batches at most so often.",
    ),
    Option("columns", option_values.names, "all", "The columns wanted: saves moving the others."),
    Option(
        "columnNames",
        option_values.one_of("pravega", "kafka"),
        "pravega",
        "Names of the columns: ours, or those of Spark's Kafka source.",
    ),
    Option(
        "metadata",
        option_values.one_of(
            "Streams",
            "StreamInfo",
            "Segments",
            "ReaderGroups",
            "Lag",
            "StreamCuts",
            "Transactions",
        ),
        "-",
        "Read a table about streams and groups instead of events (batch only).",
    ),
)

WRITE = (
    *_TARGET,
    Option(
        "routingKey", option_values.any_text, "routing_key", "The column with the routing keys."
    ),
    Option("eventTime", option_values.any_text, "now", "The column with the events' timestamps."),
    Option("txnAppId", option_values.any_text, "-", "With txnVersion: a batch write happens once."),
    Option(
        "txnVersion",
        option_values.version,
        "-",
        "A rising number; at or below the last is skipped.",
    ),
    Option(
        "transaction",
        option_values.any_text,
        "-",
        "Id of an open transaction: the frame becomes visible with its commit (batch only).",
    ),
    Option(
        "createIfMissing",
        option_values.flag,
        "true",
        "Create scope and stream where there are none.",
        ("allow_create_stream", "allow_create_scope"),
    ),
    Option(
        "numSegments",
        option_values.whole,
        "1",
        "Segments of a stream that is created.",
        ("default_num_segments",),
    ),
    Option(
        "compression",
        option_values.one_of("zstd", "snappy", "gzip", "lz4", "none"),
        "zstd",
        "Codec of the files.",
    ),
    Option("maxRecordsPerFile", option_values.whole, "1000000", "Most events in one file."),
    Option(
        "columnNames",
        option_values.one_of("pravega", "kafka"),
        "pravega",
        "kafka: take the columns key and value; topic, partition and headers are refused.",
    ),
    Option("columns", option_values.any_text, "-", "Of a SQL view that is also read: ignored."),
)

_SPARK_KEYS = frozenset({"path", "paths", "queryname", "checkpointlocation", "__paths__"})
_OF_TABLES = frozenset({"provider"})
"""What Spark's catalog says to a source of which a table is created."""
_LATER = frozenset(
    {
        "badrecords",
        "default_retention_duration_milliseconds",
        "default_retention_size_bytes",
        "default_scale_factor",
        "default_segment_target_rate_bytes_per_sec",
        "default_segment_target_rate_events_per_sec",
        "maxfilespertrigger",
        "pushfilters",
        "retention",
        "scalingpolicy",
        "schema",
        "transactiontimeout",
    }
)
_IGNORED = {
    "controller": "there is no server to connect to",
    "exactly_once": "every write is exactly-once",
    "exactlyonce": "every write is exactly-once",
    "read_after_write_consistency": "a commit is visible at once",
    "transaction_timeout_ms": "a write is one commit and leaves no transaction open",
}


def parse(table: Iterable[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the given options' values by canonical name; raise InvalidOption."""
    by_key = {key.lower(): o for o in table for key in (o.name, *o.aliases)}
    found: dict[str, Any] = {}
    for key, text in given.items():
        option = by_key.get(key.lower())
        if option is None:
            _check_foreign(key, by_key)
            continue
        if text is None or not text.strip():
            continue
        value = option.parse(option.name, text)
        if found.setdefault(option.name, value) != value:
            raise InvalidOption(
                f"option {option.name} is given twice, as {found[option.name]!r} and, under "
                f"another name, as {value!r}; give it once."
            )
    return found


def _check_foreign(key: str, by_key: Mapping[str, Option]) -> None:
    """Let Spark's own keys pass; raise InvalidOption for what is not one of ours."""
    low = key.lower()
    if low in _SPARK_KEYS:
        return
    if low in _OF_TABLES:
        raise InvalidOption(
            "format 'pravega' has no tables of a catalog, as CREATE TABLE ... USING pravega makes "
            "them: use CREATE TEMPORARY VIEW name USING pravega OPTIONS (...)."
        )
    if low in _IGNORED:
        logger.warning("option %s is ignored: %s.", key, _IGNORED[low])
        return
    if low in _LATER:
        raise InvalidOption(
            f"option {key} is not available in this version of pravega_spark; leave it out."
        )
    other = {o.name.lower() for o in (*READ, *WRITE)}
    if low in other - set(by_key):
        side = "writing" if low in {o.name.lower() for o in WRITE} else "reading"
        raise InvalidOption(f"option {key} is for {side} only; leave it out.")
    near = difflib.get_close_matches(low, by_key, n=1, cutoff=0.5)
    names = ", ".join(sorted({option.name for option in by_key.values()}))
    hint = f"did you mean {by_key[near[0]].name}?" if near else f"known are {names}."
    raise InvalidOption(f"unknown option {key!r} of format 'pravega': {hint}")
