"""``pravega-spark reader-group``: the verbs of reader groups."""

from __future__ import annotations

import click

from pravega_spark.cli.lazy_commands import Commands, LazyCommands

_VERBS: Commands = {
    "create": ("reader_group_life:create", "Create a group."),
    "delete": ("reader_group_life:delete", "Delete groups with their positions."),
    "describe": ("reader_group_listing:describe", "Show groups and their lag by segment."),
    "ls": ("reader_group_listing:list_groups", "List the groups of a scope, or of all."),
    "reset": ("reader_group_reset:reset", "Move the positions of a group."),
    "sync": ("reader_group_sync:sync", "Acknowledge the last batch of a Spark checkpoint."),
}


@click.group("reader-group", cls=LazyCommands, table=_VERBS)
def reader_group() -> None:
    """Reader groups: their streams, readers, positions and lag."""
