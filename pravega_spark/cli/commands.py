"""All commands: in which module each is, and its line in the help."""

from __future__ import annotations

import os

import click

from pravega_spark import __version__
from pravega_spark.cli.lazy_commands import Commands, LazyCommands

PROG = "pravega-spark"

_COMMANDS: Commands = {
    "apply": ("declare:apply", "Create and change the objects that a YAML file declares."),
    "bench": ("bench_command:bench", "Measure a storage, and what it would cost."),
    "check": ("checks:check", "Check streams and groups, for monitoring: exit 0 to 3."),
    "cut": ("cut_commands:cut", "Stream cuts: save, show and parse positions."),
    "demo": ("demo_command:demo", "Write, scale, read and truncate a stream while you watch."),
    "diff": ("declare:diff", "Show what apply would do; exit 1 if anything."),
    "doctor": ("doctor_command:doctor", "Check this machine and the root."),
    "fsck": ("fsck_command:fsck", "Check that the stored objects are intact."),
    "kvt": ("kvt_commands:kvt", "Key-value tables: create, get, put, scan."),
    "maintain": ("maintain_command:maintain", "Do the maintenance of the root."),
    "metrics": ("metrics_command:metrics", "Metrics of the root for Prometheus."),
    "reader-group": (
        "reader_group_commands:reader_group",
        "Reader groups: their streams, readers, positions and lag.",
    ),
    "retention": ("retention_commands:retention", "What streams delete, and keep for whom."),
    "register": ("register_command:register", "Print SQL that puts streams into a catalog."),
    "scope": ("scope_commands:scope", "Scopes: the folders of streams, groups and tables."),
    "serve": ("serve_command:serve", "Show the root as a page, and by Pravega's REST API."),
    "settings": ("settings_command:settings", "The settings of the root, or of streams."),
    "storage": ("storage_command:storage", "What streams store and why."),
    "stream": (
        "streams:stream",
        "Streams: create, read, write, scale, truncate.",
    ),
    "subscriber": ("subscriber_commands:subscriber", "Subscribers for whom a stream keeps events."),
    "txn": ("transactions:txn", "Transactions: list, describe, commit, abort."),
}


@click.group(
    cls=LazyCommands,
    table=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=PROG)
@click.option("--no-color", is_flag=True, help="Print no colours, as with the variable NO_COLOR.")
@click.pass_context
def commands(ctx: click.Context, no_color: bool) -> None:
    """Streams, reader groups, transactions and tables of a root. Never starts Spark.

    A root is named by --root, by the variable PRAVEGA_SPARK_ROOT, or by a profile of the file
    ~/.config/pravega-spark/config.toml (--profile, PRAVEGA_SPARK_PROFILE). The exit status is 0
    for success, 1 for failure, 2 for misuse (3 of check, whose 2 is critical) and 130 for an
    interrupt.
    """
    if no_color or os.environ.get("NO_COLOR"):
        ctx.color = False
