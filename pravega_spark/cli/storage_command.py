"""``pravega-spark storage``: what streams store, and why."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import click

from pravega_spark.cli.output import TABLE, output_option, show_table, show_value
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.engine.stream.stored_bytes import StorageInfo
from pravega_spark.values.units import size_text

_HEADINGS = ("STREAM", "KIND", "FILES", "SIZE", "DELETABLE", "REASON")


@click.command("storage")
@click.argument("streams", nargs=-1, required=True, metavar="STREAM...")
@root_option
@output_option
def storage(streams: Sequence[str], root: str | None, output: str) -> None:
    """Show what each STREAM (scope/stream) stores and why: files and bytes by kind."""
    manager, store = open_root(root)
    check_begun(store, streams)
    found = [manager.stream_storage(name) for name in streams]
    if output != TABLE:
        show_value([row for info in found for row in _json_rows(info)], output)
    else:
        show_table(_HEADINGS, [row for info in found for row in _text_rows(info)])


def _json_rows(info: StorageInfo) -> list[dict[str, object]]:
    return [
        {
            "stream": info.stream,
            "kind": part.kind.value,
            "files": part.files,
            "size_bytes": part.size_bytes,
            "deletable": part.deletable_ms,
            "reason": part.reason,
        }
        for part in info.parts
    ]


def _text_rows(info: StorageInfo) -> list[tuple[object, ...]]:
    total = info.total
    rows = [
        (
            info.stream,
            part.kind.value,
            f"{part.files:,}",
            size_text(part.size_bytes),
            None if part.deletable_ms is None else _time(part.deletable_ms),
            part.reason,
        )
        for part in info.parts
        if part.files
    ]
    return [*rows, (info.stream, "total", f"{total.files:,}", size_text(total.size_bytes), "", "")]


def _time(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1_000, timezone.utc):%Y-%m-%d %H:%M}"
