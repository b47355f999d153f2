"""Send a year of real flights through one stream, kill a query on the way, and check the result.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 examples/demo.py

The first query, the ingest, replays the flights in order of departure into a stream, with the
carrier as routing key. A second query reads the stream at the same time, joins the weather, and
keeps departure delays by carrier and hour in a Delta table. In the middle of the replay the ingest,
a process of its own, is killed with SIGKILL and started again. The load makes the stream's segments
split; on a machine that is too slow for that, one segment is split by hand. The last events arrive
after the second query has stopped.

Then the demo looks up every event in the stream and computes the table again from the source. It
writes the flights into a typed stream, too, and asks both streams for the delays of each carrier. A
compaction merges the small files. The retention job deletes what the
second query, a subscriber, has consumed, and nothing else. The last line of the output is one JSON
object; the exit status is 0 if all checks held, 1 if not, and 2 for unusable input.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from flights.console import out_console, progress_bars
from flights.dataset import Dataset, InputError, load_file
from flights.nycflights import airlines, load_flights
from flights.picture import draw
from flights.replay import ReplayFailed
from flights.report import PICTURE, Run, print_report, summary
from flights.run import run
from flights.workspace import WORK, Workspace, prepare
from pravega_spark import PravegaSparkError
from pravega_spark.jobs.launcher_stderr import launcher_stderr

FLIGHTS_STREAM = "nyc/flights"
OWN_STREAM = "demo/events"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit status."""
    started = time.monotonic()
    sys.stderr = launcher_stderr()
    arguments = parse(argv)
    try:
        dataset = load(arguments)
        workspace = prepare(arguments.root, arguments.stream, arguments.segments, dataset.events)
    except (InputError, PravegaSparkError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    console = out_console()
    announce(console, dataset, workspace)
    try:
        with progress_bars(dataset.events) as on_sample:
            done = run(dataset, workspace, on_sample, started=started)
    except (ReplayFailed, PravegaSparkError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; its processes have been stopped.", file=sys.stderr)
        return 130
    picture(done)
    print_report(console, done)
    print(summary(done), flush=True)
    return 0 if done.held else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").splitlines()[0])
    own = parser.add_argument_group("your own input, instead of the flights")
    own.add_argument("--input", type=Path, metavar="FILE", help="a CSV or Parquet file")
    own.add_argument("--key", metavar="COLUMN", help="column of the routing key")
    own.add_argument(
        "--time", metavar="COLUMN", help="column of the time, in whose order the rows are replayed"
    )
    parser.add_argument(
        "--root",
        help="folder or URL of the stream, such as s3://bucket/streams; nothing in it is deleted "
        f"(default: {WORK}/streams, which each run creates again)",
    )
    parser.add_argument(
        "--stream", help=f"scope/stream (default: {FLIGHTS_STREAM}, or {OWN_STREAM} with --input)"
    )
    parser.add_argument("--segments", type=positive, default=4, help="default: 4")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="replay only the first N events in time"
    )
    arguments = parser.parse_args(argv)
    if arguments.input is None and (arguments.key or arguments.time):
        parser.error("--key and --time name columns of --input, which is missing")
    if arguments.input is not None and not (arguments.key and arguments.time):
        parser.error("--input needs --key and --time, the columns to route and to order by")
    if arguments.stream is None:
        arguments.stream = FLIGHTS_STREAM if arguments.input is None else OWN_STREAM
    return arguments


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def load(arguments: argparse.Namespace) -> Dataset:
    """Read the input."""
    if arguments.input is None:
        return load_flights(arguments.limit)
    return load_file(
        arguments.input, key=arguments.key, time_column=arguments.time, limit=arguments.limit
    )


def announce(console: Console, dataset: Dataset, workspace: Workspace) -> None:
    """Print what the demo will do, and where."""
    console.print(
        f"{dataset.events:,} events of {dataset.source}, in the order of time, into "
        f"{workspace.stream}: {workspace.segments} segments, routing key {dataset.key}; a segment "
        f"splits above {workspace.target:,} events a second.\n"
        f"The stream is in {workspace.root}; all else is in {workspace.work}, which was emptied.",
        soft_wrap=True,
        markup=False,
    )


def picture(done: Run) -> None:
    """Draw throughput, lag, what retention keeps, and the table."""
    dataset, workspace = done.dataset, done.workspace
    flights = dataset.weather is not None
    draw(
        Path(workspace.path(PICTURE)),
        title=f"{dataset.events:,} {'flights' if flights else 'events'} through one stream",
        subtitle=f"{dataset.source}; {workspace.segments} segments, {dataset.keys:,} routing keys; "
        f"{done.verdict}",
        timeline=done.timeline,
        table=done.table,
        retained=done.retained,
        names=airlines() if flights else {},
    )
