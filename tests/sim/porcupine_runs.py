"""Runs the program that asks Porcupine whether histories are linearizable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "porcupine"
BUILT = Path(__file__).parents[2] / "build" / "porcupine"


class NoPorcupine(Exception):
    """The program cannot be built here; the message says why, and what brings it."""


@cache
def program() -> Path:
    """Return the program, built from its source; raise NoPorcupine where that is impossible."""
    go = shutil.which("go")
    if go is None:
        raise NoPorcupine("Go is missing (apt install golang)")
    BUILT.parent.mkdir(exist_ok=True)
    mine = BUILT.with_name(f"porcupine.{os.getpid()}")  # processes of tests build side by side
    done = subprocess.run(
        [go, "build", "-buildvcs=false", "-o", str(mine), "."],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        why = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        if "dial tcp" in done.stderr or "lookup" in done.stderr:
            raise NoPorcupine(f"Go cannot fetch Porcupine's module (network): {why[0]}")
        raise RuntimeError(done.stderr)
    mine.replace(BUILT)
    return BUILT


def judged(paths: Iterable[Path], *options: str) -> list[dict[str, Any]]:
    """Return a report of each history: its ``result`` is ok, illegal, unjudged or bad."""
    command = [str(program()), *options, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]
