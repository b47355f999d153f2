"""Names that a shell completes: streams, reader groups, key-value tables and scopes of the root."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from pravega_spark.cli.root_option import open_root
from pravega_spark.errors import PravegaSparkError

if TYPE_CHECKING:
    from pravega_spark.manager import StreamManager

_Listed = Callable[["StreamManager", str], Iterable[str]]

_LISTS: Mapping[str, _Listed] = {
    "STREAM": lambda manager, scope: manager.list_streams(scope),
    "GROUP": lambda manager, scope: manager.list_reader_groups(scope),
    "TABLE": lambda manager, scope: manager.list_key_value_tables(scope),
}
"""By the word of an argument's help."""


class _Name(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has no argument
    """A text, completed by the names of the root."""

    name = "text"

    def __init__(self, kinds: Iterable[str]) -> None:
        self._lists = [_LISTS[kind] for kind in kinds if kind in _LISTS]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin so; none if the root cannot be asked."""
        with contextlib.suppress(PravegaSparkError, OSError, click.ClickException), ctx:
            manager = open_root(ctx.params.get("root")).manager
            return [CompletionItem(name) for name in self._names(manager, incomplete)]
        return []

    def _names(self, manager: StreamManager, incomplete: str) -> list[str]:
        """Return names; scopes alone while several begin so."""
        scope, has_scope, _ = incomplete.partition("/")
        scopes = [scope] if has_scope else manager.list_scopes()
        scopes = [name for name in scopes if name.startswith(scope)]
        if not self._lists:
            return scopes
        if len(scopes) > 1:
            return [f"{name}/" for name in scopes]
        names = {name for each in self._lists for one in scopes for name in each(manager, one)}
        return sorted(name for name in names if name.startswith(incomplete))


def complete_names(command: click.Command) -> None:
    """Let a shell complete the names that a command, or a command of a group, takes."""
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        complete_names(each)
    for param in command.params:
        words = re.findall("[A-Z]+", (param.metavar or str(param.name)).upper())
        if "NAME" in words and "SCOPE" in words:
            words = list(_LISTS)
        if param.type is click.STRING and not {"SCOPE", *_LISTS}.isdisjoint(words):
            param.type = _Name(words)
