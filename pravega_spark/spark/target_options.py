"""The options of reads and writes alike: where the streams are, and how long a call may take."""

from __future__ import annotations

from pravega_spark.spark import option_values
from pravega_spark.spark.option_values import Option

TIMEOUTS = (
    Option(
        "retryTimeout",
        option_values.duration_ms,
        "that of the environment, then 60s",
        "How long a call is repeated while an object store does not answer; 0 repeats nothing.",
    ),
    Option(
        "connectTimeout",
        option_values.duration_ms,
        "that of the environment, then 5s",
        "How long one call waits for a connection; on S3.",
    ),
    Option(
        "readTimeout",
        option_values.duration_ms,
        "that of the environment, then 15s",
        "How long one call waits for the next bytes of an answer; on S3.",
    ),
)

TARGET = (
    Option(
        "root",
        option_values.any_text,
        "-",
        "The folder or URL that holds the streams.",
        ("location",),
    ),
    *TIMEOUTS,
    Option("scope", option_values.any_text, "-", "The scope of `stream`, if that is a bare name."),
    Option(
        "stream",
        option_values.any_text,
        "-",
        "The stream as `scope/stream`; also the path of load(), save() and start().",
    ),
)
