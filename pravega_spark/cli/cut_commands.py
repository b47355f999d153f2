"""``pravega-spark cut``: stream cuts, and the names under which streams save them."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from pravega_spark.cli.lazy_commands import Group
from pravega_spark.cli.output import (
    TABLE,
    TableColumn,
    confirm,
    count,
    examples,
    moment,
    output_option,
    show_block,
    show_done,
    show_records,
    show_table,
    show_value,
    size,
    yes_option,
)
from pravega_spark.cli.positions import parse_position
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.engine.kinds import log_title
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.saved_cuts import SavedCut, saved_cuts
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidStreamCut, NoSuchCut, NoSuchStream, TruncatedData
from pravega_spark.values.segments import END, StreamCut, segment_text
from pravega_spark.values.units import count_text

_COLUMNS = (
    TableColumn("NAME", "name"),
    TableColumn("SAVED", "saved_ms", moment),
    TableColumn("AFTER-IT", "events_after", count),
    TableColumn("CUT", "cut"),
)
_HEADINGS = ("SEGMENT", "OFFSET", "HEAD", "TAIL", "BEFORE-IT", "AFTER-IT")


@click.group("cut", cls=Group)
def cut() -> None:
    """Stream cuts: positions in a stream, and names for them."""


@cut.command(
    epilog=examples(
        "cut save nyc/flights end-of-march",
        "cut save nyc/flights end-of-march --at @2026-03-31T24:00:00 --replace",
    )
)
@click.argument("stream")
@click.argument("name")
@click.option(
    "--at",
    default="end",
    show_default=True,
    metavar="POSITION",
    help="A position, as in `stream read`.",
)
@click.option("--replace", is_flag=True, help="Replace the cut that NAME has.")
@root_option
@output_option
def save(stream: str, name: str, at: str, replace: bool, root: str | None, output: str) -> None:
    """Save a position of STREAM under NAME, by default its tail. A saved cut holds no data.

    The option startingStreamCut of Spark, and each POSITION of this command line, accept the NAME.
    """
    manager, _ = open_root(root)
    position = StreamCut.LATEST if at == "end" else parse_position(manager, stream, at)
    saved = manager.save_cut(stream, name, position, replace=replace)
    show_done(_record(saved), f"Saved {saved.cut} as {name}.", output)


def _record(saved: SavedCut) -> dict[str, Any]:
    return {
        "stream": saved.cut.stream,
        "name": saved.name,
        "cut": str(saved.cut),
        "saved_ms": saved.saved_ms,
        "version": saved.version,
    }


@cut.command("ls", epilog=examples("cut ls nyc/flights"))
@click.argument("stream")
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@root_option
@output_option
def list_cuts(stream: str, quiet: bool, root: str | None, output: str) -> None:
    """List the saved cuts of STREAM, and the events after each of them."""
    _, store = open_root(root)
    check_begun(store, [stream])

    def records(view: StreamView) -> list[dict[str, Any]]:
        return [
            {**_record(saved), "events_after": _events_after(view, saved.cut)}
            for saved in saved_cuts(view)
        ]

    show_records(open_stream(store, stream).on_newest(records), _COLUMNS, output, quiet=quiet)


def _events_after(view: StreamView, position: StreamCut) -> int:
    return locate(view, position).above_head().events_to(view.located_tail)


@cut.command(epilog=examples("cut show nyc/flights end-of-march"))
@click.argument("stream")
@click.argument("name")
@root_option
@output_option
def show(stream: str, name: str, root: str | None, output: str) -> None:
    """Show the position of the saved cut NAME of STREAM, like `cut parse`."""
    manager, store = open_root(root)
    check_begun(store, [stream])
    saved = manager.saved_cut(stream, name)
    _show({**_record(saved), **_measured(store, saved.cut)}, output)


@cut.command(epilog=examples("cut parse nyc/flights@1:0#0=120,1#0=98"))
@click.argument("text", metavar="CUT")
@root_option
@output_option
def parse(text: str, root: str | None, output: str) -> int:
    """Show the stream, life and offsets of the text of a CUT, and the events around it.

    BEFORE-IT are events between the head and the cut, AFTER-IT between the cut and the tail. The
    exit status is 1 for a cut that is invalid in its stream.
    """
    position = StreamCut.parse(text)
    if not position.is_bound:
        raise click.UsageError(
            f"{text} is not a cut of a stream: its meaning depends on the time of use."
        )
    _, store = open_root(root)
    check_begun(store, [position.stream])
    record = {"stream": position.stream, "cut": text, **_measured(store, position)}
    _show(record, output)
    return 0 if record["valid"] else 1


def _measured(store: Store, position: StreamCut) -> dict[str, Any]:
    """Return what a cut says, and the events around it if it is valid in its stream."""
    record: dict[str, Any] = {"life": position.life, "valid": True, "reason": None}
    cells = position.to_json()
    try:
        opened = open_stream(store, position.stream)
        return {**record, **opened.on_newest(partial(_in_view, opened, position))}
    except (InvalidStreamCut, NoSuchStream, TruncatedData) as error:
        segments = [{"segment": segment, "offset": offset} for segment, offset in cells.items()]
        return {**record, "valid": False, "reason": str(error), "segments": segments}


def _in_view(stream: StreamLog, position: StreamCut, view: StreamView) -> dict[str, Any]:
    located = locate(view, position)
    readable, lost = located.clipped_to_head()
    head, tail = view.located_head, view.located_tail
    bytes_at = partial(stream.bytes_at, view=view)
    before = head if located.forgotten else readable
    return {
        "lost_events": sum(map(len, lost)),
        "events_before": head.events_to(before),
        "bytes_before": head.bytes_to(before, bytes_at),
        "events_after": readable.events_to(tail),
        "bytes_after": readable.bytes_to(tail, bytes_at),
        "segments": [_segment(view, readable, *cell) for cell in position],
    }


def _segment(
    view: StreamView, readable: LocatedCut, segment_id: int, offset: int
) -> dict[str, Any]:
    text = StreamCut(view.stream, view.life, {segment_id: offset}).to_json()
    known = {"segment": segment_text(segment_id), "offset": text[segment_text(segment_id)]}
    if not view.has_segment(segment_id):
        return known
    head, tail = view.head_offset(segment_id), view.segment(segment_id).next_offset
    at = readable.offset_in(view.lineage.find(segment_id))
    here = tail if at == END else max(at, head)
    return {**known, "head": head, "tail": tail, "before": here - head, "after": tail - here}


def _show(record: dict[str, Any], output: str) -> None:
    if output != TABLE:
        show_value(record, output)
        return
    cells: list[tuple[str, object]] = [("STREAM", record["stream"]), ("LIFE", record["life"])]
    if "name" in record:
        cells += [("NAME", record["name"]), ("SAVED", moment(record["saved_ms"]))]
    cells.append(("CUT", record["cut"]))
    if record["valid"]:
        for heading, key in (("BEFORE-IT", "before"), ("AFTER-IT", "after")):
            events = count_text(record[f"events_{key}"], "event")
            amount = f"{events}, {size(record[f'bytes_{key}'])}"
            cells.append((heading, amount))
        if record["lost_events"]:
            cells.append(("TRUNCATED", f"{count_text(record['lost_events'], 'event')} after it"))
    else:
        cells.append(("INVALID", record["reason"]))
    show_block(cells)
    click.echo()
    keys = ("segment", "offset", "head", "tail", "before", "after")
    show_table(_HEADINGS, [[row.get(key) for key in keys] for row in record["segments"]])


@cut.command(epilog=examples("cut delete nyc/flights end-of-march --yes"))
@click.argument("stream")
@click.argument("name")
@yes_option
@root_option
@output_option
def delete(stream: str, name: str, yes: bool, root: str | None, output: str) -> None:
    """Delete the saved cut NAME of STREAM; no event is deleted."""
    manager, _ = open_root(root)
    saved = manager.saved_cut(stream, name)
    confirm(f"Delete the saved cut {name} of {log_title(stream)}, {saved.cut}?", yes=yes)
    if not manager.delete_cut(stream, name):
        raise NoSuchCut(f"{stream} has no saved cut {name} any more.", stream=stream, name=name)
    show_done({"stream": stream, "name": name, "deleted": True}, f"Deleted {name}.", output)
