"""``pravega-spark maintain``: one round of maintenance, or rounds until a signal, without Spark."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from pravega_spark.cli.output import say, say_lines, show_table
from pravega_spark.cli.root_option import open_root, root_option
from pravega_spark.errors import InvalidInput, NotFound, PravegaSparkError, StoreRefused
from pravega_spark.maintenance.result import MaintenanceResult, no_counts
from pravega_spark.maintenance.round import (
    RoundRetries,
    RoundStop,
    check_parallelism,
    maintain_root,
    parse_kinds,
    parse_request,
    split_kinds,
)
from pravega_spark.maintenance.schedule import KindSchedule
from pravega_spark.metrics.textfile import MetricsTextfile, check_textfile
from pravega_spark.values.limits import MAINTAIN_THREADS, STREAM_TIMEOUT
from pravega_spark.values.units import parse_duration_ms

INTERRUPTED = 130
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
    parse_request(every, scopes, streams, **options)
    pause = None
    if interval not in (None, _AS_SET):
        pause = parse_duration_ms("the interval", interval) / 1_000
        if not pause:
            raise InvalidInput("the interval must be longer than 0 s.")
    threads = check_parallelism(parallelism)
    if metrics_textfile is not None:
        check_textfile("--metrics-textfile", metrics_textfile)
    try:
        rounds = _Rounds(
            root=root,
            kinds=every,
            scopes=scopes,
            streams=streams,
            parallelism=threads,
            options=options,
            textfile=metrics_textfile,
        )
        return rounds.run(pause, once=interval is None)
    except (NotFound, StoreRefused) as error:
        raise click.UsageError(f"{type(error).__name__}: {error}") from error


class _Rounds:
    """The rounds of one command, and the sums of their figures."""

    def __init__(
        self,
        root: str | None,
        kinds: Sequence[str] | None,
        scopes: Sequence[str],
        streams: Sequence[str],
        parallelism: int,
        options: dict[str, Any],
        textfile: str | None,
    ) -> None:
        manager, self._store = open_root(root)
        self._textfile = MetricsTextfile("maintain", manager, textfile)
        self._kinds = parse_kinds(kinds)
        self._named = scopes, streams
        self._parallelism = parallelism
        self._options = options
        self._stop = RoundStop()
        self._sums = Counter({**no_counts(self._kinds), "failed": 0})
        self._number = 0
        self._has_found = False
        """Whether a round has found the scopes and streams that are named."""
        self._retries = RoundRetries()

    def run(self, pause: float | None, *, once: bool) -> int:
        """Do one round, or rounds until a signal; return the exit status."""
        began, before = time.monotonic(), [signal.getsignal(number) for number in _SIGNALS]
        for number, handler in zip(_SIGNALS, before, strict=True):
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        try:
            schedule = None if once else KindSchedule(self._store, self._kinds)
            while not self._stop.is_set:
                self._round(schedule)
                self._textfile.write()
                if schedule is None:
                    break
                self._stop.wait(self._pause_seconds(schedule, pause))
        finally:
            for number, handler in zip(_SIGNALS, before, strict=True):
                signal.signal(number, handler)
        seconds = round(time.monotonic() - began, 3)
        self._sums["failed"] += bool(self._retries.attempts)
        record = {**self._sums, "dry_run": self._options["dry_run"]}
        click.echo(json.dumps({**record, "rounds": self._number, "seconds": seconds}))
        if once and not (self._number or self._retries.attempts):
            return INTERRUPTED
        return 1 if self._sums["failed"] else 0

    def _pause_seconds(self, schedule: KindSchedule, pause: float | None) -> float:
        if self._retries.attempts:
            return self._retries.pause_seconds(pause)
        return max(schedule.pause_seconds() if pause is None else pause, 0.05)

    def _on_signal(self, *_: object) -> None:
        """Not in the handler itself: the main thread may hold the event's lock."""
        threading.Thread(target=self._stop.request, daemon=True).start()

    def _round(self, schedule: KindSchedule | None) -> None:
        """Do one round. A command that keeps running tries again after an error.

        Work that was done in the end does not count as a failure. A scope or stream that is named
        must exist in the first round; one that is deleted later is left out.
        """
        try:
            kinds = self._kinds
            if schedule is not None:
                recorded = not (any(self._named) or self._options["dry_run"])
                kinds = schedule.due(recorded=recorded)
            if not kinds:
                self._retries.end()
                return
            request = parse_request(kinds, *self._named, **self._options)
            request = replace(request, must_exist=not self._has_found)
            found = maintain_root(self._store, request, self._parallelism, self._stop)
        except (PravegaSparkError, OSError) as error:
            unusable = NotFound if schedule else (InvalidInput, NotFound)
            if isinstance(error, unusable) and not self._has_found:
                raise
            if schedule is not None:
                schedule.undo()
            if self._retries.is_new(error):
                say(f"maintain: {type(error).__name__}: {error}", err=True)
            return
        self._retries.end()
        self._has_found = True
        if not found.stopped:
            self._number += 1
        self._sums.update({**found.counts(), "failed": len(found.failures)})
        self._show(found)

    def _show(self, found: MaintenanceResult) -> None:
        rows = found.rows()
        if rows:
            show_table(("STREAM", "KIND", "DONE"), rows)
        for what, error in found.failure_lines.items():
            say(f"maintain: {what}: {error}", err=True)
        first, *others = str(found).splitlines()
        say_lines("\n".join([f"{datetime.now():%H:%M:%S} {first}", *others]))
