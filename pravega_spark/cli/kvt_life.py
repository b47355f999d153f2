"""``pravega-spark kvt create | ls | describe | delete``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from pravega_spark.cli.many_names import look_at_each
from pravega_spark.cli.output import (
    TABLE,
    TableColumn,
    confirm,
    count,
    examples,
    moment,
    names,
    output_option,
    show_done,
    show_record,
    show_records,
    show_value,
    size,
    yes_option,
)
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import NoSuchTable
from pravega_spark.key_value.fold_due import NEVER, FoldDue
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.key_value.table_key import KeyType
from pravega_spark.key_value.table_snapshot import table_snapshot
from pravega_spark.limits import TABLE_STALENESS, TABLE_VALUE_BYTES
from pravega_spark.names import split_table, table_log
from pravega_spark.units import count_text

_SUMMARY = (
    TableColumn("TABLE", "table"),
    TableColumn("STATE", "state"),
    TableColumn("KEYS", "key_type"),
    TableColumn("PARTITIONS", "partitions", count),
    TableColumn("VERSION", "version"),
    TableColumn("UNFOLDED", "unfolded_changes", count),
    TableColumn("FOLDED", "folded_entries", count),
    TableColumn("SIZE", "folded_bytes", size),
    TableColumn("TTL", "ttl"),
    TableColumn("TAGS", "tags", names),
)
_DETAILS = (
    *_SUMMARY,
    TableColumn("PRIMARY-LENGTH", "primary_key_length"),
    TableColumn("SECONDARY-LENGTH", "secondary_key_length"),
    TableColumn("LARGEST-VALUE", "max_value_bytes", size),
    TableColumn("STALENESS", "staleness"),
    TableColumn("UNFOLDED-BYTES", "unfolded_bytes", size),
    TableColumn("FOLD", "fold"),
    TableColumn("FOLDED-VERSION", "folded_version"),
    TableColumn("FOLDED-AT", "folded_ms", moment),
    TableColumn("FILES", "folded_files", count),
    TableColumn("CHANGE-LOG", "change_log"),
)


@click.command(
    epilog=examples(
        "kvt create nyc/carriers --key-type string",
        "kvt create nyc/sessions --partitions 4 --ttl '1 day'",
    )
)
@click.argument("table")
@click.option(
    "--key-type",
    type=click.Choice([kind.value for kind in KeyType]),
    default=KeyType.BYTES.value,
    show_default=True,
    help="What primary keys are.",
)
@click.option("--primary-length", type=int, metavar="N", help="All keys of bytes have N of them.")
@click.option("--secondary-length", type=int, default=0, metavar="N", help="As Pravega's.")
@click.option("-p", "--partitions", type=int, default=1, show_default=True, metavar="N")
@click.option("--ttl", metavar="TIME", help="Hide entries that are older.")
@click.option("--max-value", default=str(TABLE_VALUE_BYTES), show_default=True, metavar="SIZE")
@click.option("--staleness", default=str(TABLE_STALENESS), show_default=True, metavar="TIME")
@click.option("--tag", "tags", multiple=True, help="May be repeated.")
@root_option
@output_option
def create(
    table: str,
    key_type: str,
    primary_length: int | None,
    secondary_length: int,
    partitions: int,
    ttl: str | None,
    max_value: str,
    staleness: str,
    tags: Sequence[str],
    root: str | None,
    output: str,
) -> None:
    """Create TABLE (scope/table). Safe to repeat; a table that exists stays as it is."""
    configuration = KeyValueTableConfiguration(
        key_type,
        primary_length,
        secondary_length,
        partitions,
        ttl=ttl,
        max_value_bytes=max_value,
        staleness=staleness,
        tags=frozenset(tags),
    )
    manager, _ = open_root(root)
    created = manager.create_key_value_table(table, configuration)
    text = f"Created table {table}." if created else f"Table {table} exists; it is as it was."
    show_done({"table": table, "created": created}, text, output)


@click.command("ls", epilog=examples("kvt ls nyc", "kvt ls --tag gold -q"))
@click.argument("scope", required=False)
@click.option("--tag", help="Only tables with this tag.")
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@root_option
@output_option
def list_tables(
    scope: str | None, tag: str | None, quiet: bool, root: str | None, output: str
) -> None:
    """List the tables of SCOPE, or of all scopes, with the changes that are not folded yet."""
    manager, store = open_root(root)
    listed = partial(manager.list_key_value_tables, tag=tag)
    found = manager._in_scopes(listed, None if scope is None else [scope])

    def record(table: str) -> dict[str, Any] | None:
        with contextlib.suppress(NoSuchTable):  # deleted since the names were listed
            return {"table": table} if quiet else _record(store, table)
        return None

    with look_at_each(record, found, "tables") as records:
        show_records(records, _SUMMARY, output, quiet=quiet)


@click.command(epilog=examples("kvt describe nyc/carriers"))
@click.argument("table")
@root_option
@output_option
def describe(table: str, root: str | None, output: str) -> None:
    """Show the configuration of TABLE, and what is folded of it."""
    _, store = open_root(root)
    show_record(_record(store, table), _DETAILS, output)


def _record(store: Store, table: str) -> dict[str, Any]:
    log = table_log(*split_table(table))
    found = table_snapshot(open_stream(store, log))
    configuration = found.configuration
    folded, due = None if found.folded is None else found.folded.record, found.fold_due
    return {
        "table": table,
        "state": found.view.record.state.value,
        "key_type": KeyType(configuration.key_type).value,
        "primary_key_length": configuration.primary_key_length,
        "secondary_key_length": configuration.secondary_key_length,
        "partitions": len(found.view.active.segments),
        "ttl": configuration.ttl,
        "max_value_bytes": configuration.value_limit,
        "staleness": str(configuration.staleness),
        "tags": sorted(configuration.tags),
        "version": found.view.version,
        "unfolded_changes": found.changes,
        "unfolded_bytes": found.changed_bytes,
        "fold": _fold_text(due),
        "fold_due": due.is_due,
        "folded_version": None if folded is None else folded.log_version,
        "folded_ms": None if folded is None else folded.folded_ms,
        "folded_entries": 0 if folded is None else folded.rows,
        "folded_files": 0 if folded is None else folded.files,
        "folded_bytes": 0 if folded is None else folded.size_bytes,
        "change_log": log,
    }


def _fold_text(due: FoldDue) -> str | None:
    if due.is_due:
        changes = count_text(due.changes, "change")
        return f"is due: each process that opens the table reads {changes}"
    return None if due.at_ms == NEVER else f"is due at {moment(due.at_ms)}"


@click.command(epilog=examples("kvt delete nyc/carriers --yes"))
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@yes_option
@root_option
@output_option
def delete(tables: Sequence[str], yes: bool, root: str | None, output: str) -> None:
    """Delete each TABLE with its entries."""
    manager, _ = open_root(root)
    for table in tables:
        manager.key_value_table_tags(table)  # raises for a table that does not exist
    confirm(f"Delete {', '.join(tables)} with all entries?", yes=yes)
    rows = [{"table": name, "deleted": manager.delete_key_value_table(name)} for name in tables]
    if output != TABLE:
        show_value(rows, output)
    else:
        click.echo(f"Deleted {', '.join(tables)}.")
