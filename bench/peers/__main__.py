"""``python -m bench.peers``: measure the peers in one run; keep it, and write the page from it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.harness.context import Context
from bench.peers import page, record, runner
from bench.peers.measures import MEASURES, ROWS, SIZES
from bench.peers.peer import Place
from bench.peers.registry import PEERS


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is chosen; return 1 if a measure failed, 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="full", help="small: to try it, minutes")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="by default all")
    parser.add_argument("--measures", nargs="+", metavar="NAME", help="by default all")
    parser.add_argument("--out", type=Path, default=Path("bench/out"), help="folder for results")
    parser.add_argument(
        "--keep", action="store_true", help="keep a run in which nothing failed, and write the page"
    )
    parser.add_argument("--list", action="store_true", help="print all names and stop")
    parser.add_argument("--page", action="store_true", help="write the page from the run kept")
    options = parser.parse_args(argv)
    if options.page:
        page.write()
        return 0
    peers = {peer.name: peer for peer in PEERS}
    measures = {each.name: each for each in MEASURES}
    unknown = (set(options.peers or ()) - set(peers)) | (
        set(options.measures or ()) - set(measures)
    )
    if options.list or unknown:
        if unknown:
            print(f"There is no {', '.join(sorted(unknown))}.", file=sys.stderr)
        print(f"peers: {', '.join(peers)}\nmeasures: {', '.join(measures)}")
        return 2 if unknown else 0
    if options.keep and (options.peers or options.measures):
        parser.error("--keep keeps a whole run: leave --peers and --measures out")
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    begun = time.monotonic()
    context = Context(options.size == "small", console)
    run = runner.Run()
    about = record.About.now(options.size)
    try:
        place = Place(context, ROWS[options.size])
        chosen = [peers[name](place) for name in options.peers or peers]
        wanted = [measures[name] for name in measures if name in (options.measures or measures)]

        def tell(text: str) -> None:
            console.print(f"{time.monotonic() - begun:6.0f} s  {text}", markup=False)

        with runner.started(chosen, run, tell) as had:
            runner.measure(wanted, had, options.size, run, tell)
            made = record.Record.of(about, run, chosen, had)
            record.save(made, options.out / "peers.json")
    finally:
        context.close()
    if options.keep and not run.failures:
        record.save(made, record.KEPT)
        page.write()
    print(page.table(made))
    for failure in run.failures:
        print(f"failed: {failure}", file=sys.stderr)
    if options.keep and run.failures:
        print(f"Not kept: {options.out / 'peers.json'} has it all.", file=sys.stderr)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
