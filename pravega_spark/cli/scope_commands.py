"""``pravega-spark scope``: create, list, describe and delete scopes."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import click

from pravega_spark.cli.lazy_commands import Group
from pravega_spark.cli.many_names import look_at_each
from pravega_spark.cli.output import (
    TableColumn,
    confirm,
    output_option,
    show_done,
    show_record,
    show_records,
    yes_option,
)
from pravega_spark.cli.root_option import new_root, open_root, root_option
from pravega_spark.errors import NoSuchScope

if TYPE_CHECKING:
    from pravega_spark.manager import StreamManager

_COLUMNS = (
    TableColumn("SCOPE", "scope"),
    TableColumn("STREAMS", "streams"),
    TableColumn("READER-GROUPS", "reader_groups"),
    TableColumn("KEY-VALUE-TABLES", "key_value_tables"),
)


@click.group("scope", cls=Group)
def scope() -> None:
    """Scopes: the folders of streams, reader groups and key-value tables."""


@scope.command()
@click.argument("name")
@root_option
@output_option
def create(name: str, root: str | None, output: str) -> None:
    """Create the scope NAME; the first one also makes the root. Safe to repeat.

    Example: pravega-spark scope create nyc --root /tmp/streams
    """
    manager, _ = new_root(root)
    created = manager.create_scope(name)
    text = f"Created scope {name}." if created else f"Scope {name} exists."
    show_done({"scope": name, "created": created}, text, output)


@scope.command("ls")
@click.option("-q", "--quiet", is_flag=True, help="Names only, which costs one call.")
@root_option
@output_option
def list_scopes(quiet: bool, root: str | None, output: str) -> None:
    """List the scopes with the numbers of their streams, groups and tables."""
    manager, _ = open_root(root)
    names = sorted(manager.list_scopes())
    look = (lambda name: {"scope": name}) if quiet else partial(_listed, manager)
    with look_at_each(look, names, "scopes") as records:
        show_records(records, _COLUMNS, output, quiet=quiet)


def _listed(manager: StreamManager, name: str) -> dict[str, object] | None:
    with contextlib.suppress(NoSuchScope):  # deleted since the names were listed
        return _record(manager, name)
    return None


def _record(manager: StreamManager, name: str) -> dict[str, object]:
    from pravega_spark.engine.kinds import GROUP, STREAM, TABLE
    from pravega_spark.manager import root_of

    found = root_of(manager).scope(name).names()
    return {
        "scope": name,
        "streams": len(found[STREAM]),
        "reader_groups": len(found[GROUP]),
        "key_value_tables": len(found[TABLE]),
    }


@scope.command()
@click.argument("name", metavar="SCOPE")
@root_option
@output_option
def describe(name: str, root: str | None, output: str) -> None:
    """Show how many streams, groups and tables SCOPE has."""
    manager, _ = open_root(root)
    show_record(_record(manager, name), _COLUMNS, output)


@scope.command()
@click.argument("name", metavar="SCOPE")
@click.option("--recursive", is_flag=True, help="Also delete its streams, groups and tables.")
@yes_option
@root_option
@output_option
def delete(name: str, recursive: bool, yes: bool, root: str | None, output: str) -> None:
    """Delete SCOPE, which must be empty, or with --recursive all that it contains.

    Example: pravega-spark scope delete nyc --recursive --yes
    """
    manager, _ = open_root(root)
    if not manager.scope_exists(name):
        raise NoSuchScope(f"scope {name} does not exist; `scope ls` lists the scopes.", scope=name)
    if recursive:
        confirm(f"Delete scope {name} with all its streams, groups and tables?", yes=yes)
    deleted = manager.delete_scope(name, recursive=recursive)
    text = f"Deleted scope {name}." if deleted else f"Scope {name} was deleted before."
    show_done({"scope": name, "deleted": deleted}, text, output)
