from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.errors import InvalidInput, StoreRefused
from pravega_spark.jobs.stream_tasks import find_root
from pravega_spark.manager import StreamManager


def test_root_is_made_absolute_for_the_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StreamManager(tmp_path).create_scope("a")
    monkeypatch.chdir(tmp_path.parent)
    assert find_root(tmp_path.name) == StreamManager(tmp_path).root


def test_root_that_executors_cannot_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no scope"):
        find_root(str(tmp_path / "other"))
    with pytest.raises(InvalidInput, match="in the memory of this process"):
        find_root("memory://here")
    with pytest.raises(StoreRefused):
        find_root("nonsense://here")
