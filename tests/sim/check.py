"""Checks kept histories, ``.gz`` too: ``python -m tests.sim.check history.jsonl ...``

Our checkers read each of them, and where Go is installed so does Porcupine. Ends with 1 if one
breaks a promise or cannot be judged.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from tests.harness.arguments import end_with_the_reader, folder_name
from tests.sim import porcupine_runs, shapes
from tests.sim.checkers import everything
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import BadHistory, calls_of


def text_of(path: Path) -> str:
    """Return a history, which may be compressed (``.gz``)."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except OSError as error:
        raise BadHistory(f"it cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadHistory(f"it cannot be read: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the histories that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.check", description=__doc__)
    parser.add_argument("histories", nargs="+", type=Path)
    parser.add_argument(
        "--pictures", type=folder_name, help="a folder for Porcupine's pictures of what it refuses"
    )
    options = parser.parse_args(arguments)
    if options.pictures:
        try:
            options.pictures.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"argument --pictures: {options.pictures}: {error.strerror}")
    wrong = 0
    whole = []
    """The histories that can be read."""
    for path in options.histories:
        try:
            calls = calls_of(text_of(path))
            shapes.check(calls)
            whole.append(path)
            everything.check_calls(calls)
            said = f"{len(calls)} calls break no promise"
        except (BadHistory, Violation) as error:
            said, wrong = str(error), 1
        print(f"{path}: {said}")
    try:
        more = ["-pictures", str(options.pictures)] if options.pictures else []
        reports = porcupine_runs.judged(whole, *more) if whole else []
    except porcupine_runs.NoPorcupine as missing:
        print(f"Porcupine did not look: {missing}")
        return wrong
    for report in reports:
        found = [one for one in report["objects"] if one["result"] != "ok"]
        names = ", ".join(f"{one['name']} {one['result']}" for one in found)
        shown = report.get("error") or names or f"{len(report['objects'])} objects are linearizable"
        print(f"{report['history']}: Porcupine: {shown}")
        wrong |= report["result"] != "ok"
    return int(wrong)


if __name__ == "__main__":
    end_with_the_reader()
    sys.exit(main())
