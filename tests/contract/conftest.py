"""One fixture for all back ends: a new back end is a parameter here and needs no new test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pravega_spark.engine.store import Store
from tests.harness import object_emulators, store_backends
from tests.harness.object_emulators import Emulator
from tests.harness.store_backends import BackEnd

_EMULATED = [
    *(["gcs"] if object_emulators.has_gcs() else []),
    *(["azure"] if object_emulators.has_azure() else []),
]
_EMULATED_MARKS = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),  # both drivers do
]


_NEEDS_S3FS = pytest.mark.skipif(find_spec("s3fs") is None, reason="pip install '.[test]': no s3fs")
_KINDS = [
    "local",
    "memory",
    "generic",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("s3fs", marks=[pytest.mark.s3, _NEEDS_S3FS]),
    *(pytest.param(name, marks=_EMULATED_MARKS) for name in _EMULATED),
]
_OBJECT_STORES = _KINDS[2:]
_OTHER_S3 = pytest.param("other s3", marks=pytest.mark.s3)

on_one_s3 = pytest.mark.parametrize("backend", _KINDS, indirect=True)
"""For a test of what depends neither on where in a bucket a root is, nor on object versions."""

on_object_stores = pytest.mark.parametrize("backend", _OBJECT_STORES, indirect=True)
"""For a test of what other tests try on a local disk and in memory."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder."""
    item.add_marker("contract")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on a disk; those of other tests may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def gcs() -> Iterator[Emulator]:
    """An emulator of Google Cloud Storage, where it is installed."""
    with object_emulators.start_gcs() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def azure() -> Iterator[Emulator]:
    """An emulator of Azure Blob Storage, where it is installed."""
    with object_emulators.start_azure() as emulator:
        yield emulator


@pytest.fixture(params=[*_KINDS, _OTHER_S3])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> BackEnd:
    if request.param == "local":
        return store_backends.make_local(tmp_path)
    if request.param == "memory":
        return store_backends.make_memory()
    if request.param == "generic":
        return store_backends.make_generic()
    if request.param == "s3":
        return store_backends.make_s3(request.getfixturevalue("s3"))
    if request.param == "s3fs":
        return store_backends.make_s3fs(request.getfixturevalue("s3"))
    if request.param == "other s3":
        return store_backends.make_other_s3(request.getfixturevalue("s3"))
    return store_backends.make_emulated(request.param, request.getfixturevalue(request.param))


@pytest.fixture
def store(backend: BackEnd) -> Store:
    return backend.open()
