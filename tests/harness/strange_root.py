"""A root whose names are as long as they may be, and whose texts would turn or break a line.

``python -m tests.harness.strange_root FOLDER`` makes one on a disk, to look at the page with.
"""

from __future__ import annotations

import sys

import pyarrow as pa

from pravega_spark import (
    KeyValueTableConfiguration,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
)
from pravega_spark.values.names import MAX_NAME_LENGTH

HOSTILE = "\u202egnp.\x1b[31mred\u2066 <img src=x onerror=document.title='owned'>"
"""A text that turns the rest of its line, colours a terminal, and would be markup."""
HOSTILE_SHOWN = r"\u202egnp.\x1b[31mred\u2066 <img src=x onerror=document.title='owned'>"
SCOPE = "departures-and-arrivals-of-all-airports-" + "x" * 60
LONG = ("a-name-without-any-blank-" * 10)[:MAX_NAME_LENGTH]
STREAM = f"{SCOPE}/{LONG}"
TYPED, EMPTY, GROUP, TABLE = (f"{SCOPE}/{name}" for name in ("typed", "empty", LONG, LONG))
_COLUMNS = pa.schema(
    [
        pa.field("a_column_with_a_name_of_many_words_that_nobody_would_say", pa.string()),
        pa.field("delay", pa.float64()),
        pa.field("parts", pa.list_(pa.string())),
    ]
)


def make_strange_root(url: str) -> StreamManager:
    """Make the root: a stream of bytes, a typed one, an empty one, a group, and tables."""
    manager = StreamManager(url)
    manager.create_scope(SCOPE)
    manager.create_stream(
        STREAM,
        StreamConfiguration(
            ScalingPolicy.fixed(3),
            RetentionPolicy.by_consumption("5 minutes", "7 days"),
            tags={HOSTILE, "t" * 100, "short"},
        ),
    )
    manager.create_stream(TYPED, StreamConfiguration(schema=_COLUMNS))
    manager.create_stream(EMPTY)
    manager.create_reader_group(GROUP, [STREAM, EMPTY], retention="automatic")
    manager.create_reader_group(f"{SCOPE}/idle", [EMPTY])
    with manager.create_writer(STREAM, "w" * 100, automatically_note_time=False) as writer:
        for number in range(40):
            writer.write_event(f"{HOSTILE} {number} {'long' * 100}", f"{HOSTILE}{number % 7}")
        writer.write_event(b"\x00\xff\xfe" * 100, "k" * 200)
        writer.flush()
        writer.note_time(1_700_000_000_000)
    with manager.create_writer(TYPED) as rows:
        for number in range(12):
            values = (HOSTILE, number / 7, [HOSTILE, "x" * 300])
            rows.write_event(dict(zip(_COLUMNS.names, values, strict=True)), routing_key=HOSTILE)
    with manager.reader_group(GROUP).create_reader("r" * 100) as reader:
        reader.read_next_event(timeout=0)
    with manager.create_transactional_writer(STREAM, "settlement" * 8) as transactions:
        transactions.begin_transaction().commit()
        transactions.begin_transaction().abort()
        transactions.begin_transaction()
        manager.subscribe(STREAM, "s" * 100)
    for name, ttl in ((TABLE, None), (f"{SCOPE}/sessions", "1 hour")):
        manager.create_key_value_table(
            name, KeyValueTableConfiguration(key_type="string", partitions=2, ttl=ttl)
        )
    with manager.key_value_table(TABLE) as table:
        for number in range(30):
            table.put(f"{HOSTILE}/{number}", f"{HOSTILE} {'value' * 100}")
        table.flush()
    return manager


if __name__ == "__main__":
    make_strange_root(sys.argv[1])
