"""Races for the same keys: each racer runs in a separate process or thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pravega_spark.engine.store import PutOutcome, Store
from tests.harness.warm_children import FORKED

RACERS = 8
CONTENT_BYTES = 50_000
_START_SECONDS = 60.0


def content(racer: int) -> bytes:
    return bytes([ord("A") + racer]) * CONTENT_BYTES


def keys(rounds: int) -> list[str]:
    return [f"race/{number:05d}.json" for number in range(rounds)]


def run(store: Store, racer: int, rounds: int, start: Any) -> list[PutOutcome]:
    answers = []
    for key in keys(rounds):
        start.wait()
        answers.append(store.put_if_absent(key, content(racer)))
    return answers


def _run_in_process(store: Store, racer: int, rounds: int, start: Any, results: Any) -> None:
    store.exists("race/warm-up")  # connect before the race starts
    results.put((racer, run(store, racer, rounds, start)))


def race_processes(store: Store, rounds: int) -> dict[int, list[PutOutcome]]:
    start = FORKED.Barrier(RACERS, timeout=_START_SECONDS)
    results: Any = FORKED.Queue()
    processes = [
        FORKED.Process(target=_run_in_process, args=(store, racer, rounds, start, results))
        for racer in range(RACERS)
    ]
    for process in processes:
        process.start()
    answers = dict(results.get(timeout=240) for _ in processes)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
        process.close()
    results.close()
    results.join_thread()
    return answers


def race_threads(store: Store, rounds: int) -> dict[int, list[PutOutcome]]:
    start = threading.Barrier(RACERS, timeout=_START_SECONDS)
    with ThreadPoolExecutor(RACERS) as pool:
        answers = pool.map(lambda racer: run(store, racer, rounds, start), range(RACERS))
        return dict(enumerate(answers))
