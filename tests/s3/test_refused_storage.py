"""Storage without exclusive create is refused before any object is written."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pravega_spark import StreamManager
from pravega_spark.errors import StoreRefused


class SloppyFileSystem(MemoryFileSystem):
    """An fsspec driver that accepts ``mode="create"`` but overwrites."""

    protocol = "sloppy"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("sloppy://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value, mode="overwrite", **kwargs)


class HonestFileSystem(SloppyFileSystem):
    """An fsspec driver that rejects ``mode="create"``."""

    protocol = "honest"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("honest://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if mode == "create":
            raise NotImplementedError("exclusive create")
        super().pipe_file(path, value, mode=mode, **kwargs)


@pytest.mark.parametrize(
    ("driver", "reason"),
    [(SloppyFileSystem, "could be created twice"), (HonestFileSystem, "exclusive")],
)
def test_store_without_exclusive_create_is_refused_and_stays_empty(
    driver: type[SloppyFileSystem], reason: str
) -> None:
    fsspec.register_implementation(driver.protocol, driver, clobber=True)
    url = f"{driver.protocol}://root"
    manager = StreamManager(url)
    for _ in range(2):  # the probe's result is not cached as a success
        with pytest.raises(StoreRefused, match=reason) as caught:
            manager.create_scope("nyc")
        assert url in str(caught.value)
    assert driver.store == {}
    assert manager.list_scopes() == []


def test_hdfs_is_refused_with_the_reason() -> None:
    with pytest.raises(StoreRefused, match="no exclusive create on HDFS"):
        StreamManager("hdfs://namenode/streams")
