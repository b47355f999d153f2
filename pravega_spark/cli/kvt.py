"""``pravega-spark kvt``: the verbs of key-value tables."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from pravega_spark.cli.exact_json import is_utf8, json_text, parse_json
from pravega_spark.cli.input import without_bom
from pravega_spark.cli.many_names import look_at_each
from pravega_spark.cli.open_writes import OpenWrites, say_durable, stopped_by_signals
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
    show_table,
    show_value,
    size,
    yes_option,
)
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.cli.value_forms import (
    BASE64,
    FORMS,
    HEX,
    TEXT,
    argument_bytes,
    of_bytes,
    to_bytes,
)
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidInput, NoSuchKey, NoSuchTable
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import KeyVersion, TableEntry
from pravega_spark.key_value.fold import NEVER, FoldDue
from pravega_spark.key_value.key_value_table import KeyValueTable, durable_puts
from pravega_spark.key_value.keys import Key, KeyType
from pravega_spark.key_value.snapshot import table_snapshot
from pravega_spark.manager import root_of
from pravega_spark.primitives.printable import printable_lines
from pravega_spark.values.checks import is_whole, shown
from pravega_spark.values.limits import TABLE_STALENESS, TABLE_VALUE_BYTES
from pravega_spark.values.names import split_table, table_log
from pravega_spark.values.units import count_text

_Command = TypeVar("_Command", bound=Callable[..., Any])

_DIGITS: Final = re.compile("-?[0-9]{1,400}")
"""A whole number as a text; zeros may lead, as in columns of one width."""

keys_option = click.option(
    "-k",
    "--keys",
    "key_form",
    type=click.Choice((TEXT, HEX, BASE64)),
    default=TEXT,
    show_default=True,
    help="The form of keys of bytes, and of secondary keys.",
)
values_option = click.option(
    "-v",
    "--values",
    "value_form",
    type=click.Choice(FORMS),
    default=TEXT,
    show_default=True,
    help="The form of values.",
)


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How the keys of one table are written."""

    table: KeyValueTable
    form: str

    @property
    def _type(self) -> KeyType:
        return KeyType(self.table.configuration.key_type)

    def primary(self, value: object) -> Key:
        """Return a primary key of a JSON record, or of an argument. Raises InvalidInput."""
        if self._type is KeyType.LONG:
            return _whole(self.table.name, value)
        if self._type is KeyType.BYTES:
            return to_bytes(f"a key of table {self.table.name}", self.form, value)
        if type(value) is not str:  # a number is none
            raise InvalidInput(f"a key of table {self.table.name} is a text, got {shown(value)}.")
        return value

    def secondary(self, value: object) -> bytes:
        """Return a secondary key; None is none. Raises InvalidInput."""
        what = f"a secondary key of table {self.table.name}"
        return b"" if value is None else to_bytes(what, self.form, value)

    def record(self, entry: TableEntry, value_form: str | None) -> dict[str, Any]:
        """Return an entry as a record; ``value_form`` None omits the value."""
        key = entry.key
        if isinstance(key, bytes):
            key = of_bytes(f"a key of table {self.table.name}", self.form, key)
        record: dict[str, Any] = {"key": key}
        if self.table.configuration.secondary_key_length:
            what = f"a secondary key of table {self.table.name}"
            record["secondary_key"] = of_bytes(what, self.form, entry.secondary_key)
        if value_form is not None:
            what = f"the value of key {key!r} of table {self.table.name}"
            record["value"] = of_bytes(what, value_form, entry.value)
        return {
            **record,
            "version": str(entry.version),
            "timestamp_ms": entry.timestamp_us // 1_000,
        }


def _whole(table: str, value: object) -> int:
    if is_whole(value) or (isinstance(value, str) and _DIGITS.fullmatch(value)):
        return int(value)  # type: ignore[call-overload, no-any-return]
    raise InvalidInput(f"a key of table {table} is a whole number, got {shown(value)}.")


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
    help="The type of the primary keys.",
)
@click.option(
    "--primary-length",
    type=int,
    metavar="N",
    help="The length in bytes of all primary keys, if they are bytes.",
)
@click.option(
    "--secondary-length",
    type=int,
    default=0,
    metavar="N",
    help="The length in bytes of all secondary keys; 0 for none.",
)
@click.option("-p", "--partitions", type=int, default=1, show_default=True, metavar="N")
@click.option("--ttl", metavar="TIME", help="Hide entries older than this.")
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
        secondary_key_length=secondary_length,
        partitions=partitions,
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
    found = root_of(manager).in_scopes(listed, None if scope is None else [scope])

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
    """Show the configuration of TABLE, and how far it is folded."""
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
@click.option("--prefix", metavar="KEY", help="Only keys with this prefix.")
@click.option("--from", "low", metavar="KEY", help="From this key on.")
@click.option("--to", "high", metavar="KEY", help="Up to this key, itself included.")
@click.option("--key", "primary", metavar="KEY", help="Only entries of this primary key.")
@click.option("-n", "--num", type=click.IntRange(1), help="At most this many entries.")
@click.option(
    "--at", "version", type=int, metavar="VERSION", help="Read this version of the table."
)
@click.option("--keys-only", is_flag=True, help="Leave out the values.")
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

    Prints a table on a terminal, and elsewhere a line of JSON for each entry, unless --output names
    a form.
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
                puts.counted = lambda: durable_puts(opened)
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

    Raises InvalidInput, which names the line, for a line that is not an entry of the table.
    """
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = _text(without_bom(line, number))
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
        raise InvalidInput(f"it is not valid UTF-8: {error}.") from None


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
        raise InvalidInput(f"it is not valid JSON: {error}.") from None
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
