"""``pravega-spark diff`` and ``apply``: a root as a file declares it."""

from __future__ import annotations

from typing import IO

import click

from pravega_spark.cli.declaration import Declaration, parse_declaration
from pravega_spark.cli.declared_changes import declared_changes
from pravega_spark.cli.output import TABLE, confirm, output_option, show_value, yes_option
from pravega_spark.cli.root_option import new_root, root_option

_SAME, _DIFFERENT = 0, 1


def _read(file: IO[str]) -> Declaration:
    return parse_declaration(file.read(), getattr(file, "name", "standard input"))


@click.command("diff")
@click.argument("file", type=click.File(encoding="utf-8"))
@root_option
@output_option
def diff(file: IO[str], root: str | None, output: str) -> int:
    """Show what `apply` would do for the declarations in FILE (`-`: standard input).

    Lines with + are created, with ~ changed; what the file does not name is left alone. The exit
    status is 1 if anything differs.

    Example: pravega-spark diff streams.yaml
    """
    manager, _ = new_root(root)
    changes = list(declared_changes(manager, _read(file)))
    if output == TABLE:
        for change in changes:
            click.echo(str(change))
    else:
        show_value([change.to_record() for change in changes], output)
    return _DIFFERENT if changes else _SAME


@click.command("apply")
@click.argument("file", type=click.File(encoding="utf-8"))
@yes_option
@root_option
@output_option
def apply(file: IO[str], yes: bool, root: str | None, output: str) -> None:
    r"""Create and change what FILE declares; delete nothing. Safe to repeat.

    \b
    settings: {grace: 1 day}
    scopes:
      nyc:
        streams:
          flights: {scaling: "events:1000,minimum=4", retention: "consumption:1h..7d"}
        key-value-tables:
          prices: {key_type: string, ttl: 7 days}
        reader-groups:
          dashboards: {streams: [nyc/flights], retention: automatic}

    Example: pravega-spark apply streams.yaml --yes
    """
    manager, _ = new_root(root)
    changes = list(declared_changes(manager, _read(file)))
    if output == TABLE:
        for change in changes:
            click.echo(str(change))
    if changes:
        confirm(f"Carry out {len(changes)} changes?", yes=yes)
    for change in changes:
        change.carry_out()
    if output == TABLE:
        click.echo(f"{len(changes)} changes carried out." if changes else "Nothing to change.")
    else:
        show_value([change.to_record() for change in changes], output)
