"""The options of the data source ``pravega_kvt``: one table for reads, and one for writes."""

from __future__ import annotations

from typing import Final

from pravega_spark.spark import option_values
from pravega_spark.spark.option_values import Option
from pravega_spark.spark.options import READ, WRITE, Format
from pravega_spark.spark.target_options import TIMEOUTS

KEY_PREFIX, LOWEST_KEY, HIGHEST_KEY, PRIMARY_KEY = "prefix", "low", "high", "primary"

_OF_STREAMS = {option.name: option for option in (*WRITE, *READ)}
_TARGET = (
    _OF_STREAMS["root"],
    *TIMEOUTS,
    Option("scope", option_values.any_text, "-", "The scope of `table`, if that is a bare name."),
    Option(
        "table",
        option_values.any_text,
        "-",
        "The table as `scope/table`; also the path of load(), save() and start().",
    ),
)
_KEY_TEXT = "Keys of bytes are written in hexadecimal digits."

TABLE_READ: Final = (
    *_TARGET,
    Option(
        "versionAsOf",
        option_values.non_negative_integer,
        "the newest",
        "The version of the change log at which the table is read, such as `table.at().version`.",
        ("version",),
    ),
    Option(
        KEY_PREFIX,
        option_values.any_text,
        "-",
        f"Read the keys that begin with it. {_KEY_TEXT}",
    ),
    Option(LOWEST_KEY, option_values.any_text, "-", "Read the keys from this one on."),
    Option(HIGHEST_KEY, option_values.any_text, "-", "Read the keys up to this one, included."),
    Option(PRIMARY_KEY, option_values.any_text, "-", "Read the entries of one primary key."),
    _OF_STREAMS["columns"],
    Option(
        "readChangeFeed",
        option_values.boolean,
        "false; needed by readStream",
        "Read the changes of the table in place of its entries.",
        ("changelog",),
    ),
    Option(
        "startingOffsets",
        option_values.one_of("earliest", "latest"),
        "latest (streaming), earliest (batch)",
        "Where the changes begin: at the oldest one that the change log has, or at its tail.",
    ),
    Option(
        "startingVersion",
        option_values.non_negative_integer,
        "-",
        "The changes of this version of the change log and of all later ones, as in Delta.",
    ),
    Option(
        "endingVersion",
        option_values.non_negative_integer,
        "the newest",
        "The last version whose changes are read.",
    ),
    *(
        _OF_STREAMS[name]
        for name in (
            "startingStreamCut",
            "endingStreamCut",
            "startingTimestamp",
            "endingTimestamp",
            "startingOffsetsByTimestampStrategy",
            "maxOffsetsPerTrigger",
            "maxBytesPerTrigger",
            "minPartitions",
            "failOnDataLoss",
            "readerGroup",
            "readerGroupMode",
            "readerGroupInterval",
            "maintain",
        )
    ),
)

TABLE_WRITE: Final = (
    *_TARGET,
    Option(
        "duplicateKeys",
        option_values.one_of("fail", "last"),
        "fail",
        "Two rows of one key in one write: fail, with nothing written; or the last row in the "
        "order of the frame's partitions wins.",
    ),
    *(_OF_STREAMS[name] for name in ("txnAppId", "txnVersion", "restoredLives", "compression")),
    Option("columns", option_values.any_text, "-", "Ignored; a SQL view may set it for its reads."),
)

KEY_VALUE_TABLES: Final = Format("pravega_kvt", TABLE_READ, TABLE_WRITE)
