"""``pravega-spark diff`` and ``apply``: a root as a file declares it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import click

from pravega_spark.cli.declaration import Declaration, parse_declaration
from pravega_spark.cli.declared_changes import DeclaredChange, declared_changes
from pravega_spark.cli.output import (
    TABLE,
    confirm,
    examples,
    output_option,
    say_lines,
    show_value,
    shown_as_it_is,
    yes_option,
)
from pravega_spark.cli.root_option import new_root, root_option
from pravega_spark.errors import PravegaSparkError
from pravega_spark.units import count_text

_SAME, _DIFFERENT = 0, 1


def _read(file: BinaryIO) -> Declaration:
    name = getattr(file, "name", "standard input")
    return parse_declaration(file.read(), name, Path(name).parent)


@click.command("diff")
@click.argument("file", type=click.File("rb"))
@root_option
@output_option
def diff(file: BinaryIO, root: str | None, output: str) -> int:
    """Show what `apply` would do for the declarations in FILE (`-`: standard input).

    Lines with + are created, with ~ changed; what the file does not name is left alone. The exit
    status is 1 if anything differs.

    Example: pravega-spark diff streams.yaml
    """
    manager, _ = new_root(root)
    changes = list(declared_changes(manager, _read(file)))
    if output == TABLE:
        for change in changes:
            say_lines(change)
    else:
        show_value([change.to_record() for change in changes], output)
    return _DIFFERENT if changes else _SAME


_EXAMPLE = """\
settings: {grace: 1 day}
scopes:
  nyc:
    streams:
      flights: {scaling: "events:1000,minimum=4", retention: "consumption:1h..7d"}
      delays: {schema: "carrier string not null, delay int"}
    key-value-tables:
      prices: {key_type: string, ttl: 7 days}
    reader-groups:
      dashboards: {streams: [nyc/flights], retention: automatic}"""


@click.command(
    "apply",
    epilog="\n\n".join(
        (shown_as_it_is("A FILE:", *_EXAMPLE.splitlines()), examples("apply streams.yaml --yes"))
    ),
)
@click.argument("file", type=click.File("rb"))
@yes_option
@root_option
@output_option
def apply(file: BinaryIO, yes: bool, root: str | None, output: str) -> None:
    """Create and change what FILE declares; delete nothing. Safe to repeat."""
    manager, _ = new_root(root)
    changes = list(declared_changes(manager, _read(file)))
    if output == TABLE:
        for change in changes:
            say_lines(change)
    if changes:
        confirm(f"Carry out {count_text(len(changes), 'change')}?", yes=yes)
    _carry_out(changes)
    if output == TABLE:
        click.echo(
            f"{count_text(len(changes), 'change')} carried out."
            if changes
            else "Nothing to change."
        )
    else:
        show_value([change.to_record() for change in changes], output)


def _carry_out(changes: Sequence[DeclaredChange]) -> None:
    """Carry the changes out in order; an error also says which were, and which was not."""
    for number, change in enumerate(changes):
        try:
            change.carry_out()
        except PravegaSparkError as error:
            done = ", ".join(f"{one.kind} {one.name}" for one in changes[:number]) or "nothing"
            error.message = (
                f"{change.kind} {change.name} failed: {error.message} Carried out before it: "
                f"{done} ({number} of {count_text(len(changes), 'change')}). A repeated apply "
                "goes on from there."
            )
            raise
