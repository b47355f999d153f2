"""Options that the data source has for what Spark's Kafka source and sink do."""

from __future__ import annotations

from pravega_spark.spark import kafka_values, option_values
from pravega_spark.spark.option_values import Option

KAFKA_READ = (
    Option(
        "assign",
        kafka_values.assigned_segments,
        "-",
        'The streams and the segments of them to read, as JSON: {"scope/stream": [0, "1#0"]}.',
    ),
    Option(
        "startingOffsetsByTimestamp",
        kafka_values.times_by_segment,
        "-",
        "JSON by stream and segment: where each begins, in milliseconds since 1970, -2 (earliest) "
        "or -1 (latest); below startingTimestamp.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        kafka_values.times_by_segment,
        "-",
        "Like startingOffsetsByTimestamp, for the end.",
    ),
    Option(
        "keyEncoding",
        option_values.one_of(*kafka_values.KEY_ENCODINGS),
        "utf8",
        "percent: with columnNames=kafka, keys that were written so have their bytes again.",
    ),
    Option(
        "includeHeaders",
        option_values.boolean,
        "false",
        "Add the column headers, of the type that Spark's Kafka source has; a stream of bytes has "
        "none, and it is null.",
    ),
)

KAFKA_WRITE = (
    Option(
        "keyEncoding",
        option_values.one_of(*kafka_values.KEY_ENCODINGS),
        "utf8",
        "utf8: a binary key that is not UTF-8 is refused; percent: it is written as text, %FF for "
        "a byte and %25 for %.",
    ),
    Option(
        "nullValues",
        option_values.one_of("fail", "skip", "empty"),
        "fail",
        "A row without an event, such as a tombstone of Kafka: refused, left out, or written as an "
        "event of no bytes.",
    ),
)
