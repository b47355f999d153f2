"""The storage back ends of the store contract's tests."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from pravega_spark.engine.store import PutOutcome, Store, open_store
from pravega_spark.engine.store.root_url import RootUrl
from tests.harness.racers import race_processes, race_threads


class ExclusiveMemoryFileSystem(MemoryFileSystem):
    """An fsspec driver that honours ``mode="create"``."""

    protocol = "exclusivememory"
    root_marker = "/"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    _creating = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("exclusivememory://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self._creating:
            if mode == "create" and self.exists(path):  # which older fsspec does not look at
                raise FileExistsError(path)
            super().pipe_file(path, value, **kwargs)


fsspec.register_implementation("exclusivememory", ExclusiveMemoryFileSystem, clobber=True)


@dataclass(frozen=True)
class BackEnd:
    """A kind of storage, with the way to race on it and the number of rounds."""

    name: str
    url: str
    race: Callable[[Store, int], dict[int, list[PutOutcome]]]
    rounds: int
    options: dict[str, Any] = field(default_factory=dict)
    prunes_folders: bool = True

    def open(self) -> Store:
        return open_store(self.url, **self.options)


_roots = itertools.count(1)


def make_local(tmp_path: Any) -> BackEnd:
    return BackEnd("local", str(tmp_path / "root"), race_processes, rounds=50)


def make_memory() -> BackEnd:
    return BackEnd("memory", f"memory://contract-{next(_roots)}", race_threads, rounds=200)


def make_generic() -> BackEnd:
    url = f"exclusivememory://contract-{next(_roots)}"
    return BackEnd("generic", url, race_threads, rounds=50, prunes_folders=False)


def make_s3(server: Any) -> BackEnd:
    # Few rounds, because the server delays each loser of a race by a second or more. It also keeps
    # listing empty folders.
    return BackEnd(
        "s3",
        f"s3://{server.bucket}/contract-{next(_roots)}",
        race_processes,
        rounds=4,
        options=server.options,
        prunes_folders=False,
    )


def make_other_s3(server: Any) -> BackEnd:
    """A versioned bucket that is named by the host of each request, and a root far below it."""
    bucket = server.make_bucket("versions", versioned=True)
    return BackEnd(
        "other s3",
        f"s3://{bucket}/a/b c/d+e/f=g/%41/ü/contract-{next(_roots)}",
        race_processes,
        rounds=2,
        options=server.virtual_host_options,
        prunes_folders=False,
    )


def make_s3fs(server: Any) -> BackEnd:
    """The same server through an s3fs.S3FileSystem that is handed in, with its usual caches."""
    import s3fs

    url = f"s3://{server.bucket}/contract-{next(_roots)}"
    return BackEnd(
        "s3fs",
        RootUrl(url, filesystem=s3fs.S3FileSystem(**server.options)),
        race_processes,
        rounds=4,
        prunes_folders=False,
    )


def make_emulated(name: str, emulator: Any) -> BackEnd:
    return BackEnd(
        name,
        emulator.new_root(),
        race_threads,
        rounds=20,
        options=emulator.options,
        prunes_folders=False,
    )
