from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.manager import StreamManager


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A root with the scope ``s``."""
    StreamManager(tmp_path).create_scope("s")
    return str(tmp_path)
