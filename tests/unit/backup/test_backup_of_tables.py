"""A backup of a scope with key-value tables is refused: a copy without them would lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.errors import IllegalState
from pravega_spark.manager import StreamManager


def test_a_backup_that_would_leave_out_tables_is_refused(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    for scope in ("s", "other"):
        manager.create_scope(scope)
    manager.create_stream("s/t")
    manager.create_key_value_table("s/k")
    for name in ("", "s"):
        with pytest.raises(IllegalState, match=r"key-value tables s/k, .* nothing was copied"):
            manager.backup(tmp_path / "copy", name)
    assert manager.backup(tmp_path / "copy", "s/t").tables
    assert manager.backup(tmp_path / "copy 2", "other").tables
    manager.delete_key_value_table("s/k")
    assert manager.backup(tmp_path / "copy 3").tables
