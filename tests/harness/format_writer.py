"""A writer of streams on a local disk that was written from docs/FORMAT.md.

It imports the standard library, pyarrow and the reader of the page alone, so that nothing of the
package can help it. XXH3 of 64 bits is passed as a function.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.harness import format_columns, format_reader

Pair = tuple[str | None, Any]
"""Routing key and payload of an event: bytes, or of a typed stream a dict."""
SCHEMA = pa.schema(
    [
        pa.field("offset_delta", pa.int32(), nullable=False),
        pa.field("routing_key", pa.string()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("event", pa.binary()),
    ]
)


class Refused(Exception):
    """The page forbids the commit."""


Changes = tuple[dict[str, Any], list[Any]]
"""Domains with their records, and actions that add files."""
Decide = Callable[[format_reader.Stream], Changes]


class Writer:
    """Appends batches of events under a writer id, each batch in one commit."""

    def __init__(
        self, root: Path, stream: str, writer_id: str, digest: Callable[[bytes], str]
    ) -> None:
        self._root, self._stream, self._digest = root, stream, digest
        self._table = root / stream / "events"
        self._name, self._domain = writer_id, f"pravega.writer.{writer_id}"
        self._session = 0
        self._commit("OPEN WRITER", self._open)

    def _open(self, view: format_reader.Stream) -> Changes:
        session, last, *_ = view.record(self._domain) or (0, 0)
        self._session = session + 1
        return {self._domain: [self._session, last, view.version + 1]}, []

    def append(self, events: list[Pair], note: str | None = None) -> int:
        """Append events; return the version of their commit."""
        token, numbers = secrets.token_hex(12), itertools.count()
        staged = self._view().version
        files: dict[tuple[int, tuple[int, ...]], tuple[str, int, dict[str, str], str]] = {}

        def decide(view: format_reader.Stream) -> Changes:
            session, last, *_ = view.record(self._domain)
            if session != self._session:
                raise Refused(f"session {session} follows {self._session}")
            if staged < (view.record("pravega.log") or {"horizon": 0})["horizon"]:
                raise Refused(f"the files of version {staged} were staged too late")
            parts: dict[int, list[int]] = defaultdict(list)
            for n, (key, _) in enumerate(events):
                parts[view.route(key or "")].append(n)
            domains: dict[str, Any] = {}
            adds = []
            for segment, part in parts.items():
                if (segment, tuple(part)) not in files:
                    path = f"data/v{staged:020d}/{token}-{segment}-{next(numbers)}.parquet"
                    mine = [events[n] for n in part]
                    files[segment, tuple(part)] = self._stage(path, mine, view.columns)
                path, size, tags, stats = files[segment, tuple(part)]
                offset, before, _ = view.record(f"pravega.segment.{segment}")
                tags = {**tags, "baseBytes": f"{before}"}
                adds.append(_add(path, segment, offset, size, tags, stats))
                grown = [offset + len(part), before + int(tags["bytes"]), None]
                domains[f"pravega.segment.{segment}"] = grown
            domains[self._domain] = [session, last + len(events), view.version + 1]
            if note is not None:
                domains[f"pravega.note.{self._name}"] = [note, last + len(events)]
            return domains, adds

        return self._commit("APPEND", decide)

    # ---- chunks

    def _stage(
        self, path: str, events: list[Pair], columns: list[format_columns.Field] | None
    ) -> tuple[str, int, dict[str, str], str]:
        now_us = time.time_ns() // 1_000
        system = [range(len(events)), [k for k, _ in events], [now_us] * len(events)]
        rows = [data for _, data in events]
        if columns is None:
            schema, own, sizes = SCHEMA, [rows], [*map(len, rows)]
        else:
            names = [field["name"] for field in columns]
            kinds = [format_columns.arrow_type(field["type"]) for field in columns]
            schema = pa.schema([*list(SCHEMA)[:3], *zip(names, kinds, strict=True)])
            own = [[row.get(name) for row in rows] for name in names]
            own = [
                [[*v.items()] if v is not None and pa.types.is_map(k) else v for v in values]
                for values, k in zip(own, kinds, strict=True)
            ]
            sizes = [format_columns.row_size(row, columns) for row in rows]
        plain = [f for f in columns or () if isinstance(f["type"], str)]
        texts = [f["name"] for f in plain if f["type"] in ("string", "binary")]
        packed = [f["name"] for f in plain if f["type"] in format_columns.PACKED]
        bounded = [f["name"] for f in plain if f["type"] != "binary"]
        arrays = [pa.array(c, f.type) for c, f in zip([*system, *own], schema, strict=True)]
        target = self._table / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_arrays(arrays, schema=schema),
            target,
            compression="zstd",
            compression_level=1,
            use_dictionary=["routing_key", *texts],
            column_encoding=dict.fromkeys(
                ["offset_delta", "timestamp", *packed], "DELTA_BINARY_PACKED"
            ),
            write_page_checksum=True,
            write_statistics=["offset_delta", "routing_key", "timestamp", *bounded],
        )
        data = target.read_bytes()
        _fsync(target)
        _fsync(target.parent)
        footer = int.from_bytes(data[-8:-4], "little") + 8
        tags = {
            "rows": f"{len(events)}",
            "bytes": f"{sum(sizes)}",
            "minTimestamp": f"{now_us}",
            "maxTimestamp": f"{now_us}",
            "footer": f"{footer}-{self._digest(data[-footer:])}",
        }
        low, high = (_iso(ms) for ms in (now_us // 1_000, -(-now_us // 1_000)))
        nulls = {"routing_key": sum(key is None for key, _ in events), "timestamp": 0}
        stats = {
            "numRecords": len(events),
            "minValues": {"timestamp": low},
            "maxValues": {"timestamp": high},
            "nullCount": nulls,
        }
        return path, len(data), tags, _json(stats)

    # ---- commits

    def _view(self) -> format_reader.Stream:
        return format_reader.Stream(self._root, self._stream, digest_64=self._digest)

    def _commit(self, operation: str, decide: Decide) -> int:
        while True:
            view = self._view()
            if view.state != "ACTIVE":
                raise Refused(f"the stream is {view.state}")
            body = self._body(operation, *decide(view), view.committed_ms)
            if self._put_if_absent(view.version + 1, body):
                return view.version + 1

    def _body(
        self, operation: str, domains: dict[str, Any], adds: list[Any], last_ms: int
    ) -> bytes:
        now_ms = max(time.time_ns() // 1_000_000, last_ms + 1)
        info = {
            "inCommitTimestamp": now_ms,
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": {"writer": _json(self._name)},
            "operationMetrics": _metrics(adds),
            "isBlindAppend": False,
            "engineInfo": "pravega_spark/format-page",
            "txnId": secrets.token_hex(12),
        }
        records = [
            {"domainMetadata": {"domain": name, "configuration": _json(record), "removed": False}}
            for name, record in domains.items()
        ]
        rest = "".join(f"{_json(action)}\n" for action in (*records, *adds)).encode()
        head = _json({"commitInfo": info}).removesuffix("}}").encode()
        return head + f',"digest":"{self._digest(head + rest)}"}}}}\n'.encode() + rest

    def _put_if_absent(self, version: int, body: bytes) -> bool:
        log = self._table / "_delta_log"
        hidden = log / f".{os.getpid()}-{secrets.token_hex(8)}-0.tmp"
        hidden.write_bytes(body)
        _fsync(hidden)
        try:
            os.link(hidden, log / f"{version:020d}.json")
        except FileExistsError:
            return False
        finally:
            hidden.unlink()
        _fsync(log)
        return True


def _metrics(adds: list[Any]) -> dict[str, str]:
    """Count what a commit adds, by segment: the scaling job reads these."""
    rows, sizes = defaultdict[str, int](int), defaultdict[str, int](int)
    for add in (action["add"] for action in adds):
        segment = format_reader.segment_text(int(add["partitionValues"]["segment_id"]))
        rows[segment] += int(add["tags"]["rows"])
        sizes[segment] += int(add["tags"]["bytes"])
    return {
        "numOutputRows": f"{sum(rows.values())}",
        "numOutputBytes": f"{sum(sizes.values())}",
        "numFiles": f"{len(adds)}",
        "rowsBySegment": ",".join(f"{name}={count}" for name, count in rows.items()),
        "bytesBySegment": ",".join(f"{name}={count}" for name, count in sizes.items()),
    }


def _add(path: str, segment: int, offset: int, size: int, tags: dict[str, str], stats: str) -> Any:
    return {
        "add": {
            "path": path,
            "partitionValues": {"segment_id": f"{segment}", "base_offset": f"{offset}"},
            "size": size,
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": True,
            "stats": stats,
            "tags": tags,
        }
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _iso(ms: int) -> str:
    seconds, rest = divmod(ms, 1_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
