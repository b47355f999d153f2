"""The option ``--output`` of all commands, and the output of records as table, JSON or YAML."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, TypeVar

import click

from pravega_spark.cli.exact_json import JsonNumber, json_text, parse_json
from pravega_spark.primitives.printable import (
    cell_text,
    is_printable,
    printable,
    printable_lines,
    table_lines,
)
from pravega_spark.values.units import size_text, time_text

_Command = TypeVar("_Command", bound=Callable[..., Any])

TABLE, JSON, YAML = "table", "json", "yaml"
FORMATS = (TABLE, JSON, YAML)
Record = Mapping[str, Any]


def output_option(command: _Command) -> _Command:
    """Add ``--output``."""
    return click.option(
        "--output",
        type=click.Choice(FORMATS),
        default=TABLE,
        show_default=True,
        help="A table for people; JSON or YAML for programs, with plain numbers and JSON errors.",
    )(command)


def wants_json(argv: Sequence[str]) -> bool:
    """Return True if a command line, valid or not, wants its errors as JSON."""
    return any(
        f"--output={kind}" in argv or ("--output", kind) in pairwise(argv) for kind in (JSON, YAML)
    )


def examples(*lines: str) -> str:
    """Return the end of a command's help: command lines to paste, as they are."""
    return shown_as_it_is("Examples:", *(f"pravega-spark {line}" for line in lines))


def shown_as_it_is(heading: str, *lines: str) -> str:
    """Return a paragraph of help whose lines click does not fill."""
    return "\b\n" + "\n".join([heading, *(f"  {line}" for line in lines)])


# --------------------------------------------------------------------------------------- records


def say(text: object, *, err: bool = False) -> None:
    """Print a line for a person: a text that others gave moves no cursor and makes no line."""
    click.echo(printable(str(text)), err=err)


def say_lines(text: object) -> None:
    """Print lines for a person, each as :func:`say` does."""
    click.echo(printable_lines(str(text)))


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: its heading, the field of the record, and the text of a value."""

    heading: str
    key: str
    text: Callable[[Any], object] = lambda value: value


def show_records(
    records: Sequence[Record], columns: Sequence[TableColumn], output: str, *, quiet: bool = False
) -> None:
    """Print records as rows of a table, or whole as JSON or YAML.

    ``quiet`` prints the first column alone: the names.
    """
    if output != TABLE:
        show_value([record[columns[0].key] for record in records] if quiet else records, output)
    elif quiet:
        for record in records:
            say(record[columns[0].key])
    else:
        rows = [[_cell(record, column) for column in columns] for record in records]
        show_table([column.heading for column in columns], rows)


def show_record(record: Record, columns: Sequence[TableColumn], output: str) -> None:
    """Print one record as a block of names and values, or as JSON or YAML."""
    if output == TABLE:
        show_block((column.heading, _cell(record, column)) for column in columns)
    else:
        show_value(record, output)


def show_done(record: Record, text: str, output: str) -> None:
    """Print what a verb did: a sentence for people, the record for programs."""
    if output == TABLE:
        say(text)
    else:
        show_value(record, output)


def show_value(value: Any, output: str) -> None:
    """Print a value as one document of JSON or YAML."""
    if output == YAML:
        import yaml

        yaml.SafeDumper.add_representer(JsonNumber, _yaml_number)
        yaml.SafeDumper.add_representer(str, _yaml_text)
        plain = parse_json(json_text(value))
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        click.echo(printable_lines(text), nl=False)  # YAML has the same escapes within quotes
    else:
        click.echo(json_text(value, indent=""))


def _yaml_text(dumper: Any, text: str) -> Any:
    style = None if is_printable(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _yaml_number(dumper: Any, number: JsonNumber) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:float", str(number))


def _cell(record: Record, column: TableColumn) -> object:
    value = record[column.key]
    return None if value is None else column.text(value)


# ------------------------------------------------------------------------------- tables and texts


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in columns, None as ``-``."""
    heading, *lines = table_lines(headings, rows)
    click.echo(click.style(heading, bold=True))
    for line in lines:
        click.echo(line)


def show_block(cells: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    named = list(cells)
    width = max(len(name) for name, _ in named)
    for name, value in named:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {cell_text(value)}")


def count(value: int) -> str:
    """Return a number for people: 1,234."""
    return f"{value:,}"


def names(values: Iterable[str]) -> str:
    """Return names for a cell, comma-separated."""
    return ",".join(values)


def size(value: int) -> str:
    """Return bytes for people."""
    return size_text(value)


def duration(seconds: float) -> str:
    """Return seconds for people."""
    return time_text(seconds)


def moment(time_ms: int) -> str:
    """Return ms since 1970 as a time in UTC, to the second."""
    return f"{datetime.fromtimestamp(time_ms / 1_000, timezone.utc):%Y-%m-%d %H:%M:%S}"


# ------------------------------------------------------------------------------------- questions

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what cannot be undone; without a terminal, ``--yes`` must have said so.

    Raises UsageError without a terminal, Abort for a no.
    """
    if yes:
        return
    question = printable(question)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{question} Pass --yes to do it without a terminal.")
    click.confirm(question, abort=True, err=True)
