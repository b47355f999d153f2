"""``python -m bench``: run the benchmarks; print a table, write results.json and a picture."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench import cases, page
from bench.harness import report
from bench.harness.context import Context
from bench.harness.figures import Figure, save
from bench.harness.registry import find


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if one failed. A missed target is a result, not a failure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="part of a benchmark's name; may be repeated",
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, only to see whether everything runs"
    )
    parser.add_argument(
        "--tenth", action="store_true", help="inputs of a tenth, to compare two sizes"
    )
    parser.add_argument("--out", type=Path, default=Path("bench/out"), help="folder for results")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument(
        "--page",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help="measure nothing: take these results over, and write docs/benchmarks.md from all kept",
    )
    options = parser.parse_args(argv)
    if options.page is not None:
        page.take(options.page)
        return 0
    chosen = find(cases, options.only)
    unknown = [text for text in options.only if not find(cases, [text])]
    console = Console(stderr=True, soft_wrap=True)
    if unknown:
        console.print(f"No benchmark has {unknown[0]!r} in its name. The names are:")
    if options.list or unknown:
        print("\n".join(benchmark.name for benchmark in find(cases)))
        return 0 if options.list else 2
    figures: list[Figure] = []
    failed: list[str] = []
    context = Context(options.quick, console, is_tenth=options.tenth)
    try:
        for benchmark in chosen:
            console.rule(f"[bold]{benchmark.name}")
            begun = time.perf_counter()
            try:
                for measured in benchmark.run(context):
                    day = time.strftime("%Y-%m-%d")
                    figure = replace(measured, benchmark=benchmark.name, day=day)
                    figures.append(figure)
                    report.explain(console, figure)
            except Exception:
                console.print_exception()
                failed.append(benchmark.name)
            console.print(f"  {time.perf_counter() - begun:.0f} s", style="dim")
    finally:
        context.close()
    save(figures, options.out / "results.json")
    report.draw(figures, options.out / "results.png")
    wide = None if sys.stdout.isatty() else 160
    Console(width=wide).print(report.table(figures))
    if options.quick:
        print("--quick: the sizes are too small to judge anything by.")
    print(f"{options.out / 'results.json'} and {options.out / 'results.png'} are written.")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
