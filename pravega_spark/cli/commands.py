"""All commands, and their errors as exit status and message."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import click

from pravega_spark import __version__
from pravega_spark.cli.maintain_command import maintain
from pravega_spark.cli.output import wants_json
from pravega_spark.cli.reader_group_commands import reader_group
from pravega_spark.cli.settings_command import settings
from pravega_spark.cli.storage_command import storage
from pravega_spark.errors import InvalidInput, PravegaSparkError

PROG = "pravega-spark"
FAILED, MISUSED, INTERRUPTED = 1, 2, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROG)
def commands() -> None:
    """Inspect and manage the streams and reader groups of a root. Needs no Spark."""


commands.add_command(reader_group)
commands.add_command(settings)
commands.add_command(storage)
commands.add_command(maintain)


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit status; print an error as a line or as JSON."""
    try:
        done = commands.main(list(argv), prog_name=PROG, standalone_mode=False)
        return done if isinstance(done, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return MISUSED
    except click.ClickException as error:
        return _failed(argv, "Usage", f"{error.format_message()}{_advice(error)}", MISUSED)
    except InvalidInput as error:
        return _failed(argv, type(error).__name__, str(error), MISUSED)
    except BrokenPipeError:  # the reader of the pipe has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (PravegaSparkError, OSError) as error:
        return _failed(argv, type(error).__name__, str(error), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED


def _advice(error: click.ClickException) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f" See {error.ctx.command_path} --help."
    return ""


def _failed(argv: Sequence[str], kind: str, message: str, status: int) -> int:
    line = " ".join(message.split())
    if wants_json(argv):
        text = json.dumps({"error": {"type": kind, "message": line}})
    else:
        text = f"{PROG}: {kind}: {line}"
    click.echo(text, err=True)
    return status
