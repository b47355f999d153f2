"""The examples of docs/FORMAT.md, made of what the story wrote."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.chunks.routing import position
from pravega_spark.key_value.changes import encode_change
from pravega_spark.key_value.keys import TableKey
from tests.harness.format_story import COPY, GROUP, RESTORED, ROOT, STREAM, Story

EVENTS, SCOPE = f"{STREAM}/events", "nyc/_scope"
MANY = "nyc/many/events"
CAMERAS = "nyc/webcams/events"
GROUP_TABLE = "nyc/_reader_groups/dashboards"
WIDTH = 110
LONG = 400


def examples(story: Story) -> dict[str, str]:
    """The text of each example by its name."""
    made = _Maker(story)
    return {name: made.page(text(made)) for name, text in _TEXTS.items()}


_PARTS = f"{MANY}/_pravega/part/"


def shape(text: str) -> str:
    """The text without what differs from run to run: numbers, tokens, digests, line breaks."""
    text = re.sub(r"[0-9a-f]{16,}", "h", re.sub(r"\s+", "", text))
    return re.sub(r"\d+", "0", text)


class _Maker:
    def __init__(self, story: Story) -> None:
        self.story = story
        self.domains = story.domains()

    def page(self, text: str) -> str:
        """Replace paths and ids of this machine, and break long lines after commas."""
        text = text.replace(str(self.story.folder / ROOT), "/data/streams")
        text = re.sub(r'"storage": \["[^"]*"\]', '"storage": ["ext4 5a157c6739a7cd2f"]', text)
        process = "host-1/5e4b2a6c-90d1-4f0e-8a57-3c1d8b6e2f90/pid:[4026531836] 4711 95359"
        text = re.sub(r'"process":"[^"]+"', f'"process":"{process}"', text)
        text = text.replace(f" on {socket.gethostname()}, process ", " on host-1, process ")
        return "\n".join(part for line in text.splitlines() for part in _broken(line))

    def last(self, key: str, root: str = ROOT) -> str:
        return self.story.of(key, root)[-1].decode()

    def first(self, part: str, suffix: str, root: str = ROOT) -> str:
        """The newest content of the first object with that name."""
        for found, key in self.story.written:
            if found == root and part in key and key.endswith(suffix):
                return self.last(key, root)
        raise KeyError(part)

    def containing(self, part: str, text: str) -> str:
        """The newest content of the first object with that name that holds a text."""
        keys = [key for root, key in self.story.written if root == ROOT and part in key]
        return next(found for key in keys if text in (found := self.last(key)))

    def commit(self, operation: str, table: str = EVENTS) -> list[dict[str, Any]]:
        """The newest commit of an operation."""
        found = [
            actions
            for actions in self.story.commits(table)
            if actions[0]["commitInfo"]["operation"] == operation
        ]
        return found[-1]

    def domain(self, prefix: str, wanted: Callable[[str], bool] = lambda text: True) -> str:
        """The first domain with that prefix whose value is wanted."""
        for name, values in self.domains.items():
            for value in values:
                if name.startswith(prefix) and wanted(value):
                    return f"{name}: {value}"
        raise KeyError(prefix)

    def rows(self, table: str, wanted: Callable[[Mapping[str, Any]], bool]) -> str:
        """The rows of the first file of a table in which one is wanted."""
        for (root, key), contents in self.story.written.items():
            if root == ROOT and key.startswith(f"{table}/data/"):
                rows = pq.ParquetFile(pa.BufferReader(contents[-1])).read().to_pylist()
                if any(map(wanted, rows)):
                    shown = [{k: v for k, v in row.items() if v is not None} for row in rows]
                    return "\n".join(sorted(map(_compact, shown)))
        raise KeyError(table)

    def state(self, folder: str = f"{EVENTS}/_pravega/state/") -> tuple[str, list[str]]:
        """First line and unpacked lines of the newest state file of the events, or part."""
        found = [key for root, key in self.story.written if root == ROOT and folder in key]
        data = self.story.of(max(found))[0]
        line, _, rest = data.partition(b"\n")
        size = json.loads(line)["size"]
        plain = pa.decompress(rest, size, codec="zstd", asbytes=True).decode()
        return line.decode(), plain.splitlines()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _lines(*actions: Any) -> str:
    return "\n".join(map(_compact, actions))


def _short(text: str, length: int = LONG) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _broken(line: str) -> list[str]:
    """A line in parts of the page's width, broken behind commas where there are any."""
    parts = []
    while len(line) > WIDTH:
        at = line.rfind(",", 20, WIDTH) + 1 or line.rfind(" ", 20, WIDTH) + 1 or WIDTH
        parts.append(line[:at])
        line = "  " + line[at:].lstrip()
    return [*parts, line]


def _routing(made: _Maker) -> str:
    return "\n".join(f"{json.dumps(key)}: {position(key)!r}" for key in ("", "UA", "customer 7"))


def _metadata(made: _Maker) -> str:
    found = next(a["metaData"] for a in made.commit("CREATE STREAM") if "metaData" in a)
    schema = json.loads(found["schemaString"])
    schema["fields"] = schema["fields"][:1]
    short = _compact(schema).removesuffix("]}") + ",…]}"
    return _compact({"metaData": {**found, "schemaString": short}})


def _restore_plan(made: _Maker) -> str:
    written = [
        content
        for (root, key), contents in made.story.written.items()
        if root == RESTORED and key.startswith(f"{EVENTS}/_delta_log/")
        for content in contents
    ]
    closing = next(json.loads(c.splitlines()[0]) for c in written if b'"plan"' in c)
    plan = json.loads(closing["commitInfo"]["operationParameters"]["plan"])
    return _compact({**plan, "last": _short(plan["last"], 200)})


def _state_lines(made: _Maker) -> str:
    first, *rest = made.state()[1]
    state = json.loads(first)
    domains = dict(list(state["domains"].items())[:2])
    shown = _compact({"protocol": "…", "metaData": "…", "domains": domains})
    return "\n".join([shown.removesuffix("}}") + ",…}}", *rest[:1]])


def _appended(made: _Maker) -> str:
    actions = next(
        actions
        for actions in made.story.commits(EVENTS)
        if actions[0]["commitInfo"]["operation"] == "APPEND"
    )
    return _lines(*actions)


def _large_event(made: _Maker) -> str:
    """The ``add`` of a large event's chunk, and the chunk's row."""
    add = next(a for a in made.commit("APPEND", CAMERAS) if "add" in a)
    (chunk,) = made.story.of(f"{CAMERAS}/{add['add']['path']}")
    (row,) = pq.ParquetFile(pa.BufferReader(chunk)).read().column("event").to_pylist()
    return f"{_compact(add)}\n{row.decode()}"


def _has_hold(text: str) -> bool:
    return json.loads(text)[4] is not None


def _change(made: _Maker) -> str:
    key = TableKey(b"UA1545")
    put, removal = encode_change(key, b"227.00"), encode_change(key, None)
    return f'put "UA1545", b"227.00": {put.hex()}\nremove "UA1545": {removal.hex()}'


_TEXTS: dict[str, Callable[[_Maker], str]] = {
    "routing": _routing,
    "marker": lambda made: made.last("_pravega_spark.json"),
    "clock": lambda made: made.last("_pravega_clock.json"),
    "commit": _appended,
    "protocol": lambda made: _compact(
        next(a for a in made.commit("CREATE STREAM") if "protocol" in a)
    ),
    "metaData": _metadata,
    "remove": lambda made: _compact(
        next(a for a in made.commit("TRUNCATE STREAM") if "remove" in a)
    ),
    "pravega.log": lambda made: made.domain("pravega.log"),
    "pravega.pin": lambda made: made.domain("pravega.pin."),
    "pravega.stream": lambda made: made.domain("pravega.stream", lambda t: '"truncation":[' in t),
    "pravega.epoch": lambda made: made.domain("pravega.epoch.1"),
    "pravega.segment": lambda made: made.domain("pravega.segment.0", lambda t: "null" not in t),
    "pravega.writer": lambda made: made.domain("pravega.writer.ingest-1", lambda t: ",0," not in t),
    "pravega.note": lambda made: made.domain("pravega.note.ingest-1"),
    "note of a query": lambda made: made.domain("pravega.note.spark."),
    "pravega.restored": lambda made: made.domain("pravega.restored"),
    "batch of several streams": lambda made: made.first("_batches/", ".json"),
    "pravega.byte_head": lambda made: made.domain("pravega.byte_head"),
    "pravega.open": lambda made: made.domain("pravega.open."),
    "pravega.transaction": lambda made: made.domain(
        "pravega.transaction.", lambda t: t.startswith("[true")
    ),
    "pravega.joint": lambda made: made.domain("pravega.joint.", lambda t: "null,null" not in t),
    "pravega.subscriber": lambda made: made.domain(f"pravega.subscriber.{GROUP}", _has_hold),
    "pravega.sample": lambda made: made.domain("pravega.sample."),
    "pravega.fence": lambda made: made.domain("pravega.fence"),
    "pravega.schema": lambda made: made.domain("pravega.schema.", lambda text: "venue" in text),
    "pravega.cut": lambda made: made.domain("pravega.cut.end-of-shift-6"),
    "pravega.mark": lambda made: made.domain("pravega.mark.station-1"),
    "pravega.watermark": lambda made: made.domain("pravega.watermark."),
    "pravega.kv_table": lambda made: made.domain("pravega.kv_table"),
    "pravega.folded": lambda made: made.domain("pravega.folded"),
    "change of a key": _change,
    "pravega.revision_mark": lambda made: made.domain("pravega.revision_mark"),
    "pravega.shared_state": lambda made: made.domain("pravega.shared_state"),
    "pravega.scope": lambda made: made.domain("pravega.scope"),
    "pravega.rows": lambda made: made.domain("pravega.rows.1"),
    "state header": lambda made: made.state()[0],
    "state lines": _state_lines,
    "part header": lambda made: made.state(_PARTS)[0],
    "part lines": lambda made: "\n".join(_short(line) for line in made.state(_PARTS)[1]),
    "checkpoint digest": lambda made: made.first(f"{EVENTS}/_pravega/checkpoint/", ".json"),
    "_last_checkpoint": lambda made: made.last(f"{EVENTS}/_delta_log/_last_checkpoint"),
    "latest": lambda made: made.last(f"{EVENTS}/_pravega/latest.json"),
    "latest with parts": lambda made: made.last(f"{MANY}/_pravega/latest.json"),
    "swept": lambda made: made.last(f"{EVENTS}/_pravega/swept.json"),
    "sweep": lambda made: made.last(f"{EVENTS}/_pravega/sweep.json"),
    "changes": lambda made: made.first("/_pravega/changes/", ".json"),
    "compaction": lambda made: made.last("nyc/sensors/events/_pravega/compaction.json"),
    "rates": lambda made: made.last(f"{EVENTS}/_pravega/rates.json"),
    "moved": lambda made: made.containing(f"{EVENTS}/_pravega/moved/", "ingest-1"),
    "scope rows": lambda made: made.rows(SCOPE, lambda row: row["kind"] == "group"),
    "settings rows": lambda made: made.rows("_settings", lambda row: row["name"] == "grace"),
    "due hints": lambda made: made.last("_maintenance/_pravega/due/nyc/streams-1-0.json"),
    "maintenance rows": lambda made: made.rows(
        "_maintenance", lambda row: row["claim"] and row["progress"]
    ),
    "group rows": lambda made: made.rows(GROUP_TABLE, lambda row: row["kind"] == "last"),
    "prepared rows": lambda made: made.rows(
        "bank/_reader_groups/auditors", lambda row: row["kind"] == "prepared"
    ),
    "lease": lambda made: made.last(f"{GROUP_TABLE}/_leases/reader-1.json"),
    "silent readers": lambda made: made.last(f"{GROUP_TABLE}/_leases/_silent.json"),
    "history rows": lambda made: made.rows(
        f"{STREAM}/metadata", lambda row: row["name"].startswith("pravega.note")
    ),
    "layout rows": lambda made: made.rows(
        f"{STREAM}/metadata", lambda row: row["value"].startswith('["segment"')
    ),
    "large event": _large_event,
    "manifest": lambda made: made.first(f"{STREAM}/transactions/", "/00000000.json"),
    "backup marker": lambda made: made.last("_pravega_spark.json", COPY),
    "restore plan": _restore_plan,
}
