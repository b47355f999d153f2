"""``pravega-spark maintain``: one round of maintenance, or rounds until a signal, without Spark."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import click

from pravega_spark.cli.output import show_table
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.errors import InvalidInput, NotFound, StoreRefused
from pravega_spark.maintenance.round import (
    RoundStop,
    check_parallelism,
    maintain_root,
    parse_request,
    split_kinds,
)
from pravega_spark.maintenance.rounds import Rounds
from pravega_spark.metrics.textfile import MetricsTextfile, check_textfile
from pravega_spark.values.limits import MAINTAIN_THREADS, STREAM_TIMEOUT
from pravega_spark.values.units import parse_duration_ms

_AS_SET = "as set"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command("maintain")
@click.option("--scope", "scopes", multiple=True, help="Work on this scope; may be repeated.")
@click.option(
    "--stream", "streams", multiple=True, metavar="SCOPE/STREAM", help="Work on this stream."
)
@click.option(
    "--kinds",
    multiple=True,
    help="Do only these kinds, such as retention,sweeping; may be repeated.  [default: all]",
)
@click.option("--once", is_flag=True, help="Do one round of all kinds, as without --interval.")
@click.option(
    "--interval",
    is_flag=False,
    flag_value=_AS_SET,
    metavar="[TIME]",
    help="Keep running: do each kind when its interval in the settings has passed. With TIME, look "
    "what is due after a pause of TIME; without it, when the next kind is due.",
)
@click.option("--dry-run", is_flag=True, help="Show the work that is due, and change nothing.")
@click.option(
    "--full",
    is_flag=True,
    help="Look at every stream fully, even if its hint says that nothing is due.",
)
@click.option(
    "--parallelism",
    type=int,
    default=MAINTAIN_THREADS,
    show_default=True,
    help="The number of streams to work on at the same time.",
)
@click.option(
    "--limit",
    default=STREAM_TIMEOUT,
    show_default=True,
    metavar="TIME",
    help="Fail a kind of work that takes longer than this at a stream.",
)
@click.option(
    "--metrics-textfile",
    metavar="PATH",
    help="After each round, write the metrics of the root to this file *.prom for node_exporter.",
)
@click.argument("more_kinds", nargs=-1, metavar="")
@root_option
def maintain(
    root: str | None,
    scopes: Sequence[str],
    streams: Sequence[str],
    kinds: Sequence[str],
    more_kinds: Sequence[str],
    once: bool,
    interval: str | None,
    parallelism: int,
    metrics_textfile: str | None,
    **options: Any,
) -> int:
    """Do the maintenance of the root: transactions, watermarks, scaling, folding and the rest.

    Each kind of work has its own interval; a stream without news costs one storage call. Prints the
    work done at each stream; the last line is one JSON object. The exit status is 0 if nothing
    failed, 1 if something did, and 2 if the input cannot be used.
    """
    if once and interval is not None:
        raise click.UsageError("--once and --interval exclude each other.")
    if more_kinds and not kinds:
        raise click.UsageError(f"Got unexpected extra argument ({more_kinds[0]})")
    every = split_kinds([*kinds, *more_kinds]) if kinds else None
    request = parse_request(every, scopes, streams, **options)
    pause = None
    if interval not in (None, _AS_SET):
        pause = parse_duration_ms("the interval", interval) / 1_000
        if not pause:
            raise InvalidInput("the interval must be longer than 0 s.")
    threads = check_parallelism(parallelism)
    if metrics_textfile is not None:
        check_textfile("--metrics-textfile", metrics_textfile)
    try:
        manager, store = open_root(root)
        textfile, stop = MetricsTextfile("maintain", manager, metrics_textfile), RoundStop()
        do = partial(maintain_root, store, parallelism=threads, stop=stop)
        rounds = Rounds(
            "maintain",
            store,
            request,
            do,
            stop,
            once=interval is None,
            pause=pause,
            show_table=show_table,
            after=textfile.write,
        )
        with _stopped_by_signals(stop):
            rounds.run()
        return rounds.end()
    except (NotFound, StoreRefused) as error:
        raise click.UsageError(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _stopped_by_signals(stop: RoundStop) -> Iterator[None]:
    """Let signals stop rounds; an ignored one stays ignored."""

    def on_signal(*_: object) -> None:
        # Not in the handler itself: the main thread may hold the event's lock.
        threading.Thread(target=stop.request, daemon=True).start()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
