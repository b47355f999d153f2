"""``pravega-spark fsck``: whether what is stored is intact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from pravega_spark.cli.output import TABLE, output_option, say, show_table, show_value
from pravega_spark.cli.root_option import new_root, root_option

SOUND, IS_DAMAGED = 0, 1


@click.command("fsck")
@click.argument("names", nargs=-1, metavar="[SCOPE/NAME]...")
@click.option(
    "--deep", is_flag=True, help="Also read every event and file, which verifies every page."
)
@root_option
@output_option
def fsck(names: Sequence[str], deep: bool, root: str | None, output: str) -> int:
    """Check the stored objects of streams, groups and tables, or of the root: commits and files.

    Changes nothing, and may run while streams are in use. The exit status is 1 if something is
    damaged: restore the named objects from a copy (see docs/backup.md); and if --deep left chunks
    unchecked, since a key service does not answer. Damage that repairs itself is only reported.

    Example: pravega-spark fsck nyc/flights --deep
    """
    from pravega_spark.engine.store.root_marker import MARKER_KEY, missing_marker, some_scopes
    from pravega_spark.integrity.root_integrity import check_root

    _, store = new_root(root)
    if not store.exists(MARKER_KEY) and not some_scopes(store):  # no root, not one without a marker
        raise missing_marker(store)
    found = list(check_root(store, names, deep=deep))
    if output == TABLE:
        counts = [(f.commits, f.files, f.events, len(f.damage)) for f in found]
        rows = [
            (f.name, f.version, *(f"{number:,}" for number in numbers))
            for f, numbers in zip(found, counts, strict=True)
        ]
        show_table(("NAME", "VERSION", "COMMITS", "FILES", "EVENTS", "DAMAGE"), rows)
        for integrity in found:
            for damage in (*integrity.damage, *integrity.unchecked):
                say(f"{integrity.name}: {damage.path}: {damage.reason}", err=True)
            for one in integrity.rebuilt:
                say(
                    f"{integrity.name}: {one.path}: {one.reason} (no damage: it is written again)",
                    err=True,
                )
    else:
        show_value([asdict(integrity) for integrity in found], output)
    is_good = all(integrity.is_sound and integrity.is_complete for integrity in found)
    return SOUND if is_good else IS_DAMAGED
