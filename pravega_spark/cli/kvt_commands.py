"""``pravega-spark kvt``: the verbs of key-value tables."""

from __future__ import annotations

import click

from pravega_spark.cli.lazy_commands import Commands, LazyCommands

_VERBS: Commands = {
    "create": ("kvt_life:create", "Create a table."),
    "delete": ("kvt_life:delete", "Delete tables with their entries."),
    "describe": ("kvt_life:describe", "Show a table: configuration, partitions, what is folded."),
    "get": ("kvt_read:get", "Print the values of keys."),
    "ls": ("kvt_life:list_tables", "List the tables of a scope, or of all."),
    "put": ("kvt_write:put", "Set the value of a key, or of the keys of the input."),
    "remove": ("kvt_write:remove", "Remove keys."),
    "scan": ("kvt_read:scan", "Print entries in the order of their keys."),
}


@click.group("kvt", cls=LazyCommands, table=_VERBS)
def kvt() -> None:
    """Key-value tables: one value a key, on top of a stream."""
