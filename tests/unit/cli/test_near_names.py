"""An error of an unknown object names those that are like it."""

from __future__ import annotations

import json

import pytest

from pravega_spark.errors import StoreError
from pravega_spark.manager import StreamManager
from tests.unit.cli.conftest import Shell


@pytest.fixture
def named(shell: Shell) -> Shell:
    """A root with a stream, a group and a table, each of a long name."""
    shell.manager.create_stream("s/flights")
    shell.manager.create_reader_group("s/dashboards", ["s/flights"])
    shell.manager.create_key_value_table("s/carriers")
    return shell


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (("stream", "describe", "s/flight"), "s/flights"),
        (("cut", "ls", "s/flihgts"), "s/flights"),
        (("reader-group", "describe", "s/dashboard"), "s/dashboards"),
        (("reader-group", "reset", "s/dashbords", "--to-latest"), "s/dashboards"),
        (("kvt", "get", "s/carrier", "UA"), "s/carriers"),
        (("reader-group", "ls", "othr"), "other"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_near_one(
    named: Shell, argv: tuple[str, ...], near: str
) -> None:
    assert named.failed(*argv).endswith(f" Did you mean {near}?\n")
    status, _, text = named(*argv, "--output", "json")
    assert (status, json.loads(text)["error"]["message"].endswith(f"{near}?")) == (1, True)


def test_an_error_stays_as_it_is_if_nothing_is_near_or_can_be_listed(
    named: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Did you mean" not in named.failed("stream", "describe", "s/xyz")
    assert "Did you mean" not in named.failed("stream", "describe", "none/flights")

    def lost(*_: object, **__: object) -> list[str]:
        raise StoreError("the storage is away", url="x")

    monkeypatch.setattr(StreamManager, "list_streams", lost)
    error = named.failed("stream", "describe", "s/flight")
    assert "NoSuchStream" in error
    assert "away" not in error
