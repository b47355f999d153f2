"""What must not grow over a run."""

from __future__ import annotations

import os
import threading

import pytest

from tests.soak.measures import FEWEST, files_of, grown, use_of


def test_use_of_a_process_counts_what_it_opens() -> None:
    before = use_of(os.getpid())
    assert before.rss_mb > 1
    reading, writing = os.pipe()
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        after = use_of(os.getpid())
    finally:
        release.set()
        thread.join()
        os.close(reading)
        os.close(writing)
    assert after.descriptors >= before.descriptors + 2
    assert after.threads >= before.threads + 1


@pytest.mark.parametrize(
    ("name", "step"),
    [("p.rss_mb", 8.0), ("p.descriptors", 8.0), ("p.threads", 2.0), ("data_files", 40.0)],
)
def test_what_grows_by_a_little_each_round_is_named(name: str, step: float) -> None:
    values = [step * (10 + number) for number in range(24)]
    assert list(grown({name: values, "files": values})) == [name]
    assert grown({name: [step * (10 + number % 3) for number in range(24)]}) == {}


def test_growth_before_the_second_quarter_is_that_of_a_start() -> None:
    assert grown({"p.rss_mb": [10.0, 50, 120, 150, 150, 151, 150, 150]}) == {}


def test_few_rounds_have_no_verdict() -> None:
    assert grown({"p.rss_mb": [float(10**n) for n in range(FEWEST - 1)]}) == {}


def test_commits_of_logs_and_what_a_deleted_stream_leaves_are_counted_apart() -> None:
    keys = ["s/t/events/_delta_log/0.json", "s/t/events/data/v0/a", "s/_scope/data/v0/b"]
    kept = ["s/t/metadata/data/v0/c", "s/t/events/_pravega/mark/0", "_maintenance/data/v0/d"]
    assert files_of([*keys, *kept]) == {"files": 6, "data_files": 2}
