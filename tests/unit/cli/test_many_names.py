"""Lists look at each of many streams, groups or tables: some at a time, with a bar, or at none."""

from __future__ import annotations

import io
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from pravega_spark.cli.many_names import look_at_each
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import stream_log
from pravega_spark.errors import NoSuchStream
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.values.limits import CHECK_THREADS
from tests.harness.folder_state import wait_for_maintenance
from tests.unit.cli.conftest import Shell


def test_as_many_looks_as_the_bound_wait_at_the_same_time_and_results_keep_their_order() -> None:
    together = threading.Barrier(CHECK_THREADS, timeout=30)
    most, running, lock = 0, 0, threading.Lock()

    def look(name: str) -> str | None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1
        return None if name.endswith("7") else name

    names = [f"s/{number}" for number in range(3 * CHECK_THREADS)]
    with look_at_each(look, names, "streams") as found:
        assert found == [n for n in names if not n.endswith("7")]
    assert most == CHECK_THREADS


def test_the_first_error_ends_a_look() -> None:
    looked = Counter[str]()

    def look(name: str) -> str:
        looked[name] += 1
        raise NoSuchStream(f"stream {name} is absent", stream=name)

    names = [f"s/{number}" for number in range(10_000)]
    with pytest.raises(NoSuchStream, match="s/0 "), look_at_each(look, names, "streams"):
        pytest.fail("nothing is to be shown")
    assert len(looked) <= 2 * CHECK_THREADS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("count", "shows"), [(20, False), (2_000, True)])
def test_a_terminal_shows_a_bar_of_many_names(
    count: int, shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    names = [f"s/{number}" for number in range(count)]
    with look_at_each(lambda name: name, names, "streams") as found:
        assert found == names
    shown = terminal.getvalue()
    assert ("2,000 of 2,000 streams" in shown) == shows
    assert shows or not shown


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that the storage was asked for since this process knows of no stream."""
    keys = list[str]()

    def recorded(name: str) -> None:
        real = getattr(MemoryStore, name)

        def call(store: MemoryStore, key: Any, *arguments: Any, **options: Any) -> Any:
            keys.extend([key] if isinstance(key, str) else key)
            return real(store, key, *arguments, **options)

        monkeypatch.setattr(MemoryStore, name, call)

    for name in ("get", "get_many", "get_range", "exists", "list", "folders", "open"):
        recorded(name)
    return keys


def test_names_alone_look_into_no_stream_group_or_table(shell: Shell, asked: list[str]) -> None:
    for number in range(5):
        shell.manager.create_stream(f"s/{number}")
        shell.manager.create_reader_group(f"s/g{number}", ["s/0"])
        shell.manager.create_key_value_table(f"s/t{number}", KeyValueTableConfiguration())
    wait_for_maintenance()
    for noun, names in (("stream", "0 1 2 3 4"), ("reader-group", "g0 g1"), ("kvt", "t0 t1")):
        stream_log._open.reset()
        asked.clear()
        found = shell.ok(noun, "ls", "s", "-q")
        assert all(f"s/{name}" in found for name in names.split())
        assert not [key for key in asked if "/events/" in key or "_reader_groups/" in key]
    assert shell.ok("stream", "ls", "-q").split() == [f"s/{number}" for number in range(5)]


@pytest.mark.medium
def test_a_list_asks_the_same_for_each_stream_however_many_there_are(
    shell: Shell, asked: list[str]
) -> None:
    costs = []
    for scope, count in (("s", 10), ("other", 100)):
        for number in range(count):
            shell.manager.create_stream(f"{scope}/{number}")
        wait_for_maintenance()
        stream_log._open.reset()
        asked.clear()
        assert len(shell.json("stream", "ls", scope)) == count
        per_stream = Counter(key.split("/")[1] for key in asked if "/events/" in key)
        assert len(per_stream) == count
        costs.append(max(per_stream.values()))
    assert costs[0] == costs[1] <= 5


def test_the_number_of_scopes_costs_no_rows_of_them(shell: Shell, asked: list[str]) -> None:
    from pravega_spark.engine.state import scopes

    shell.manager.create_stream("s/t")
    wait_for_maintenance()
    scopes._open.reset()
    asked.clear()
    assert shell.ok("scope", "ls", "-q").split() == ["other", "s"]
    assert not [key for key in asked if "/_scope/data/" in key]
