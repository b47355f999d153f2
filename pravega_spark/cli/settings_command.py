"""``pravega-spark settings``: the settings that hold for a root, or for streams; and changes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from pravega_spark.cli.output import TABLE, output_option, show_table, show_value
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.config.root_settings import (
    SETTING_NAMES,
    STREAM_SETTING_NAMES,
    EffectiveSettings,
    rule_of,
)

_HEADINGS = ("STREAM", "SETTING", "VALUE", "ORIGIN", "DEFAULT")


@click.command("settings")
@click.argument("streams", nargs=-1, metavar="[STREAM]...")
@click.option(
    "--setting",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give the root a setting before they are shown; may be repeated. Without a value the "
    "default holds again. `stream update --setting` gives a stream its own.",
)
@root_option
@output_option
def settings(streams: Sequence[str], changes: Sequence[str], root: str | None, output: str) -> None:
    """Show the settings of the root, or those that hold for each STREAM (scope/stream)."""
    manager, _ = open_root(root)
    if changes:
        manager.update_settings(**parse_settings(changes))
    rows = [
        row
        for name in streams
        for row in _rows(name, manager.stream_settings(name), STREAM_SETTING_NAMES)
    ]
    if not streams:
        rows = _rows(None, manager.settings(), SETTING_NAMES)
    if output != TABLE:
        keys = list(map(str.lower, _HEADINGS))
        show_value([dict(zip(keys, row, strict=True)) for row in rows], output)
    else:
        show_table(_HEADINGS, rows)


def parse_settings(given: Sequence[str]) -> dict[str, str | None]:
    """Return ``NAME=VALUE`` as settings; without a value the setting is not given any more."""
    pairs = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"--setting {text!r} must be NAME=VALUE.")
        pairs[name.strip()] = value.strip() or None
    return pairs


def _rows(
    stream: str | None, found: EffectiveSettings, names: Sequence[str]
) -> list[tuple[str | None, ...]]:
    return [
        (stream, name, found.text(name), found.origin(name).value, rule_of(name).default)
        for name in names
    ]
