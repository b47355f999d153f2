"""Small roots that older releases wrote, kept as archives: docs/FORMAT.md says why.

``python -m tests.harness.kept_roots tests/fixtures/roots/NAME`` writes one with the installed
release, as NAME.zip, and NAME.json with what that release reads in it. A part that the release does
not have is left out, so that an old one can run this file, too.
"""

from __future__ import annotations

import inspect
import json
import shutil
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager

FOLDER = Path(__file__).parents[1] / "fixtures/roots"
STREAM, GROUP, TABLE, BYTES, STATE, TYPED = (
    "shop/orders",
    "shop/billing",
    "shop/prices",
    "shop/upload",
    "shop/counter",
    "shop/sales",
)
SOLD = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)
LARGE = 9 * 1024 * 1024


def write_root(folder: Path) -> None:
    """Write a root with a little of everything."""
    manager = StreamManager(folder)
    manager.create_scope("shop")
    policy = RetentionPolicy.by_consumption(maximum="3650 days")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2), policy, {"kept"}))
    _write_events(manager)
    manager.create_reader_group(GROUP, [STREAM])
    _read_in_the_group(manager)
    _write_checkpoint(manager)
    with manager.create_writer(STREAM) as writer:
        writer.write_events([b"after the checkpoint", b"and again"], "Zürich ⇄ 東京").result()
    if hasattr(manager, "create_key_value_table"):
        _write_table(manager)
    if hasattr(manager, "create_byte_writer"):
        manager.create_stream(BYTES)
        with manager.create_byte_writer(BYTES, "upload-1") as file:
            file.write(b"0123456789" * 100)
    if hasattr(manager, "state_synchronizer"):
        manager.create_stream(STATE)
        with manager.state_synchronizer(STATE, lambda state, step: state + step) as counter:
            counter.initialize(40)
            counter.update_state_unconditionally([2])
    if hasattr(manager, "schemas"):
        _write_typed(manager)


def _write_events(manager: StreamManager) -> None:
    with manager.create_writer(STREAM, writer_id="ingest-1") as writer:
        for number in range(40):
            writer.write_event(b"first %d" % number, f"customer {number % 5}")
        writer.flush(note="orders.csv:40")
        middle = manager.tail(STREAM)
        manager.scale_stream(STREAM, seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
        for number in range(10):
            writer.write_event(b"second %d" % number, f"customer {number % 5}").result()
    with manager.create_transactional_writer(STREAM) as transactional:
        with transactional.begin_transaction() as transaction:
            transaction.write_events([b"paid", b"and shipped"], "customer 1")
        transactional.begin_transaction().abort()
    manager.truncate_stream(STREAM, middle)
    if "large_events" in inspect.signature(StreamManager.create_writer).parameters:
        with manager.create_writer(STREAM, large_events=True) as large:
            large.write_event(bytes(LARGE), "customer 2").result()


def _read_in_the_group(manager: StreamManager) -> None:
    with manager.reader_group(GROUP).create_reader("reader-1") as reader:
        for _ in range(4):
            reader.read_next_event(timeout=5.0)


def _write_checkpoint(manager: StreamManager, name: str = STREAM) -> None:
    """Write a state file and a checkpoint, which a log has after some hundred commits."""
    try:
        from pravega_spark.engine.log.checkpoint import maintain
        from pravega_spark.engine.stream.stream_log import StreamLog
        from pravega_spark.manager import root_of
    except ImportError:
        return
    stream = StreamLog(root_of(manager).store, name)
    maintain(stream.log.reader, stream.view().version, checkpoint=True)


def _write_table(manager: StreamManager) -> None:
    from pravega_spark import KeyValueTableConfiguration

    manager.create_key_value_table(TABLE, KeyValueTableConfiguration("string"))
    with manager.key_value_table(TABLE) as table:
        table.put("tea", b"2.50").result()
        table.put("milk", b"1.20").result()
        table.remove("milk").result()


def _write_typed(manager: StreamManager) -> None:
    """Rows of two schemas: appended, over a scale, in a transaction that rolls, and merged."""
    import pyarrow as pa

    from pravega_spark.compaction import plan
    from tests.harness.failpoints import at_failpoint

    first = pa.schema(
        [
            pa.field("item", pa.string(), False, {"comment": "SKU"}),
            ("price", pa.decimal128(8, 2)),
            ("parts", pa.list_(pa.struct([("item", pa.string())]))),
        ]
    )
    parts = pa.list_(pa.struct([("item", pa.string()), ("count", pa.int16())]))
    grown = pa.schema([*list(first)[:2], ("parts", parts), ("sold", pa.timestamp("us", "UTC"))])
    manager.create_stream(TYPED, StreamConfiguration(ScalingPolicy.fixed(2), schema=first))
    writer = manager.create_writer(TYPED, "till-1")
    with manager.create_transactional_writer(TYPED) as transactional:
        rolled = transactional.begin_transaction()
        rolled.write_event({"item": "rolled", "parts": [{"item": "cup"}]}, "key 1")
        rolled.flush()
        for n in range(12):
            writer.write_event({"item": f"first {n}", "price": n}, f"key {n % 3}").result()
        manager.update_stream(TYPED, schema=grown)

        def split() -> None:
            manager.scale_stream(TYPED, seal=[0, 1], key_ranges=[(0.0, 0.3), (0.3, 1.0)])

        with at_failpoint("append.staged", split):
            items = pa.array([f"over a scale {n}" for n in range(9)])
            keys = pa.array([f"key {n % 3}" for n in range(9)])
            writer.write_table(pa.table({"item": items, "routing_key": keys})).result()
        rolled.commit()
    row = {"item": "last", "parts": [{"item": "saucer", "count": 2}], "sold": SOLD}
    writer.write_event(row, "key 2").result()
    writer.close()
    with patch.object(plan, "COMPACT_SETTLE_MS", 0):
        manager.compact_stream(TYPED)
    _write_checkpoint(manager, TYPED)


def describe(folder: Path) -> dict[str, Any]:
    """Return what this release reads in a root that :func:`write_root` wrote."""
    manager = StreamManager(folder)
    found: dict[str, Any] = {
        "head": str(manager.head(STREAM)),
        "tail": str(manager.tail(STREAM)),
        "tags": sorted(manager.tags(STREAM)),
        "segments": sorted(str(segment) for segment in manager.segments(STREAM)),
        "completed": sorted(
            [done.transaction_id, done.status.value]
            for done in manager.list_completed_transactions(STREAM)
        ),
        "group": str(manager.reader_group(GROUP).stream_cuts()[STREAM]),
        "events": [_event(event) for event in manager.read(STREAM)],
    }
    streams = manager.list_streams("shop")
    if BYTES in streams:
        found["bytes"] = manager.create_byte_reader(BYTES).fetch_tail_offset()
    if STATE in streams:
        with manager.state_synchronizer(STATE, lambda state, step: state + step) as counter:
            counter.fetch_updates()
            found["counter"] = counter.get_state()
    if TYPED in streams:
        found["schemas"] = [str(version.schema) for version in manager.schemas(TYPED)]
        found["rows"] = [
            [str(event.pointer), event.routing_key, event.timestamp_us, _plain(event.data)]
            for event in manager.read(TYPED)
        ]
    if hasattr(manager, "list_key_value_tables") and manager.list_key_value_tables("shop"):
        with manager.key_value_table(TABLE) as table:
            found["table"] = [[entry.key, entry.value.decode()] for entry in table.entries()]
    return found


def _event(event: Any) -> list[Any]:
    data = event.data if len(event.data) < LARGE else b"%d bytes" % len(event.data)
    return [str(event.pointer), event.routing_key, event.timestamp_us, data.decode()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON reads it again."""
    found: dict[str, Any] = json.loads(json.dumps(row, default=str))
    return found


def unpack(name: str, folder: Path) -> Path:
    """Unpack a kept root; return its folder."""
    shutil.unpack_archive(FOLDER / f"{name}.zip", folder / name)
    return folder / name


def names() -> list[str]:
    """Return the names of all kept roots."""
    return sorted(path.stem for path in FOLDER.glob("*.zip"))


def main(target: Path) -> None:
    """Write a root, its archive, and the list of what is in it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        write_root(root)
        shutil.make_archive(str(target), "zip", root)
        text = json.dumps(describe(root), indent=1, ensure_ascii=False, sort_keys=True)
    target.with_name(f"{target.name}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
