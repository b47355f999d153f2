"""Processes that end with open writers: random short programs, however they were started.

Threads, pools and callbacks write while and after the main function ends, by a return, ``sys.exit``
or an error. Whatever was accepted is in the stream once the process has ended, once and in order,
or its log says how much may be lost; a forked child is refused what it inherits; nothing hangs.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.ending_programs import (
    BYTES,
    LIMIT_SECONDS,
    METHODS,
    STREAMS,
    Step,
    drawn_program,
    make_root,
)
from tests.harness.sequences import play_shortest
from tests.harness.tiers import sized

_TRIES = 3
"""How often a shorter program is tried: not each run fails."""
_LOST = re.compile(
    r"writer \S+ of stream (\S+) (?:has not committed up to|was not closed and lost) (\d+) writes"
)
_UNCALLED = re.compile(r"the process ends although \d+ callbacks of writes have not returned")
Writes = dict[tuple[str, str], list[int]]
"""The numbers that were written, by stream and key."""


def stored(manager: StreamManager, written: Writes) -> Writes:
    """Return what the streams hold, in their order; of a key in a table, up to its number."""
    found: Writes = {}
    for stream in STREAMS:
        for event in manager.read(stream):
            key, number = event.data.decode().split()
            found.setdefault((stream, key), []).append(int(number))
    for stream in BYTES:
        with manager.create_byte_reader(stream, timeout=0) as reader:
            for row in (reader.read() or b"").decode().splitlines():
                key, number = row.split()
                found.setdefault((stream, key), []).append(int(number))
    with manager.key_value_table("s/table") as table:
        for stream, key in written:
            entry = table.get(key) if stream == "s/table" else None
            if entry is not None:
                found[stream, key] = list(range(int(entry.value) + 1))
    return found


def noted(journal: Path) -> tuple[Writes, Writes, list[str]]:
    """Return the writes that were begun and not refused, those accepted, and the refusals."""
    begun: Writes = {}
    accepted: Writes = {}
    refused = []
    for line in journal.read_text().splitlines():
        kind, stream, key, number, *error = line.split()
        if stream not in ("inherited", "own", "flush"):
            numbers = (accepted if kind == "!" else begun).setdefault((stream, key), [])
            numbers.remove(int(number)) if kind == "-" else numbers.append(int(number))
        if error or (stream == "inherited" and kind == "!"):
            refused.append(f"{stream} {' '.join(error)}")
    return begun, accepted, refused


def check(manager: StreamManager, journal: Path, log: str, *, is_short: bool) -> None:
    """Compare what was accepted with what is stored, and with what the log says."""
    begun, accepted, refused = noted(journal)
    allowed = {"inherited ForkedProcess"}
    if is_short:
        allowed |= {f"{name} ObjectClosed" for name in ("flush", "s/table", *STREAMS)}
        allowed |= {f"{name} ValueError" for name in ("flush", *BYTES)}
    assert set(refused) <= allowed, set(refused) - allowed
    found = stored(manager, begun)
    lost = Counter[str]()
    for place in {*begun, *found}:
        numbers, all_numbers = found.get(place, []), begun.get(place, [])
        assert numbers == all_numbers[: len(numbers)], f"{place}: {numbers} of {all_numbers}"
        lost[place[0]] += len(set(accepted.get(place, [])) - set(numbers))
    said = Counter[str]()
    for stream, count in _LOST.findall(log):
        said[stream.replace("/_kv_tables/", "/")] += int(count)
    wrong = {s: n for s, n in lost.items() if n > (said[s] if s not in BYTES else n * said[s])}
    assert not wrong, f"lost {wrong}, and the log says {dict(said)}: {log}"
    assert is_short or not (said or _UNCALLED.search(log)), log


def status_of(steps: Sequence[Step]) -> int:
    """Return how the main function ends: by what comes first."""
    ends = {"exit": 3, "fail": 1}
    return next((ends[verb] for actor, verb, _ in steps if actor == "main" and verb in ends), 0)


def tried(play: Callable[[Sequence[Step]], None]) -> Callable[[Sequence[Step]], None]:
    """Play the first program once, and each shorter one as often as it may need to fail again."""
    tries = iter((1,))

    def play_again(steps: Sequence[Step]) -> None:
        for _ in range(next(tries, _TRIES)):
            play(steps)

    return play_again


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_process_commits_what_it_accepted_or_says_what_it_lost(method: str, tmp_path: Path) -> None:
    if "fork" in method and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    folders = (tmp_path / str(n) for n in itertools.count())

    def play(steps: Sequence[Step]) -> None:
        folder = next(folders)
        manager, journal = make_root(str(folder / "root")), folder / "journal"
        journal.touch()
        command = [sys.executable, "-m", "tests.harness.ending_programs"]
        command += [str(folder / "root"), str(journal), method, json.dumps(steps)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=2 * LIMIT_SECONDS
        )
        status = status_of(steps)
        assert done.returncode == status, done.stderr
        assert done.stderr.count("Traceback (most recent") == (status == 1), done.stderr
        is_short = any(verb.startswith("short") for _, verb, _ in steps)
        check(manager, journal, done.stderr, is_short=is_short)
        shutil.rmtree(folder)

    for seed in range(sized(2, 100, "PROCESS_END_SEEDS")):
        play_shortest(seed, drawn_program(seed, method), tried(play))
