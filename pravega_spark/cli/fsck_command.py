"""``pravega-spark fsck``: whether what is stored is intact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from pravega_spark.cli.output import TABLE, output_option, show_table, show_value
from pravega_spark.cli.root_option import open_root, root_option

SOUND, IS_DAMAGED = 0, 1


@click.command("fsck")
@click.argument("streams", nargs=-1, metavar="[SCOPE/STREAM]...")
@click.option("--deep", is_flag=True, help="Also read every event, which verifies every page.")
@root_option
@output_option
def fsck(streams: Sequence[str], deep: bool, root: str | None, output: str) -> int:
    """Check the stored objects of each stream, or of all: commits, chunks, sizes, gaps.

    Changes nothing, and may run while streams are in use. The exit status is 1 if something is
    damaged: restore the named objects from a copy (see docs/backup.md).

    Example: pravega-spark fsck nyc/flights --deep
    """
    from pravega_spark.engine.stream.open_streams import open_stream
    from pravega_spark.integrity.stream_integrity import check_integrity

    manager, store = open_root(root)
    names = streams or [
        name for scope in manager.list_scopes() for name in manager.list_streams(scope)
    ]
    found = [check_integrity(open_stream(store, name), deep=deep) for name in names]
    if output == TABLE:
        headings = ("STREAM", "VERSION", "COMMITS", "FILES", "EVENTS", "DAMAGE")
        show_table(
            headings,
            [
                (
                    f.stream,
                    f.version,
                    f"{f.commits:,}",
                    f"{f.files:,}",
                    f"{f.events:,}",
                    len(f.damage),
                )
                for f in found
            ],
        )
        for integrity in found:
            for damage in integrity.damage:
                click.echo(f"{integrity.stream}: {damage.path}: {damage.reason}", err=True)
    else:
        records: list[dict[str, Any]] = [asdict(integrity) for integrity in found]
        show_value(records, output)
    return SOUND if all(integrity.is_sound for integrity in found) else IS_DAMAGED
