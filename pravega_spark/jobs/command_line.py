"""Command lines of jobs: what all of them share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click

from pravega_spark.errors import InvalidConfiguration, PravegaSparkError
from pravega_spark.values.units import parse_duration_ms

_WIDTH = 100


class JobCommand(click.Command):
    """The options of one job. Its help shows the job's docstring and epilog line by line."""

    def __init__(self, name: str, doc: str, epilog: str, options: Sequence[click.Option]) -> None:
        """Take the options beside ``--root``."""
        root = click.Option(
            ["--root"],
            required=True,
            type=click.UNPROCESSED,  # manager.root, as main() gets it, may have a file system
            metavar="FOLDER|URL",
            help="The root of the streams, such as s3://bucket/streams.",
        )
        super().__init__(name, params=[root, *options], help=doc, epilog=epilog)
        self.context_settings = {"max_content_width": _WIDTH, "terminal_width": _WIDTH}

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring as it is."""
        formatter.write(f"\n{(self.help or '').strip()}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog as it is."""
        formatter.write(f"\n{self.epilog}")

    @contextmanager
    def parsed(self, argv: Sequence[str] | None) -> Iterator[SimpleNamespace]:
        """Yield the options of a command line by their names, and ``given``: those that it names.

        The block checks them. Its errors, and those of the command line, end the process with
        status 2, ``--help`` with status 0.
        """
        words = list(sys.argv[1:] if argv is None else argv)
        try:
            with self.make_context(_called(str(self.name)), words) as context:
                named = {name for name in context.params if _is_given(context, name)}
                try:
                    yield SimpleNamespace(**context.params, given=named)
                except PravegaSparkError as error:
                    raise click.UsageError(str(error), context) from error
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)


def _called(job: str) -> str:
    """Return how this process was called: the wheel's command, a file, or else the module."""
    called = os.path.basename(sys.argv[0])
    is_module = getattr(sys.modules["__main__"], "__spec__", None) is not None  # python -m
    if not is_module and called in (f"pravega-spark-{job.replace('_', '-')}", f"{job}.py"):
        return called
    return f"python -m pravega_spark.jobs.{job}"


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has no argument
    """The values of an option, parsed by a function."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a text; InvalidInput is an error of this option."""
        try:
            return self._parse(value)
        except PravegaSparkError as error:
            self.fail(str(error), param, ctx)


def option(
    *names: str, parse: Callable[[str], Any] | None = None, type: Any = None, **how: Any
) -> click.Option:
    """Return an option that takes a value, which ``parse`` may make of its text."""
    return click.Option(list(names), type=_Parsed(parse) if parse is not None else type, **how)


def flag(*names: str, **how: Any) -> click.Option:
    """Return an option that takes no value."""
    return click.Option(list(names), is_flag=True, **how)


def duration(text: str) -> float:
    """Parse a duration above 0 into seconds."""
    found = parse_duration_ms("the time", text) / 1_000
    if not found:
        raise InvalidConfiguration("must be longer than 0 s.")
    return found
