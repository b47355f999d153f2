"""Runs the program that asks Porcupine whether histories are linearizable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
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


def judged_texts(histories: Mapping[str, str], *options: str) -> tuple[list[str], str]:
    """Judge histories by their names; return a line for each that is refused, and a summary."""
    if not histories:
        return [], "Porcupine has no history to judge"
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        for number, (name, text) in enumerate(histories.items()):
            path = Path(folder) / f"{number}.jsonl"
            paths[str(path)] = name
            path.write_text(text)
        try:
            reports = judged(map(Path, paths), *options)
        except NoPorcupine as missing:
            return [], f"Porcupine did not look: {missing}"
    objects = [one for report in reports for one in report["objects"]]
    refused = []
    for report in reports:
        found = [f"{o['name']} is {o['result']}" for o in report["objects"] if o["result"] != "ok"]
        if report["result"] != "ok":
            why = report.get("error") or ", ".join(found)
            refused.append(f"{paths[report['history']]}: Porcupine: {why}")
    spent = sum(one["ms"] for one in objects) / len(reports)
    return refused, (
        f"Porcupine judged {len(reports)} histories of {len(objects)} objects, {spent:.1f} ms "
        f"each, and refuses {len(refused)}"
    )
