"""The root's table of settings: one row for each setting that was given, changed field by field.

A root without the table has all defaults. A table that cannot be read is an error, never a default:
a sweep with a shorter grace than the root's would delete files that writers still need.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pravega_spark.config.root_settings import (
    SET_UP,
    EffectiveSettings,
    GivenSettings,
    SettingChanges,
    decode_given,
)
from pravega_spark.config.setting_rules import SettingValue
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.log.commit import check_not_lost
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.state_table import (
    OpenTables,
    Rows,
    StateTable,
    TableChange,
    TableState,
)
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.reserve import freeing
from pravega_spark.engine.store.root_marker import check_same
from pravega_spark.errors import CorruptLog

if TYPE_CHECKING:
    from pravega_spark.engine.log.sweep import SweepResult

SETTINGS_TABLE: Final = "_settings"
SETTINGS_SCHEMA: Final = pa.schema([("name", pa.string()), ("value", pa.string())])
"""``value`` is JSON: the ms of a duration, null for never, or a text."""

_CREATION_MS: Final = 60_000
"""Age of a file of rows after which its process is not about to create the table any more."""


class SettingsTable:
    """The table of settings of one root."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        """Name the table; nothing is read yet, and it need not exist."""
        self.table = StateTable(store, SETTINGS_TABLE, SETTINGS_SCHEMA, "name", runtime)
        self._was_absent = False

    def exists(self) -> bool:
        """Return whether the table was ever created; one storage call."""
        return self.table.log.reader.has(0)  # the first commit is never deleted

    def read(self) -> GivenSettings:
        """Return the settings that are given now; one storage call if nothing changed.

        Raises Damaged if the table cannot be read.
        """
        log = self.table.log
        if self._was_absent:
            check_same(log.store)
            if not self.exists():
                return {}
            self._was_absent = False
        state = self.table.read()
        if state.snapshot is None:
            self._check_has_log()
            self._was_absent = True
            return {}
        return self._decode(state.rows)

    def update(self, changes: SettingChanges) -> GivenSettings:
        """Change some settings in one commit, decided on the newest state; return all of them.

        Rows that only a newer version knows stay. A value that cannot be read may be replaced.
        """
        log = self.table.log
        if log.snapshot is None and log.refresh() is None:
            self._check_has_log()
        return self._decode(self._change(changes).rows)

    def _check_has_log(self) -> None:
        """Raise CorruptLog if anything is stored in place of a table without a log.

        A young file of rows is not damage: another process is about to create the table.
        """
        log = self.table.log
        now_ms = log.clock.now_ms()

        def counts(entry: Entry) -> bool:
            is_staged = entry.key.startswith(f"{log.path}/data/{version_folder(0)}/")
            return not is_staged or now_ms - entry.modified_ms > _CREATION_MS

        advice = (
            f"Restore {log.path} from a copy; or delete it, so that the defaults hold, and set the "
            "settings again."
        )
        check_not_lost(log, log.path, "the table of settings", advice, counts=counts)

    def set_up(self, name: str, value: SettingValue) -> None:
        """Give a setting to a root that is set up, unless the root has ever had the table.

        The value is nobody's choice until a change of the setting, to the same value, too.
        """
        given = {name: value, SET_UP: name}
        rows = {key: {"name": key, "value": to_json(found)} for key, found in given.items()}

        def decide(state: TableState) -> tuple[TableChange | None, None]:
            if state.snapshot is not None:
                return None, None
            parameters = {"set": {name: value}, "cleared": []}
            return TableChange("SET SETTINGS", rows, parameters=parameters), None

        self.table.change(decide)

    def clear(self, *names: str) -> None:
        """Take back some settings of a table that exists, whether the others can be read or not."""
        self._change(SettingChanges(cleared=names))

    def _change(self, changes: SettingChanges) -> TableState:
        def decide(state: TableState) -> tuple[TableChange | None, None]:
            rows = dict(state.rows)
            if SET_UP in rows and json.loads(rows[SET_UP]["value"]) in changes.names:
                del rows[SET_UP]
            for name in changes.cleared:
                rows.pop(name, None)
            for name, value in changes.values.items():
                rows[name] = {"name": name, "value": to_json(value)}
            if rows == state.rows:
                return None, None
            parameters = {"set": dict(changes.values), "cleared": list(changes.cleared)}
            return TableChange("SET SETTINGS", rows, parameters=parameters), None

        with freeing(self.table.log.store):
            return self.table.change(decide)[0]

    def sweep(self, settings: EffectiveSettings) -> SweepResult:
        """Delete what the table no longer needs. A root without the table has nothing to sweep."""
        from pravega_spark.engine.log.sweep import sweep_table

        return sweep_table(self.table.log, grace_ms=settings.grace_ms, retain_ms=settings.retain_ms)

    def _decode(self, rows: Rows) -> GivenSettings:
        try:
            return decode_given((name, json.loads(row["value"])) for name, row in rows.items())
        except (TypeError, ValueError) as error:
            where = self.table.log.reader.where
            raise CorruptLog(
                f"{where}: {error}. Set it again with update_settings, or restore the table from a "
                "copy.",
                path=where,
            ) from error


_opened = OpenTables(SettingsTable)


def open_settings(store: Store, runtime: Runtime = SYSTEM) -> SettingsTable:
    """Return this process's table of a root, so that a repeated read costs one storage call."""
    return _opened.get(store, runtime)
