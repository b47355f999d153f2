"""The options ``--root`` and ``--output`` of all commands, and the output of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import click

from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import MARKER_KEY, missing_marker
from pravega_spark.manager import StreamManager

_Command = TypeVar("_Command", bound=Callable[..., Any])

UNKNOWN = "-"


def root_option(command: _Command) -> _Command:
    """Add ``--root``; the parameter is None without the option and its variable."""
    return click.option(
        "--root",
        envvar="PRAVEGA_SPARK_ROOT",
        show_envvar=True,
        metavar="FOLDER|URL",
        help="The root of the streams, such as s3://bucket/streams.",
    )(command)


def output_option(command: _Command) -> _Command:
    """Add ``--output``."""
    return click.option(
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="A table for people, or JSON for programs, with plain numbers and errors as JSON.",
    )(command)


def wants_json(argv: Sequence[str]) -> bool:
    """Return True if a command line, valid or not, requests JSON."""
    return "--output=json" in argv or ("--output", "json") in pairwise(argv)


def open_root(root: str | None) -> StreamManager:
    """Return the manager of a root that exists.

    Raises UsageError without a root, InvalidInput for a root without our marker.
    """
    if root is None:
        raise click.UsageError("Missing option '--root' (or the variable PRAVEGA_SPARK_ROOT).")
    store = open_store(root)
    if not store.exists(MARKER_KEY):
        raise missing_marker(store)
    return StreamManager(root)


def show_json(value: Any) -> None:
    """Print a value as one JSON document."""
    click.echo(json.dumps(value, indent=2))


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in columns, None as ``-``."""
    cells = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for row in (headings, *cells):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def show_block(cells: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    named = list(cells)
    width = max(len(name) for name, _ in named)
    for name, value in named:
        click.echo(f"{name.ljust(width)}  {_text(value)}")


def _text(cell: object) -> str:
    return UNKNOWN if cell is None or cell == "" else str(cell)
