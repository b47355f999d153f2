"""Scopes: each indexes its streams, and its objects of other kinds; their own logs decide.

A row holds the life of a stream, or of another object (``kinds``). It is written before the object
is created, with the configuration that the new life starts with, and removed after the object is
deleted. So the next process repairs what a crashed one left half-made, and a scope with a row
cannot be deleted. ``version`` is the stream's version to which the tags belong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.kinds import KINDS, STREAM
from pravega_spark.engine.log.commit import check_not_lost
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.state_table import Row, StateTable, TableChange, TableState
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.open_objects import OpenObjects
from pravega_spark.engine.store.root_marker import way_on
from pravega_spark.errors import NoSuchScope, ScopeNotEmpty, StaleIdentity
from pravega_spark.values.limits import OPEN_SCOPE_BYTES
from pravega_spark.values.names import check_scope

SCOPE_DOMAIN = "pravega.scope"
SCOPE_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("kind", pa.string()),
        ("life", pa.int64()),
        ("version", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("configuration", pa.string()),
    ]
)
ACTIVE, DELETING, DELETED = "ACTIVE", "DELETING", "DELETED"

_WEIGHED_ROWS = 16
_ROW_BYTES = 544
"""The memory of a row beside its configuration, by measurement."""


class Scope:
    """One scope: its state, and the rows of its objects."""

    def __init__(self, store: Store, name: str, runtime: Runtime = SYSTEM) -> None:
        """Name the scope; nothing is read yet, and it need not exist."""
        self.name = check_scope(name)
        self.table = StateTable(store, f"{name}/_scope", SCOPE_SCHEMA, "name", runtime)

    @property
    def held_bytes(self) -> int:
        """About how much memory the scope takes, judged by some of its rows."""
        rows = self.table.known_rows
        some = list(islice(rows.values(), _WEIGHED_ROWS))
        text = sum(len(row["configuration"]) for row in some)
        return self.table.log.held_bytes + len(rows) * (_ROW_BYTES + text // max(1, len(some)))

    @staticmethod
    def _record(state: TableState) -> dict[str, Any]:
        return _record_of(state.snapshot)

    def _newest_record(self) -> dict[str, Any]:
        """Return the record of the newest version; the rows are not read."""
        return _record_of(self.table.log.refresh(durable=True))

    def state(self) -> str:
        """Return ACTIVE, DELETING or DELETED; also DELETED for a scope that never existed."""
        return str(self._newest_record()["state"])

    def life(self) -> int | None:
        """Return the number of the scope's creation, from 1; None if there is no scope."""
        record = self._newest_record()
        return None if record["state"] == DELETED else int(record["life"])

    def check_exists(self) -> int:
        """Return the scope's life; raise NoSuchScope if the scope does not exist."""
        life = self.life()
        if life is None:
            raise self._absent()
        return life

    def check_has_index(self) -> None:
        """Raise CorruptLog if the scope has lost its index: it holds something and has no log."""
        log = self.table.log
        if log.refresh() is None:
            check_not_lost(
                log,
                self.name,
                f"scope {self.name}",
                f"Restore {log.path} from a copy; without it the contents of the scope are not "
                "listed.",
            )

    def _absent(self) -> NoSuchScope:
        """Return the error of a scope that is not there; raise CorruptLog if its index is lost."""
        self.check_has_index()
        return self._not_there()

    def _not_there(self) -> NoSuchScope:
        ending = way_on(self.table.log.store, "; create it first.")
        return NoSuchScope(f"scope {self.name} does not exist{ending}", scope=self.name)

    def create(self) -> bool:
        """Create the scope; return False if it exists."""

        def decide(state: TableState) -> tuple[TableChange | None, bool]:
            record = self._record(state)
            if record["state"] != DELETED:
                return None, False
            value = to_json({"state": ACTIVE, "life": record["life"] + 1})
            return self._own_change("CREATE SCOPE", value), True

        return self.table.change(decide)[1]

    def fence(self, life: int) -> list[Row]:
        """Refuse new objects, as the first step of a recursive deletion.

        Returns the rows, to which none can be added any more; none if this life has ended.
        """

        def decide(state: TableState) -> tuple[TableChange | None, list[Row]]:
            record = self._record(state)
            if record["life"] != life or record["state"] == DELETED:
                return None, []
            rows = list(state.rows.values())
            if record["state"] == DELETING:
                return None, rows
            value = to_json({**record, "state": DELETING})
            return self._own_change("FENCE SCOPE", value), rows

        return self.table.change(decide)[1]

    def delete(self, life: int) -> bool:
        """Delete the scope if it has no row; return False if this life of it has ended."""

        def decide(state: TableState) -> tuple[TableChange | None, bool]:
            record = self._record(state)
            if record["life"] != life or record["state"] == DELETED:
                return None, False
            if state.rows:
                raise ScopeNotEmpty(
                    f"scope {self.name} still holds {_contents(state.rows)}. Delete them first, or "
                    "delete the scope with recursive=True.",
                    scope=self.name,
                )
            value = to_json({**record, "state": DELETED})
            return self._own_change("DELETE SCOPE", value), True

        return self.table.change(decide)[1]

    def _own_change(self, operation: str, record: str) -> TableChange:
        return TableChange(
            operation, domains={SCOPE_DOMAIN: record}, parameters={"scope": self.name}
        )

    def names(self) -> dict[str, list[str]]:
        """Return the names by kind, sorted, from one read. Raises NoSuchScope."""
        state = self.table.read()
        if self._record(state)["state"] == DELETED:
            raise self._absent()
        found: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for row in state.rows.values():
            if row["kind"] in found:
                found[row["kind"]].append(row_name(row))
        return {kind: sorted(names) for kind, names in found.items()}

    def rows(self, kind: str = STREAM) -> dict[str, dict[str, Any]]:
        """Return the rows of a kind by name. Raises NoSuchScope."""
        state = self.table.read()
        if self._record(state)["state"] == DELETED:
            raise self._absent()
        return {row_name(row): dict(row) for row in state.rows.values() if row["kind"] == kind}

    def log_row(self, path: str) -> Row | None:
        """Return the row of a stream by its path in the scope, or None. Raises NoSuchScope."""
        state = self.table.read()
        if self._record(state)["state"] == DELETED:
            raise self._not_there()  # a stream goes on without its index
        row = state.rows.get(path)
        return row if row is not None and KINDS[row["kind"]].is_stream else None

    def row(self, kind: str, name: str) -> Row | None:
        """Return the row of an object; None if there is none, or no scope."""
        return self.table.read().rows.get(_key(kind, name))

    def claim(
        self,
        name: str,
        life: int,
        configuration: StreamConfiguration,
        kind: str = STREAM,
        value: Mapping[str, Any] | None = None,
    ) -> tuple[bool, Row]:
        """Write the row of a stream's new life, before it is created; the first row wins.

        A row of a later life wins, too. Returns whether this call wrote the row, and the row.
        ``value`` is that of the domain of a ``kind`` which has one. Raises NoSuchScope, also for a
        new stream in a scope that is being deleted.
        """
        record, fields = configuration.to_json(), KINDS[kind].row_fields
        if fields is not None:
            record = dict(zip(fields, (record, value), strict=True))
        return self._claim(_row(kind, name, life, to_json(record), configuration.tags))

    def renewed(self, row: Row, life: int) -> Row:
        """Move the row of a stream that has not begun to a later life; return the row.

        A row of a still later life wins. Raises NoSuchScope as :meth:`claim` does.
        """
        return self._claim({**row, "life": life, "version": -1})[1]

    def claim_object(
        self,
        kind: str,
        name: str,
        life: int,
        configuration: Mapping[str, Any],
        *,
        scope_life: int | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Write the row of a new object that is no stream, as :meth:`claim` does for a stream.

        Raises StaleIdentity if the scope is not in ``scope_life``.
        """
        claimed, row = self._claim(_row(kind, name, life, to_json(configuration)), scope_life)
        return claimed, json.loads(row["configuration"])

    def _claim(self, row: Row, scope_life: int | None = None) -> tuple[bool, Row]:
        key, title = row["name"], KINDS[row["kind"]].title

        def decide(state: TableState) -> tuple[TableChange | None, tuple[bool, Row]]:
            record = self._record(state)
            if record["state"] == DELETED:
                raise self._absent()
            if scope_life is not None and record["life"] != scope_life:
                raise StaleIdentity(
                    f"scope {self.name} was deleted and created again before the {title} "
                    f"{row_name(row)} was written into it. Create it again.",
                    name=self.name,
                    life=scope_life,
                    current_life=record["life"],
                )
            known = state.rows.get(key)
            if known is not None and known["life"] >= row["life"]:
                return None, (False, known)
            if record["state"] == DELETING:
                raise NoSuchScope(
                    f"scope {self.name} is being deleted; it accepts no new {title}.",
                    scope=self.name,
                )
            return _change("PUT", row, row), (True, row)

        return self.table.change(decide)[1]

    def retag(self, path: str, life: int, version: int, configuration: StreamConfiguration) -> None:
        """Write the configuration of a version into a row, unless the row is newer.

        ``path`` is that of the stream in the scope.
        """

        def decide(state: TableState) -> tuple[TableChange | None, None]:
            known = state.rows.get(path)
            if known is None or known["life"] != life or known["version"] >= version:
                return None, None
            record, fields = configuration.to_json(), KINDS[known["kind"]].row_fields
            if fields is not None:
                record = {**json.loads(known["configuration"]), fields[0]: record}
            tags = sorted(configuration.tags)
            row = {**known, "version": version, "tags": tags, "configuration": to_json(record)}
            return _change("PUT", row, row), None

        self.table.change(decide)

    def drop_row(self, name: str, life: int, kind: str = STREAM) -> None:
        """Remove the row of a deleted object, if it still has that life or an earlier one."""
        dropped = _key(kind, name)

        def decide(state: TableState) -> tuple[TableChange | None, None]:
            known = state.rows.get(dropped)
            if known is None or known["life"] > life:
                return None, None
            return _change("DROP", known, None), None

        self.table.change(decide)


def _record_of(snapshot: Snapshot | None) -> dict[str, Any]:
    record = None if snapshot is None else snapshot.get(SCOPE_DOMAIN)
    return record or {"state": DELETED, "life": 0}


def _key(kind: str, name: str) -> str:
    return f"{KINDS[kind].folder}{name}"


def row_name(row: Row) -> str:
    """Return the name of a row's object, without its scope; ``name`` is its path in the scope."""
    return str(row["name"]).removeprefix(KINDS[row["kind"]].folder)


def _change(verb: str, row: Row, after: Row | None) -> TableChange:
    """Return a change of one row, or its removal."""
    kind = str(row["kind"])
    return TableChange(
        f"{verb} {kind.upper()}",
        parameters={kind: row_name(row)},
        changes={str(row["name"]): after},
    )


def _contents(rows: Mapping[str, Row]) -> str:
    """Return the contents of a scope for a message: ``2 streams (a, b), 1 group (c)``."""
    parts = []
    for kind in KINDS.values():
        names = sorted(row_name(row) for row in rows.values() if row["kind"] == kind.name)
        if names:
            several = "s" if len(names) > 1 else ""
            parts.append(f"{len(names)} {kind.title}{several} ({', '.join(names[:5])})")
    return ", ".join(parts)


def _row(
    kind: str, name: str, life: int, configuration: str, tags: Iterable[str] = ()
) -> dict[str, Any]:
    return {
        "name": _key(kind, name),
        "kind": kind,
        "life": life,
        "version": -1,
        "tags": sorted(tags),
        "configuration": configuration,
    }


def row_configuration(row: Row) -> StreamConfiguration:
    """Return the configuration that the row of a stream was written with."""
    record, fields = json.loads(row["configuration"]), KINDS[row["kind"]].row_fields
    return StreamConfiguration.from_json(record if fields is None else record[fields[0]])


def log_names(scope: Scope) -> set[str]:
    """Return the paths in a scope of its streams, of all kinds. Raises NoSuchScope."""
    kinds, found = [kind.name for kind in KINDS.values() if kind.is_stream], scope.names()
    return {_key(kind, name) for kind in kinds for name in found[kind]}


def row_domains(row: Row) -> dict[str, str]:
    """Return the domains of the first commit of a row's stream that no plain stream has."""
    kind = KINDS[row["kind"]]
    if kind.domain is None or kind.row_fields is None:
        return {}
    return {kind.domain: to_json(json.loads(row["configuration"])[kind.row_fields[1]])}


_open = OpenObjects(Scope, lambda scope: scope.held_bytes, OPEN_SCOPE_BYTES)


def open_scope(store: Store, name: str, runtime: Runtime = SYSTEM) -> Scope:
    """Return this process's scope of that root and name; it need not exist yet.

    A handle asks for it when it needs it, and holds none. Scopes with another runtime than the
    system's are not kept. Raises InvalidName.
    """
    check_scope(name)
    return _open.get(store, name) if runtime is SYSTEM else Scope(store, name, runtime)
