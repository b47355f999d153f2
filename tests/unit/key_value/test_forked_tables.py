"""A forked child cannot use a table of its parent, and opens its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.errors import ForkedProcess
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.transaction_world import results_of_child

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
T = "s/t"


@pytest.mark.medium
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("has_written", [False, True])
def test_a_forked_child_is_refused_promptly_even_if_the_lock_was_held(
    tmp_path: Path, has_written: bool
) -> None:
    root = str(tmp_path)
    manager = StreamManager(root)
    manager.create_scope("s")
    configuration = KeyValueTableConfiguration("string", staleness="1 hour")
    manager.create_key_value_table(T, configuration)
    with manager.key_value_table(T) as writer:
        writer.put("k", b"1").result()
    table = manager.key_value_table(T)
    if has_written:
        table.put("k", b"1").result()
    entry = table.get("k")  # known here: the parent's next get asks no storage
    assert entry is not None
    calls: list[Callable[[], Any]] = [
        lambda: table.get("k"),
        lambda: table.get("k", fresh=True),
        lambda: table.get_all(["k"]),
        lambda: table.exists("k"),
        lambda: list(table.entries()),
        lambda: table.put("k", b"2"),
        lambda: table.remove("k"),
        lambda: table.insert("new", b"2"),
        lambda: table.replace("k", b"2", entry.version),
    ]

    def child(results: Any) -> None:
        for call in calls:
            try:
                call()
                results.put("done")
            except ForkedProcess as refused:
                results.put(type(refused).__name__)
        own = StreamManager(root).key_value_table(T)
        own.put("child", b"3").result()
        results.put(own.get("k").value)  # type: ignore[union-attr]

    found = results_of_child(child, len(calls) + 1, table._index.lock)
    assert found == [ForkedProcess.__name__] * len(calls) + [b"1"]
    assert table.get("k") == entry
    assert table.get("child", fresh=True).value == b"3"  # type: ignore[union-attr]
