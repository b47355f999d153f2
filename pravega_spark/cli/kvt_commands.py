"""``pravega-spark kvt``: the verbs of key-value tables."""

from __future__ import annotations

import click

from pravega_spark.cli.lazy_commands import Commands, LazyCommands

_VERBS: Commands = {
    "create": ("kvt:create", "Create a table."),
    "delete": ("kvt:delete", "Delete tables with their entries."),
    "describe": ("kvt:describe", "Show a table: configuration, partitions and fold."),
    "get": ("kvt:get", "Print the values of keys."),
    "ls": ("kvt:list_tables", "List the tables of a scope, or of all."),
    "put": ("kvt:put", "Set the value of a key, or of the keys of the input."),
    "remove": ("kvt:remove", "Remove keys."),
    "scan": ("kvt:scan", "Print entries in the order of their keys."),
}


@click.group("kvt", cls=LazyCommands, table=_VERBS)
def kvt() -> None:
    """Key-value tables: one value for each key, on top of a stream."""
