"""``pravega-spark kvt get | scan``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
from click.core import ParameterSource

from pravega_spark.cli.exact_json import is_utf8, json_text
from pravega_spark.cli.kvt_keys import KeyForm, keys_option, values_option
from pravega_spark.cli.output import TABLE, examples, output_option, show_table, show_value
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.errors import InvalidInput, NoSuchKey
from pravega_spark.key_value.table_entry import TableEntry
from pravega_spark.names import split_table, table_log
from pravega_spark.printable import printable_lines


@click.command(
    epilog=examples("kvt get nyc/carriers UA", "kvt get nyc/carriers UA DL --values json")
)
@click.argument("table")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--secondary", metavar="KEY", help="The secondary key, for one KEY.")
@click.option("--raw", is_flag=True, help="Print the bytes of one value, and nothing else.")
@keys_option
@values_option
@root_option
@output_option
def get(
    table: str,
    keys: Sequence[str],
    secondary: str | None,
    raw: bool,
    key_form: str,
    value_form: str,
    root: str | None,
    output: str,
) -> None:
    """Print the value of a KEY of TABLE, or a table of several, as of one version.

    Fails if a key has no entry. JSON output has the version, for --version of put and remove.
    """
    if (raw or secondary is not None) and len(keys) > 1:
        raise click.UsageError("--raw and --secondary are for one KEY.")
    manager, store = open_root(root)
    check_begun(store, [table_log(*split_table(table))])
    opened = manager.key_value_table(table)
    form = KeyForm(opened, key_form)
    stored = [(form.primary(key), form.secondary(secondary)) for key in keys]
    if opened.configuration.secondary_key_length:
        found = opened.get_all(stored, fresh=True)
    else:
        found = opened.get_all([_only(table, *key) for key in stored], fresh=True)
    entries = [entry for entry in found if entry is not None]
    if len(entries) < len(keys):
        missing = [key for key, entry in zip(keys, found, strict=True) if entry is None]
        raise NoSuchKey(f"table {table} has no entry of {', '.join(map(repr, missing))}.")
    if raw:
        sys.stdout.buffer.write(entries[0].value)
        sys.stdout.buffer.flush()
        return
    records = [form.record(entry, value_form) for entry in entries]
    if output != TABLE:
        show_value(records[0] if len(records) == 1 else records, output)
    elif len(records) == 1:
        value = _cell(records[0]["value"])
        click.echo(printable_lines(value) if sys.stdout.isatty() else value)
    else:
        _show(records)


def _only(table: str, primary: Any, secondary: bytes) -> Any:
    if secondary:
        raise InvalidInput(f"keys of table {table} have no secondary part: leave it out.")
    return primary


@click.command(
    epilog=examples(
        "kvt scan nyc/carriers --prefix U", "kvt scan nyc/carriers --from A --to F -n 100"
    )
)
@click.argument("table")
@click.option("--prefix", metavar="KEY", help="Only keys that begin so.")
@click.option("--from", "low", metavar="KEY", help="From this key on.")
@click.option("--to", "high", metavar="KEY", help="Up to this key, itself included.")
@click.option("--key", "primary", metavar="KEY", help="Only entries of this primary key.")
@click.option("-n", "--num", type=click.IntRange(1), help="At most this many entries.")
@click.option("--at", "version", type=int, metavar="VERSION", help="As of this version.")
@click.option("--keys-only", is_flag=True, help="Without values.")
@keys_option
@values_option
@root_option
@output_option
def scan(
    table: str,
    prefix: str | None,
    low: str | None,
    high: str | None,
    primary: str | None,
    num: int | None,
    version: int | None,
    keys_only: bool,
    key_form: str,
    value_form: str,
    root: str | None,
    output: str,
) -> None:
    """Print the entries of TABLE in the order of their keys, as of one version.

    A table on a terminal, and elsewhere a line of JSON for each entry; --output says otherwise.
    """
    manager, store = open_root(root)
    check_begun(store, [table_log(*split_table(table))])
    opened = manager.key_value_table(table)
    form = KeyForm(opened, key_form)
    given = {"prefix": prefix, "low": low, "high": high, "primary": primary}
    bounds: dict[str, Any] = {
        name: form.primary(text) for name, text in given.items() if text is not None
    }
    entries: Iterator[TableEntry] = opened.at(version).entries(**bounds)
    shown_form = None if keys_only else value_form
    records = (form.record(entry, shown_form) for entry in itertools.islice(entries, num))
    if output != TABLE:
        show_value(list(records), output)
    elif _is_piped():
        for record in records:
            click.echo(json_text(record))
    else:
        _show(list(records), keys_only=keys_only)


def _is_piped() -> bool:
    source = click.get_current_context().get_parameter_source("output")
    return source is ParameterSource.DEFAULT and not sys.stdout.isatty()


def _show(records: Iterable[dict[str, Any]], *, keys_only: bool = False) -> None:
    """Print records as a table; a secondary key follows its primary key."""
    found = list(records)
    names = ["key", *(["secondary_key"] if found and "secondary_key" in found[0] else [])]
    names += [*([] if keys_only else ["value"]), "version"]
    headings = [name.replace("_", "-").upper() for name in names]
    show_table(headings, [[_cell(record[name]) for name in names] for record in found])


def _cell(value: Any) -> str:
    """Return a value on one line: a text that UTF-8 has as it is, anything else as JSON."""
    return value if type(value) is str and is_utf8(value) else json_text(value)
