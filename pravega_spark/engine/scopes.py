"""Scopes: an index of the streams in each, as a state table; the streams' own logs decide.

A row names the stream's life. It is written before CREATE, with the configuration that the life
begins with whoever creates it, and goes after DELETED: so what a dead process left half made is
finished by whoever comes next. ``version`` is the stream's version that the row's tags are of.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from pravega_spark.config import StreamConfiguration
from pravega_spark.engine.actions import to_json
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.table import Change, Row, StateTable, TableState
from pravega_spark.errors import NoSuchScope, ScopeNotEmpty
from pravega_spark.names import check_scope

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


class Scope:
    """One scope: whether it exists, and the rows of its streams."""

    def __init__(self, store: Store, name: str, runtime: Runtime = SYSTEM) -> None:
        """Name the scope; it need not exist."""
        self.name = check_scope(name)
        self.table = StateTable(store, f"{name}/_scope", SCOPE_SCHEMA, "name", runtime)

    @staticmethod
    def _record(state: TableState) -> dict[str, Any]:
        record = state.snapshot.get(SCOPE_DOMAIN) if state.snapshot else None
        return record or {"state": DELETED, "life": 0}

    def state(self) -> str:
        """Return ACTIVE, DELETING or DELETED (also for a scope that never was)."""
        return str(self._record(self.table.read())["state"])

    def check_exists(self) -> None:
        """Raise NoSuchScope if the scope does not exist."""
        if self.state() == DELETED:
            raise self._absent()

    def _absent(self) -> NoSuchScope:
        return NoSuchScope(f"scope {self.name} does not exist; create it first.")

    def create(self) -> bool:
        """Create the scope; False if it exists."""
        created = [False]

        def decide(state: TableState) -> Change | None:
            record = self._record(state)
            created[0] = record["state"] == DELETED
            if not created[0]:
                return None
            value = to_json({"state": ACTIVE, "life": record["life"] + 1})
            return Change("CREATE SCOPE", {}, {SCOPE_DOMAIN: value}, {"scope": self.name})

        self.table.change(decide)
        return created[0]

    def fence(self) -> None:
        """Refuse new objects from now on: the first step of a recursive deletion."""

        def decide(state: TableState) -> Change | None:
            record = self._record(state)
            if record["state"] != ACTIVE:
                return None
            value = to_json({**record, "state": DELETING})
            return Change("FENCE SCOPE", state.rows, {SCOPE_DOMAIN: value}, {"scope": self.name})

        self.table.change(decide)

    def delete(self) -> bool:
        """Delete the scope if it has no row; False if there is no such scope."""
        deleted = [False]

        def decide(state: TableState) -> Change | None:
            record = self._record(state)
            deleted[0] = record["state"] != DELETED
            if not deleted[0]:
                return None
            if state.rows:
                names = ", ".join(sorted(state.rows)[:5])
                raise ScopeNotEmpty(
                    f"scope {self.name} still holds {len(state.rows)} streams ({names}); delete "
                    "them first, or delete the scope with recursive=True."
                )
            value = to_json({**record, "state": DELETED})
            return Change("DELETE SCOPE", {}, {SCOPE_DOMAIN: value}, {"scope": self.name})

        if self.table.read().version < 0:
            return False
        self.table.change(decide)
        return deleted[0]

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows by stream name; raise NoSuchScope if the scope does not exist."""
        state = self.table.read()
        if self._record(state)["state"] == DELETED:
            raise self._absent()
        return {name: dict(row) for name, row in state.rows.items()}

    def claim(
        self, name: str, life: int, configuration: StreamConfiguration
    ) -> tuple[bool, StreamConfiguration]:
        """Note a stream's life before it is created: the first one's row decides.

        Return whether this call wrote it, and the configuration that the life begins with.
        Raises NoSuchScope, also for a new stream of a scope that is being deleted.
        """
        outcome = [(True, configuration)]

        def decide(state: TableState) -> Change | None:
            record = self._record(state)
            if record["state"] == DELETED:
                raise self._absent()
            known = state.rows.get(name)
            if known is not None and known["life"] >= life:
                outcome[:] = [(False, row_configuration(known))]
                return None
            if record["state"] == DELETING:
                raise NoSuchScope(f"scope {self.name} is being deleted; it takes no new stream.")
            outcome[:] = [(True, configuration)]
            row = _row(name, life, -1, configuration)
            return Change("PUT STREAM", {**state.rows, name: row}, parameters={"stream": name})

        self.table.change(decide)
        return outcome[0]

    def retag(self, name: str, life: int, version: int, configuration: StreamConfiguration) -> None:
        """Show a stream's configuration as of a version; a row of a newer one stays."""

        def decide(state: TableState) -> Change | None:
            known = state.rows.get(name)
            if known is None or known["life"] != life or known["version"] >= version:
                return None
            row = _row(name, life, version, configuration)
            return Change("PUT STREAM", {**state.rows, name: row}, parameters={"stream": name})

        self.table.change(decide)

    def drop_row(self, name: str, life: int) -> None:
        """Forget a deleted stream, if the row still names that life or an earlier one."""

        def decide(state: TableState) -> Change | None:
            known = state.rows.get(name)
            if known is None or known["life"] > life:
                return None
            rows = {key: row for key, row in state.rows.items() if key != name}
            return Change("DROP STREAM", rows, parameters={"stream": name})

        self.table.change(decide)


def _row(name: str, life: int, version: int, configuration: StreamConfiguration) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "stream",
        "life": life,
        "version": version,
        "tags": sorted(configuration.tags),
        "configuration": to_json(configuration.to_json()),
    }


def row_configuration(row: Row) -> StreamConfiguration:
    """Return the configuration that a row was written with."""
    return StreamConfiguration.from_json(json.loads(row["configuration"]))
