"""How a command ends: its exit status, and its error as a line or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from pravega_spark.advice import command_line_advice
from pravega_spark.cli import INTERRUPTED
from pravega_spark.cli.commands import PROG, commands
from pravega_spark.cli.lazy_commands import CommandMissing
from pravega_spark.cli.many_names import DamagedNames
from pravega_spark.cli.open_writes import Stopped
from pravega_spark.cli.output import wants_json
from pravega_spark.errors import InvalidInput, PravegaSparkError
from pravega_spark.primitives.printable import printable

FAILED, MISUSED, UNKNOWN = 1, 2, 3


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit status; print an error as a line or as JSON."""
    try:
        done = commands.main(list(argv), prog_name=PROG, standalone_mode=False)
        return done if isinstance(done, int) else 0
    except CommandMissing as error:
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
