"""State tables: small sets of rows in a Delta table, changed by compare-and-set on its version.

All live rows are in one Parquet file that each commit replaces, so that any Delta reader sees
exactly one version of the state, and ours reads one object. The file is named by the domain
``pravega.rows`` of the commit that put it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine import hygiene
from pravega_spark.engine.actions import PROTOCOL, Add, Body, Remove, new_table, to_json
from pravega_spark.engine.log import Log, Proposal
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.snapshot import Snapshot
from pravega_spark.engine.store import Store
from pravega_spark.errors import CorruptChunk, StoreError

ROWS_DOMAIN = "pravega.rows"

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
_DELTA_TYPES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.list_(pa.string()): {"type": "array", "elementType": "string", "containsNull": True},
}


@dataclass(frozen=True, slots=True)
class TableState:
    """The rows by key at one version, and the domains that say what the table is."""

    version: int
    rows: Rows = field(default_factory=dict)
    snapshot: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What to commit: an operation's name, all rows, and domains to set."""

    operation: str
    rows: Rows
    domains: Mapping[str, str | None] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


_Value = TypeVar("_Value")

Decide = Callable[[TableState], tuple[Change | None, _Value]]
"""Given the newest state, the change to commit (None: it stays), and a value for the caller."""


class StateTable:
    """One state table: rows of ``schema`` keyed by the column ``key``."""

    def __init__(
        self, store: Store, path: str, schema: pa.Schema, key: str, runtime: Runtime = SYSTEM
    ) -> None:
        """Name the table; nothing is read yet, and it need not exist."""
        self.log = Log(store, path, runtime)
        self.log.maintain = hygiene.in_background
        self._schema = schema
        self._key = key
        self._cached = TableState(-1)

    def read(self, *, refresh: bool = True) -> TableState:
        """Return the newest state, or the last one known; version -1 if there is no table.

        Raises CorruptChunk if the rows of the newest version cannot be read.
        """
        snapshot = self.log.refresh(settle=True) if refresh else self.log.snapshot
        while True:
            try:
                return self._state(snapshot)
            except CorruptChunk:  # of an old version: a sweep may have been there first
                known, snapshot = snapshot, self.log.refresh(settle=True)
                if snapshot is known:
                    raise

    def _state(self, snapshot: Snapshot | None) -> TableState:
        if snapshot is None:
            return TableState(-1)
        cached = self._cached
        if cached.version == snapshot.version:
            return cached
        pointer = snapshot.get(ROWS_DOMAIN)
        before = cached.snapshot.get(ROWS_DOMAIN) if cached.snapshot else None
        rows = cached.rows if pointer == before else self._load(pointer)
        state = TableState(snapshot.version, rows, snapshot)
        self._cached = state
        return state

    def _load(self, pointer: Mapping[str, Any] | None) -> Rows:
        if pointer is None:
            return {}
        key = f"{self.log.path}/{pointer['path']}"
        try:
            data = self.log.store.get(key)
            # Not read_table: a process that ends while its threads start up aborts.
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        except StoreError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise CorruptChunk(
                f"{self.log.reader.where}: the rows in {pointer['path']} cannot be read; restore "
                "the file from a copy."
            ) from error
        return {row[self._key]: row for row in table.to_pylist()}

    def change(self, decide: Decide[_Value]) -> tuple[TableState, _Value]:
        """Commit the change that ``decide`` makes of the newest state; return the state after it.

        The value is that of the decision that counted.
        """

        def propose(snapshot: Snapshot | None) -> Proposal[_Value]:
            change, value = decide(self._state(snapshot))
            return None if change is None else self._body(snapshot, change), value

        done = self.log.commit(propose)
        return self._state(done.snapshot), done.value

    def _body(self, snapshot: Snapshot | None, change: Change) -> Body:
        now_ms = self.log.clock.now_ms()
        version = 0 if snapshot is None else snapshot.version
        body = Body(change.operation, parameters=change.parameters, domains=dict(change.domains))
        pointer = None if snapshot is None else snapshot.get(ROWS_DOMAIN)
        domains: dict[str, str | None] = dict(change.domains)
        if change.rows != self._state(snapshot).rows:
            body.adds = [self._stage(change.rows, version, now_ms)] if change.rows else []
            if pointer is not None:
                old = Add(pointer["path"], {}, pointer["size"], now_ms)
                body.removes = [Remove.of(old, now_ms)]
            domains[ROWS_DOMAIN] = (
                to_json({"path": body.adds[0].path, "size": body.adds[0].size})
                if body.adds
                else None
            )
        if snapshot is None:
            schema = {f.name: _DELTA_TYPES[f.type] for f in self._schema}
            table_id = self.log.runtime.token()
            body.protocol = PROTOCOL
            body.metadata = new_table(schema, [], table_id, self.log.path, now_ms)
        body.domains = domains
        return body

    def _stage(self, rows: Rows, version: int, now_ms: int) -> Add:
        """Write the rows into the folder of the version on which the change was decided.

        Done anew after every lost race, so no horizon passes the file before it is committed.
        """
        ordered = [rows[key] for key in sorted(rows)]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(ordered, self._schema), sink, compression="zstd")
        data = sink.getvalue()
        path = f"data/v{version}/{self.log.runtime.token()}.parquet"
        self.log.store.put(f"{self.log.path}/{path}", data)
        stats = to_json({"numRecords": len(ordered)})
        return Add(path, {}, data.size, now_ms, stats, {"rows": str(len(ordered))})
