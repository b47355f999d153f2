"""What the benchmarks share in one run: a folder, sizes, a stream of events, a Spark session."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager

SCOPE = "bench"


@dataclass
class Context:
    """One run of the benchmarks."""

    quick: bool
    console: Console
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pravega-bench-")))
    _shared: dict[str, Any] = field(default_factory=dict)

    def size(self, full: int, quick: int) -> int:
        """Return the size that this run uses."""
        return quick if self.quick else full

    @cached_property
    def manager(self) -> StreamManager:
        """The manager of this run's root."""
        manager = StreamManager(self.root)
        manager.create_scope(SCOPE)
        return manager

    @property
    def root(self) -> str:
        """The root of this run's streams."""
        return str(self.folder / "streams")

    def create(self, name: str, segments: int = 1) -> str:
        """Create a stream; return its full name."""
        stream = f"{SCOPE}/{name}"
        configuration = StreamConfiguration(ScalingPolicy.fixed(segments))
        assert self.manager.create_stream(stream, configuration), f"{stream} exists"
        return stream

    def shared(self, key: str, make: Any) -> Any:
        """Return what ``make(self)`` made for the first benchmark that asked for ``key``."""
        if key not in self._shared:
            self._shared[key] = make(self)
        return self._shared[key]

    @cached_property
    def spark(self) -> Any:
        """The one Spark session of the run: two cores, as the peers in docs have."""
        from bench.harness.spark_frames import start

        return start(self.folder)

    def close(self) -> None:
        """Stop Spark and remove the folder."""
        if "spark" in self.__dict__:
            self.spark.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
