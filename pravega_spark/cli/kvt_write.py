"""``pravega-spark kvt put | remove``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from pravega_spark.cli.exact_json import parse_json
from pravega_spark.cli.input_records import without_mark
from pravega_spark.cli.kvt_keys import KeyForm, keys_option, values_option
from pravega_spark.cli.open_writes import OpenWrites, say_durable, stopped_by_signals
from pravega_spark.cli.output import confirm, examples, output_option, show_done, yes_option
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.cli.value_forms import argument_bytes, to_bytes
from pravega_spark.errors import InvalidInput
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.table_entry import KeyVersion


@click.command(
    epilog=examples(
        "kvt put nyc/carriers UA 'United Air Lines'",
        'kvt put nyc/carriers UA \'{"name": "United"}\' --values json --version 1:0#0=42',
        "kvt put nyc/carriers --separator , < carriers.csv",
        "kvt put nyc/carriers < entries.ndjson",
    )
)
@click.argument("table")
@click.argument("key", required=False)
@click.argument("value", required=False)
@click.option("--secondary", metavar="KEY", help="The secondary key of KEY.")
@click.option("--insert", is_flag=True, help="Only if KEY has no entry.")
@click.option("--version", metavar="VERSION", help="Only if the entry has this version.")
@click.option(
    "--separator",
    metavar="TEXT",
    help="The input has lines KEY<TEXT>VALUE.  [default: lines of JSON, as scan prints them]",
)
@keys_option
@values_option
@root_option
@output_option
def put(
    table: str,
    key: str | None,
    value: str | None,
    secondary: str | None,
    insert: bool,
    version: str | None,
    separator: str | None,
    key_form: str,
    value_form: str,
    root: str | None,
    output: str,
) -> None:
    """Set the VALUE of a KEY of TABLE; without them, of each line of the standard input.

    A VALUE of - is read from the standard input as it is. The lines of an input are written in
    batches: after a failure some are set, and the same input can be put again.
    """
    single = {"--secondary": secondary, "--insert": insert or None, "--version": version}
    if key is None and any(given is not None for given in single.values()):
        raise click.UsageError(f"{', '.join(single)} are for one KEY.")
    if key is not None and (value is None or separator is not None):
        raise click.UsageError("Give a VALUE for KEY (- reads it from the input), or no KEY.")
    if insert and version is not None:
        raise click.UsageError("--insert and --version exclude each other.")
    manager, _ = open_root(root)
    if key is None:
        puts = OpenWrites()
        try:
            with stopped_by_signals(), manager.key_value_table(table) as opened:
                _put_all(opened, KeyForm(opened, key_form), value_form, separator, puts)
        except BaseException as error:
            say_durable(f"table {table}", puts.durable_text("put", error), error)
            raise
        count = puts.begun
        entries = "1 entry" if count == 1 else f"{count:,} entries"
        show_done({"table": table, "puts": count}, f"Put {entries} in {table}.", output)
        return
    assert value is not None
    with manager.key_value_table(table) as opened:
        form = KeyForm(opened, key_form)
        data = sys.stdin.buffer.read() if value == "-" else _value(key, value_form, value)
        at = form.primary(key), form.secondary(secondary)
        if insert:
            made = opened.insert(at[0], data, at[1])
        elif version is not None:
            made = opened.replace(at[0], data, KeyVersion.parse(version), at[1])
        else:
            made = opened.put(at[0], data, at[1]).result()
    show_done({"table": table, "key": key, "version": str(made)}, f"Put {key}: {made}.", output)


def _value(key: str, form: str, text: str) -> bytes:
    return argument_bytes(f"the value of {key!r}", form, text)


def _put_all(
    table: KeyValueTable, form: KeyForm, value_form: str, separator: str | None, puts: OpenWrites
) -> None:
    """Put the entries of the standard input, and wait until all are durable.

    Raises InvalidInput, which names the line, for one that is no entry of the table.
    """
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = _text(without_mark(line, number))
            if separator is None and not text.strip():
                continue
            primary, secondary, value = (
                _parsed(form, value_form, text)
                if separator is None
                else _separated(form, value_form, text, separator)
            )
            write = table.put(primary, value, secondary)
        except InvalidInput as error:
            raise InvalidInput(f"line {number:,} of the input: {error}") from error
        puts.add(write)
    puts.end()


def _text(line: bytes) -> str:
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"it is no text in UTF-8: {error}.") from None


def _separated(
    form: KeyForm, value_form: str, text: str, separator: str
) -> tuple[Any, bytes, bytes]:
    key, found, value = text.partition(separator)
    if not found:
        raise InvalidInput(f"it has no separator {separator!r}.")
    return form.primary(key), b"", _value(key, value_form, value)


def _parsed(form: KeyForm, value_form: str, text: str) -> tuple[Any, bytes, bytes]:
    try:
        record = parse_json(text)
    except ValueError as error:
        raise InvalidInput(f"it is no JSON: {error}.") from None
    if not isinstance(record, dict) or not {"key", "value"} <= record.keys():
        raise InvalidInput('it must be an object with the fields "key" and "value".')
    secondary = form.secondary(record.get("secondary_key"))
    value = to_bytes(f"the value of {record['key']!r}", value_form, record["value"])
    return form.primary(record["key"]), secondary, value


@click.command(
    epilog=examples(
        "kvt remove nyc/carriers UA --yes", "kvt remove nyc/carriers UA --version 1:0#0=42 --yes"
    )
)
@click.argument("table")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@click.option("--secondary", metavar="KEY", help="The secondary key, for one KEY.")
@click.option("--version", metavar="VERSION", help="Only if the entry has this version.")
@keys_option
@yes_option
@root_option
@output_option
def remove(
    table: str,
    keys: Sequence[str],
    secondary: str | None,
    version: str | None,
    key_form: str,
    yes: bool,
    root: str | None,
    output: str,
) -> None:
    """Remove each KEY of TABLE, if it has an entry."""
    if len(keys) > 1 and (secondary is not None or version is not None):
        raise click.UsageError("--secondary and --version are for one KEY.")
    manager, _ = open_root(root)
    with manager.key_value_table(table) as opened:
        form = KeyForm(opened, key_form)
        stored = [(form.primary(key), form.secondary(secondary)) for key in keys]
        confirm(f"Remove {', '.join(keys)} from {table}?", yes=yes)
        if version is not None:
            opened.remove(*stored[0], version=KeyVersion.parse(version))
        else:
            for future in [opened.remove(*key) for key in stored]:
                future.result()
    text = f"Removed {', '.join(keys)} from {table}."
    show_done({"table": table, "removed": list(keys)}, text, output)
