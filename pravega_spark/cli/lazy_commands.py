"""Groups of commands whose modules are imported only when a command runs: each starts fast."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from pravega_spark.cli.near_names import OPENED, add_near_names
from pravega_spark.errors import NotFound

Commands = Mapping[str, tuple[str, str]]
"""By name: ``module:command`` in this package, and a line of help that needs no import."""


_COMPLETING = "_PRAVEGA_SPARK_COMPLETE"
"""The variable by which a shell asks for completions, as click names it."""


class CommandMissing(click.UsageError):
    """A group was called without a command; the message is its help."""


class Group(click.Group):
    """A group of commands, which it takes as misuse to be called without."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raise CommandMissing without arguments, which older click takes as a call for help."""
        if not (args or ctx.resilient_parsing):
            raise CommandMissing(ctx.get_help(), ctx)
        return super().parse_args(ctx, args)


class LazyCommands(Group):
    """A group whose commands are imported when they run."""

    def __init__(self, *args: Any, table: Commands, **kwargs: Any) -> None:
        """Take the table of the commands, and the arguments of a group."""
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is none of this name."""
        if cmd_name not in self._table:
            return None
        module, _, name = self._table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"pravega_spark.cli.{module}"), name)
        assert isinstance(command, click.Command)
        if _COMPLETING in os.environ:
            from pravega_spark.cli.completion import complete_names

            complete_names(command)
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the options; ``--help`` and ``--version`` print here."""
        with _reader_may_end():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of an unknown object also names those that are like it."""
        try:
            with _reader_may_end():
                return super().invoke(ctx)
        except NotFound as error:
            if ctx.parent is None and OPENED in ctx.meta:
                add_near_names(error, ctx.meta[OPENED])
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command if there is none of the given name."""
        near = difflib.get_close_matches(args[0], self._table, 1)
        if near and args[0] not in self._table:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and their lines of help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name][1]) for name in self.list_commands(ctx)])


@contextlib.contextmanager
def _reader_may_end() -> Iterator[None]:
    """End with 0 if the reader of the output ends before the command does, as ``head`` may."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(0) from None
