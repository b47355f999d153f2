"""All commands, and their errors as exit status and message."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import click

from pravega_spark import __version__
from pravega_spark.advice import command_line_advice
from pravega_spark.cli.lazy_commands import Commands, LazyCommands
from pravega_spark.cli.many_names import DamagedNames
from pravega_spark.cli.open_writes import Stopped
from pravega_spark.cli.output import wants_json
from pravega_spark.errors import InvalidInput, PravegaSparkError
from pravega_spark.primitives.printable import printable

PROG = "pravega-spark"
FAILED, MISUSED, UNKNOWN, INTERRUPTED = 1, 2, 3, 130

_COMMANDS: Commands = {
    "apply": ("declare:apply", "Create and change the objects that a YAML file declares."),
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


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit status; print an error as a line or as JSON."""
    try:
        done = commands.main(list(argv), prog_name=PROG, standalone_mode=False)
        return done if isinstance(done, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return _misused(argv)
    except click.ClickException as error:
        text = f"{error.format_message()}{_advice(error)}"
        return _failed(argv, "Usage", text, _misused(argv))
    except InvalidInput as error:
        return _failed(argv, type(error).__name__, str(error), _misused(argv))
    except DamagedNames as damaged:
        return max(_failed(argv, type(e).__name__, str(e), FAILED) for e in damaged.errors)
    except (PravegaSparkError, OSError) as error:
        return _failed(argv, type(error).__name__, str(error), FAILED)
    except (click.Abort, KeyboardInterrupt) as error:
        stopped = error if isinstance(error, Stopped) else error.__cause__
        return stopped.status if isinstance(stopped, Stopped) else INTERRUPTED


def _misused(argv: Sequence[str]) -> int:
    """Return the status of misuse; to what monitors, 2 would be critical."""
    command = next((word for word in argv if not word.startswith("-")), None)
    return UNKNOWN if command == "check" else MISUSED


def _advice(error: click.ClickException) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f" See {error.ctx.command_path} --help."
    return ""


def _failed(argv: Sequence[str], kind: str, message: str, status: int) -> int:
    line = printable(" ".join(command_line_advice(message).split()))
    if wants_json(argv):
        text = json.dumps({"error": {"type": kind, "message": line}})
    else:
        text = f"{PROG}: {kind}: {line}"
    click.echo(text, err=True)
    return status
