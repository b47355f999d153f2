"""An append with a writer id that release 0.1.0 began is ended by this version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.manager import StreamManager
from tests.harness.releases import run_release
from tests.unit.cli.conftest import CommandLine

Append = Callable[..., tuple[int, str]]

OLD = """
import io, sys
from pravega_spark.cli import main
root, stream, data, *options = sys.argv[1:]
sys.stdin = io.TextIOWrapper(io.BytesIO(data.encode()))
command = ["stream", "append", stream, "--format", "json", "--writer-id", "w", "--root", root]
print(main([*command, *options]))
"""
TWO = '{"n": 1.50}\n{"n": 123456789012345678.91,  "m": {"x": [1e2, -0]}}\n'
THIRD = '{"n": 3.50}\n'
STORED = [b'{"n": 1.5}', b'{"n": 1.2345678901234568e+17, "m": {"x": [100.0, 0]}}']


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    made.create_stream("s/a")
    return made


@pytest.fixture
def append(run: CommandLine) -> Append:
    """Append a text to ``s/a`` with the writer id ``w``; return the status and what was said."""
    command = ("stream", "append", "s/a", "--format", "json", "--writer-id", "w")

    def append(data: str, *options: str) -> tuple[int, str]:
        status, _, error = run(*command, *options, stdin=data)
        return status, error

    return append


def old_append(manager: StreamManager, data: str, *options: str) -> str:
    return run_release("0.1.0", OLD, manager.root, "s/a", data, *options)


def test_an_append_that_0_1_0_began_is_ended_and_another_input_refused(
    manager: StreamManager, append: Append
) -> None:
    old_append(manager, TWO)
    status, error = append(TWO.replace("1.50", "1.51") + THIRD)
    assert status == 2
    assert "its first 2 records are others" in error
    assert append(TWO + THIRD) == (0, "")
    assert append(TWO + THIRD) == (0, "")
    events = [event.data for event in manager.read("s/a")]
    assert events == [*STORED, THIRD.strip().encode()]


def test_keys_and_events_of_numbers_are_compared_as_0_1_0_stored_them(
    manager: StreamManager, append: Append
) -> None:
    options = ("--key", "n", "--event", "n")
    old_append(manager, TWO, *options)
    assert append(TWO + THIRD, *options) == (0, "")
    events = [(event.routing_key, event.data) for event in manager.read("s/a")]
    assert set(events) == {
        ("1.5", b"1.5"),
        ("1.2345678901234568e+17", b"1.2345678901234568e+17"),
        ("3.50", b"3.50"),
    }


def test_records_after_the_last_note_of_0_1_0_are_named_as_not_compared(
    manager: StreamManager, append: Append
) -> None:
    old_append(manager, TWO + "bad\n")  # its note is of the first record
    changed = TWO.replace("1.50", "1.51") + THIRD
    assert "its first record is another" in append(changed)[1]
    status, error = append(TWO + THIRD)
    assert status == 0
    assert "of its records 2 to 2 this input is taken for the same" in error


def test_0_1_0_ends_an_append_of_this_version_only_if_it_stores_the_same(
    manager: StreamManager, append: Append
) -> None:
    first = '{"n": 1}\n'
    assert append(first)[0] == 0
    assert old_append(manager, first + THIRD).endswith("0\n")
    changed = '{"n": 2}\n' + THIRD
    assert old_append(manager, changed).endswith("2\n")
    assert [event.data for event in manager.read("s/a")] == [b'{"n": 1}', b'{"n": 3.5}']
