"""Each verb has a help with examples, and what an example names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from pravega_spark.cli.commands import commands

NOUNS = ("cut", "kvt", "reader-group", "retention", "subscriber", "txn")


def verbs() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(commands)
    for noun in NOUNS:
        group = commands.get_command(context, noun)
        assert isinstance(group, click.Group)
        for verb in group.list_commands(context):
            command = group.get_command(context, verb)
            assert command is not None
            yield f"{noun} {verb}", command


@pytest.mark.parametrize(("name", "command"), [pytest.param(*verb, id=verb[0]) for verb in verbs()])
def test_each_verb_has_examples_that_can_be_parsed(name: str, command: click.Command) -> None:
    assert command.help
    examples = re.findall(r"^  pravega-spark (.+)$", command.epilog or "", re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(re.split(r" [<>|] ", example)[0])
        assert " ".join(words[:2]) == name
        with click.Context(command) as context:
            command.parse_args(context, words[2:])
