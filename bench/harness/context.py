"""The context of one run: its folder and sizes, the inputs benchmarks share, a Spark session."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench.harness.spark_session import start_session
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager

SCOPE = "bench"
_FEWEST_OF_AN_INPUT = 10_000
"""Smaller numbers are rounds, segments, processes: they stay as they are."""

Input = TypeVar("Input")


@dataclass
class Context:
    """One run of the benchmarks."""

    quick: bool
    console: Console
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pravega-bench-")))
    is_tenth: bool = False
    """Whether inputs have a tenth of their events or rows, to compare two sizes."""
    _shared: dict[str, Any] = field(default_factory=dict)

    def size(self, full: int, quick: int) -> int:
        """Return the one of two sizes that this run uses."""
        if self.quick:
            return quick
        return full // 10 if self.is_tenth and full >= _FEWEST_OF_AN_INPUT else full

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
        """Create a stream and return its full name."""
        stream = f"{SCOPE}/{name}"
        configuration = StreamConfiguration(ScalingPolicy.fixed(segments))
        assert self.manager.create_stream(stream, configuration), f"{stream} exists"
        return stream

    def shared(self, key: str, make: Callable[[Context], Input]) -> Input:
        """Return the input named ``key``; the first benchmark that asks for it makes it."""
        if key not in self._shared:
            self._shared[key] = make(self)
        made: Input = self._shared[key]
        return made

    @cached_property
    def spark(self) -> Any:
        """The run's only Spark session, with two cores. Peers run in it, too."""
        return start_session(self.folder)

    def close(self) -> None:
        """Stop Spark and delete the folder."""
        if "spark" in self.__dict__:
            self.spark.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
