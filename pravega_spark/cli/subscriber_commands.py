"""``pravega-spark subscriber``: who holds data of a stream, and plain subscribers' calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from pravega_spark.cli.lazy_commands import Group
from pravega_spark.cli.output import (
    TableColumn,
    confirm,
    count,
    duration,
    examples,
    moment,
    output_option,
    show_done,
    show_record,
    show_records,
    size,
    yes_option,
)
from pravega_spark.cli.positions import parse_position
from pravega_spark.cli.root_option import check_begun, open_root, root_option
from pravega_spark.config.descriptions import SubscriberInfo
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import NoSuchSubscriber
from pravega_spark.values.names import is_group

_SUMMARY = (
    TableColumn("SUBSCRIBER", "subscriber"),
    TableColumn("KIND", "kind"),
    TableColumn("GENERATION", "generation"),
    TableColumn("HOLDS", "holds_events", count),
    TableColumn("HOLDS-BYTES", "holds_bytes", size),
    TableColumn("SILENT", "silent_seconds", duration),
)
_DETAILS = (
    TableColumn("STREAM", "stream"),
    *_SUMMARY,
    TableColumn("SINCE", "since_ms", moment),
    TableColumn("PUBLISHED", "published_ms", moment),
    TableColumn("CUT", "cut"),
)


@click.group("subscriber", cls=Group)
def subscriber() -> None:
    """Subscribers: a retention policy by consumption keeps the events of a stream for them."""


def _records(store: Store, stream: str) -> list[dict[str, Any]]:
    opened = open_stream(store, stream)

    def measured(view: StreamView) -> list[dict[str, Any]]:
        return [_record(opened, view, info) for info in subscribers.listed(view)]

    return opened.on_newest(measured)


def _record(stream: StreamLog, view: StreamView, info: SubscriberInfo) -> dict[str, Any]:
    events = size_bytes = None
    if info.cut is not None:
        start = locate(view, info.cut).above_head()
        events = start.events_to(view.located_tail)
        size_bytes = start.bytes_to(view.located_tail, partial(stream.bytes_at, view=view))
    last_ms = info.published_ms or info.since_ms
    return {
        "stream": stream.name,
        "subscriber": info.name,
        "kind": "reader group" if is_group(info.name) else "plain",
        "generation": info.generation,
        "holds_events": events,
        "holds_bytes": size_bytes,
        "silent_seconds": max(0.0, (stream.now_ms() - last_ms) / 1_000),
        "since_ms": info.since_ms,
        "published_ms": info.published_ms,
        "cut": None if info.cut is None else str(info.cut),
    }


@subscriber.command("ls", epilog=examples("subscriber ls nyc/flights"))
@click.argument("stream")
@click.option("-q", "--quiet", is_flag=True, help="Names only.")
@root_option
@output_option
def list_subscribers(stream: str, quiet: bool, root: str | None, output: str) -> None:
    """List the subscribers of STREAM, and how much it keeps for each of them."""
    _, store = open_root(root)
    check_begun(store, [stream])
    show_records(_records(store, stream), _SUMMARY, output, quiet=quiet)


@subscriber.command(epilog=examples("subscriber describe nyc/flights archive"))
@click.argument("stream")
@click.argument("name")
@root_option
@output_option
def describe(stream: str, name: str, root: str | None, output: str) -> None:
    """Show from which cut on STREAM keeps events for the subscriber NAME."""
    _, store = open_root(root)
    check_begun(store, [stream])
    records = _records(store, stream)
    for record in records:
        if record["subscriber"] == name:
            show_record(record, _DETAILS, output)
            return
    known = ", ".join(record["subscriber"] for record in records) or "none"
    raise NoSuchSubscriber(
        f"{name} is not a subscriber of stream {stream}, which has {known}.",
        stream=stream,
        subscriber=name,
    )


_generation_option = click.option(
    "--generation", type=int, metavar="N", help="The one that subscribe printed."
)


@subscriber.command(
    epilog=examples(
        "subscriber subscribe nyc/flights archive",
        "subscriber subscribe nyc/flights archive --start nyc/flights@1:0#0=120",
    )
)
@click.argument("stream")
@click.argument("name")
@click.option("--start", metavar="POSITION", help="Keep events from here on.  [default: the head]")
@_generation_option
@root_option
@output_option
def subscribe(
    stream: str, name: str, start: str | None, generation: int | None, root: str | None, output: str
) -> None:
    """Make STREAM keep the events that a job NAME has not consumed, within its policy's maximum.

    For a job that is not a reader group. Safe to repeat. Prints the generation, which processes of
    the job pass on.
    """
    manager, _ = open_root(root)
    position = None if start is None else parse_position(manager, stream, start)
    found = manager.subscribe(stream, name, position, generation=generation)
    done = {"stream": stream, "subscriber": name, "generation": found}
    show_done(done, f"Subscriber {name} of {stream}: generation {found}.", output)


@subscriber.command(epilog=examples("subscriber publish nyc/flights archive end"))
@click.argument("stream")
@click.argument("name")
@click.argument("cut")
@_generation_option
@root_option
@output_option
def publish(
    stream: str, name: str, cut: str, generation: int | None, root: str | None, output: str
) -> None:
    """Record that NAME needs no event of STREAM before CUT, a position as in `stream read`.

    The next run of retention may delete them.
    """
    manager, _ = open_root(root)
    position = str(parse_position(manager, stream, cut))
    changed = manager.publish(stream, name, position, generation=generation)
    text = f"Published {position} for {name} of {stream}."
    done = {"stream": stream, "subscriber": name, "cut": position, "published": changed}
    show_done(done, text if changed else f"{name} of {stream} has published that.", output)


@subscriber.command(epilog=examples("subscriber unsubscribe nyc/flights archive --yes"))
@click.argument("stream")
@click.argument("name")
@_generation_option
@yes_option
@root_option
@output_option
def unsubscribe(
    stream: str, name: str, generation: int | None, yes: bool, root: str | None, output: str
) -> None:
    """Remove the plain subscriber NAME: STREAM no longer keeps events for it."""
    manager, _ = open_root(root)
    confirm(f"Let {stream} delete what it keeps for {name}?", yes=yes)
    changed = manager.unsubscribe(stream, name, generation=generation)
    text = f"Removed {name} from {stream}." if changed else f"{name} does not subscribe {stream}."
    show_done({"stream": stream, "subscriber": name, "removed": changed}, text, output)
