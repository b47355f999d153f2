"""Creates, seals and deletes key-value tables: rows of a scope, and lives of their change logs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from pravega_spark.engine.kinds import TABLE
from pravega_spark.engine.root import Root
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.state.scopes import row_configuration, row_domains
from pravega_spark.engine.stream import lifecycle, repair
from pravega_spark.engine.stream.configuration import ConfigurationUpdate, tag_changes
from pravega_spark.engine.stream.lifecycle import claim_life, forestall, has_begun
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    InvalidConfiguration,
    NoSuchScope,
    NoSuchStream,
    StaleIdentity,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import of_table, translated
from pravega_spark.key_value.fold import ensure_subscribed
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.shared_table import table_configuration
from pravega_spark.txn import sweeper
from pravega_spark.values.names import split_log, split_table, table_log


class TableLifecycle:
    """The life of one key-value table by its name ``scope/table``."""

    def __init__(self, root: Root, table: str) -> None:
        """Name the table; nothing is read."""
        self.table = table
        self._scope_name, self._short_name = split_table(table)
        self._scope = root.scope(self._scope_name)
        self._root = root

    def log(self) -> StreamLog:
        """Return the table's change log."""
        return self._root.stream(table_log(self._scope_name, self._short_name))

    def create(self, configuration: KeyValueTableConfiguration) -> bool:
        """Create the table; False if it exists. Concurrent creators converge on one table."""
        log, scope, name = self.log(), self._scope, self._short_name
        wanted, value = configuration.of_log(), configuration.to_json()
        found = claim_life(log, scope, lambda life: scope.claim(name, life, wanted, TABLE, value))
        if found is None:
            scope.check_exists()
            return False
        claimed, row = found
        life = row["life"]
        if life > 1:  # a deletion that was killed may have left the rows of the life before
            folded_table(log, configuration).end_life(life - 1)
        if lifecycle.create(log, life, row_configuration(row), row_domains(row)):
            with contextlib.suppress(NoSuchStream, StaleIdentity):
                ensure_subscribed(log, log.view(refresh=False, life=life))
            return claimed
        return repair.repair(log, scope) and claimed and has_begun(log, life)

    def existing(self) -> tuple[StreamLog, StreamView]:
        """Return the change log of a table that exists, and its newest view.

        A table that was left half made is repaired first. Raises NoSuchTable.
        """
        log = self.log()
        try:
            return log, repair.existing_view(log)
        except NoSuchStream as error:
            raise of_table(error) from error

    def update(self, add_tags: Iterable[str] | None, remove_tags: Iterable[str] | None) -> bool:
        """Change the tags; False if they are so already. Raises NoSuchTable, InvalidConfiguration.

        Nothing else of a table's configuration can change.
        """
        change = _checked_tags(self.table, add_tags, remove_tags)
        log, view = self.existing()
        with translated():
            changed = lifecycle.update(log, change, life=view.life)
        failpoint("update.row")
        found = log.current_view()
        if found is not None and found.life == view.life:
            path, configuration = split_log(log.name)[1], found.record.configuration
            self._scope.retag(path, found.life, found.version, configuration)
        return changed

    def tags(self) -> frozenset[str]:
        """Return the tags. Raises NoSuchTable."""
        return self.existing()[1].record.configuration.tags

    def seal(self) -> bool:
        """Stop all changes forever; False if the table is sealed already. Raises NoSuchTable."""
        log, view = self.existing()
        life = view.life
        return lifecycle.seal(log, sweeper.end_all_transactions, life=life)

    def delete(self) -> bool:
        """Seal and delete the table with its data; False if there is none.

        The row is read first: it tells the life that the call is for, also of a half-made table.
        """
        log = self.log()
        row = None
        with contextlib.suppress(NoSuchScope):
            row = self._scope.log_row(split_log(log.name)[1])
        return row is not None and self.end_life(row["life"])

    def end_life(self, life: int) -> bool:
        """Seal and delete one life of the table; False if it has ended already.

        A life that has not begun never will.
        """
        log, folded = self.log(), None
        if forestall(log, life):
            self._scope.drop_row(self._short_name, life, TABLE)
            return True
        with contextlib.suppress(NoSuchStream, NoSuchScope, StaleIdentity):
            view = repair.existing_view(log)
            view.check_life(life)
            folded = folded_table(log, table_configuration(view))
            lifecycle.seal(log, sweeper.end_all_transactions, life=life)
        deleted = lifecycle.delete(log, life=life)
        failpoint("delete.folded")
        if deleted and folded is not None:
            folded.end_life(life)
        failpoint("delete.row")
        if deleted:
            self._scope.drop_row(self._short_name, life, TABLE)
        return deleted


def _checked_tags(
    table: str, add_tags: Iterable[str] | None, remove_tags: Iterable[str] | None
) -> ConfigurationUpdate:
    """Return the arguments of an update of a table; raise InvalidConfiguration."""
    if add_tags is None and remove_tags is None:
        raise InvalidConfiguration(
            f"the update of table {table} names nothing to change: give some of add_tags, "
            "remove_tags."
        )
    tags = tag_changes(f"table {table}", add_tags, remove_tags)
    return ConfigurationUpdate(add_tags=tags[0], remove_tags=tags[1])
