"""The principal: each commit of a process that has one names it, as Delta's history shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pravega_spark import StreamManager, set_principal
from pravega_spark.engine.runtime.principal import PRINCIPAL_VARIABLE
from pravega_spark.errors import InvalidInput


@pytest.fixture(autouse=True)
def no_principal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(PRINCIPAL_VARIABLE, raising=False)
    yield
    set_principal(None)


def names(root: Path, table: str = "s/t/events") -> list[str | None]:
    history = DeltaTable(root / table).history()
    return [entry.get("userName") for entry in history[::-1]]


def test_history_names_the_principal_of_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    set_principal("billing")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"event").result()
    monkeypatch.setenv(PRINCIPAL_VARIABLE, "from the variable")
    manager.seal_stream("s/t")
    set_principal(None)
    manager.delete_stream("s/t")

    found = names(tmp_path)
    assert found[0] is None  # CREATE STREAM
    assert set(found[1:-1]) == {"billing"}  # what a program names comes before the variable
    assert found[-1] == "from the variable"  # DELETE STREAM
    assert "from the variable" in names(tmp_path, "s/_scope")


def test_any_printable_text_is_a_principal_and_the_log_stays_readable(tmp_path: Path) -> None:
    name = 'Zoë "ops" \\ }},"digest":" 東京'
    set_principal(name)
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")

    assert names(tmp_path) == [name]
    with StreamManager(tmp_path).create_writer("s/t", writer_id="w") as writer:
        assert writer.write_event(b"event").result().offset == 0


@pytest.mark.parametrize("name", ["", "x" * 257, "two\nlines", "\ud800", 7, b"bytes"])
def test_text_that_is_no_principal_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="the principal must be"):
        set_principal(name)


def test_bad_variable_stops_a_commit_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    monkeypatch.setenv(PRINCIPAL_VARIABLE, "two\nlines")
    with pytest.raises(InvalidInput, match=PRINCIPAL_VARIABLE):
        manager.create_stream("s/t")
    monkeypatch.delenv(PRINCIPAL_VARIABLE)
    manager.create_stream("s/t")
