"""One fixture for each back end: a new back end is a parameter here and needs no new test."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.engine.store import Store
from tests.harness import store_backends
from tests.harness.store_backends import BackEnd


@pytest.fixture(
    params=["local", "memory", "generic", pytest.param("s3", marks=pytest.mark.s3)],
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackEnd:
    if request.param == "local":
        return store_backends.make_local(tmp_path)
    if request.param == "memory":
        return store_backends.make_memory()
    if request.param == "generic":
        return store_backends.make_generic()
    return store_backends.make_s3(request.getfixturevalue("s3"))


@pytest.fixture
def store(backend: BackEnd) -> Store:
    return backend.open()
