"""``pravega-spark reader-group create | delete``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from pravega_spark.cli.output import (
    TABLE,
    confirm,
    examples,
    output_option,
    say,
    show_done,
    show_value,
    yes_option,
)
from pravega_spark.cli.positions import is_position, parse_position
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.errors import IllegalState
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.configuration import (
    GroupAcknowledgement,
    GroupRetention,
    ReaderGroupConfiguration,
)
from pravega_spark.reader_groups.description import get_group
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.values.limits import CHECKPOINT_INTERVAL, GROUP_REFRESH
from pravega_spark.values.segments import StreamCut

_NEVER = "never"


@click.command(
    epilog=examples(
        "reader-group create nyc/dashboards nyc/flights",
        "reader-group create nyc/archive nyc/flights --start latest --retention automatic",
        "reader-group create nyc/april nyc/flights --start end-of-march",
    )
)
@click.argument("group")
@click.argument("streams", nargs=-1, required=True, metavar="STREAM...")
@click.option(
    "--start",
    "starts",
    multiple=True,
    metavar="CUT|POSITION",
    help="Where to begin: earliest, latest, a stream cut, which may be repeated, one for each "
    "stream, or a position as in `stream read`, such as a saved cut's name. [default: earliest]",
)
@click.option(
    "--end", "ends", multiple=True, metavar="CUT|POSITION", help="Where to stop, in the same forms."
)
@click.option(
    "--retention",
    type=click.Choice([choice.value for choice in GroupRetention]),
    default=GroupRetention.NONE.value,
    show_default=True,
    help="Whether streams keep what the group has not read: up to its checkpoints (automatic), "
    "or to cuts that it publishes (manual).",
)
@click.option(
    "--acknowledge",
    type=click.Choice([choice.value for choice in GroupAcknowledgement]),
    default=GroupAcknowledgement.NEXT.value,
    show_default=True,
    help="When an event counts as processed.",
)
@click.option(
    "--checkpoint-interval",
    default=CHECKPOINT_INTERVAL,
    show_default=True,
    metavar="TIME|never",
    help="How often the group makes an automatic checkpoint.",
)
@click.option(
    "--refresh",
    default=GROUP_REFRESH,
    show_default=True,
    metavar="TIME",
    help="How often readers look for changes of the group.",
)
@root_option
@output_option
def create(
    group: str,
    streams: Sequence[str],
    starts: Sequence[str],
    ends: Sequence[str],
    retention: str,
    acknowledge: str,
    checkpoint_interval: str,
    refresh: str,
    root: str | None,
    output: str,
) -> None:
    """Create GROUP (scope/group), which reads each STREAM. Safe to repeat."""
    manager, store = open_root(root)
    first = _cuts(manager, "--start", starts, streams)
    last = _cuts(manager, "--end", ends, streams)
    configuration = ReaderGroupConfiguration(
        {name: (first.get(name), last.get(name)) for name in streams},
        retention=retention,
        refresh=refresh,
        checkpoint_interval=None if checkpoint_interval == _NEVER else checkpoint_interval,
        acknowledge=acknowledge,
    )
    created = open_group(store, group).create(configuration)
    text = f"Created reader group {group}." if created else f"Reader group {group} exists."
    show_done({"group": group, "created": created}, text, output)


def _cuts(
    manager: StreamManager, option: str, texts: Sequence[str], streams: Sequence[str]
) -> Mapping[str, StreamCut]:
    """Return the cut of each stream; a word or a position is of all."""
    if len(texts) == 1 and is_position(texts[0]):
        return {name: parse_position(manager, name, texts[0]) for name in streams}
    if any(map(is_position, texts)):
        raise click.UsageError(f"{option} takes one cut for each stream, or one position for all.")
    cuts = [StreamCut.parse(text) for text in texts]
    found = {cut.stream: cut for cut in cuts}
    if len(found) < len(cuts) or ("" in found and len(found) > 1):
        raise click.UsageError(f"{option} takes one cut for each stream, or a word for all.")
    strange = sorted(found.keys() - {*streams, ""})
    if strange:
        raise click.UsageError(f"{option} names {strange[0]}, which the group does not read.")
    return dict.fromkeys(streams, found[""]) if "" in found else found


@click.command(epilog=examples("reader-group delete nyc/dashboards --yes"))
@click.argument("groups", nargs=-1, required=True, metavar="GROUP...")
@click.option("--force", is_flag=True, help="Even while a reader is alive.")
@yes_option
@root_option
@output_option
def delete(groups: Sequence[str], force: bool, yes: bool, root: str | None, output: str) -> None:
    """Delete each GROUP with its positions; streams no longer keep data for it."""
    manager, store = open_root(root)
    for group in groups:
        state = get_group(store, group).state
        living = open_group(store, group).leases.living(state)
        if living and not force:
            raise IllegalState(
                f"reader group {group} is read by {', '.join(living)}: stop them first, or delete "
                "it with --force."
            )
    confirm(f"Delete {', '.join(groups)} with all positions?", yes=yes)
    rows = [{"group": name, "deleted": manager.delete_reader_group(name)} for name in groups]
    if output != TABLE:
        show_value(rows, output)
    else:
        say(f"Deleted {', '.join(groups)}.")
