"""Handles of streams and tables in place of their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pravega_spark.errors import InvalidInput
from pravega_spark.manager import StreamManager
from pravega_spark.spark.key_value.frame import upsert_batches
from pravega_spark.spark.native.frame import native_settings


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path)
    made.create_scope("s")
    made.create_stream("s/a")
    made.create_key_value_table("s/t")
    return made


def test_a_handle_brings_its_root_along(manager: StreamManager) -> None:
    settings = native_settings(manager.stream("s/a"), None, {})
    assert (settings.streams, settings.root) == (("s/a",), manager.root)
    same = native_settings(manager.stream("s/a"), manager.root, {})
    assert same == native_settings("s/a", manager.root, {})
    with manager.key_value_table("s/t") as table:
        assert table.root == manager.root
        upsert_batches(table)


@pytest.mark.parametrize("one", [None, 5, object()])
def test_what_is_neither_a_name_nor_a_handle_is_refused(one: Any) -> None:
    with pytest.raises(InvalidInput, match="scope/name, or its handle"):
        upsert_batches(one, root="/tmp/x")


def test_a_root_beside_a_handle_of_another_is_refused(manager: StreamManager) -> None:
    with pytest.raises(InvalidInput, match="has a root of its own: leave out root=/other"):
        native_settings(manager.stream("s/a"), "/other", {})


def test_a_table_without_its_root_is_refused() -> None:
    with pytest.raises(InvalidInput, match="table s/t needs its root"):
        upsert_batches("s/t")


def test_the_former_order_works_and_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match=r"upsert_batches\(table, root=root\)"):
        upsert_batches("/tmp/x", "s/t")
    with pytest.raises(InvalidInput, match="too many arguments"):
        upsert_batches("/tmp/x", "s/t", "more")
