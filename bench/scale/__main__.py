"""``python -m bench.scale``: count requests, and write the tables of docs/scale.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.scale import page
from bench.scale.counts import counted
from bench.scale.model import read_list
from pravega_spark.errors import InvalidInput
from tests.harness.arguments import end_with_the_reader


def main(argv: Sequence[str] | None = None) -> int:
    """Count if asked, then write the page; with other prices print it instead."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--count", action="store_true", help="count again: about three minutes")
    parser.add_argument(
        "--prices", type=Path, help="print the page with these prices, and write nothing"
    )
    options = parser.parse_args(argv)
    if options.count:
        page.save_counts(list(counted()), time.strftime("%Y-%m-%d"))
    text = page.PAGE.read_text(encoding="utf-8")
    if options.prices is not None:
        try:
            prices = read_list(options.prices)
        except (ValueError, InvalidInput) as error:  # they name the file
            parser.error(f"--prices: {error}")
        print(page.written(text, prices), end="")
    else:
        page.PAGE.write_text(page.written(text, read_list(page.PRICES)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    end_with_the_reader()
    sys.exit(main())
