"""The acknowledgements of many writers, each of which waits for one before its next event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness.measure import percentile


@dataclass(frozen=True, slots=True)
class WriterLoad:
    """The seconds of each acknowledgement by writer, over a time; CPU and calls of all writers."""

    seconds: float
    times: Sequence[Sequence[float]]
    cpu_seconds: float
    calls: int = 0
    longest_at_first: float = 0.0
    """The longest acknowledgement before that time began."""
    looks: tuple[int, int] = (0, 0)
    """The GETs that found something, and those that missed."""

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self.times))

    @property
    def per_second(self) -> float:
        return self.acknowledged / self.seconds

    @property
    def calls_each(self) -> float:
        """Storage calls for each acknowledgement."""
        return self.calls / max(self.acknowledged, 1)

    @property
    def calls_per_second(self) -> float:
        return self.calls / self.seconds

    @property
    def looks_each(self) -> str:
        """What of the calls for each acknowledgement were GETs."""
        found, missed = (count / max(self.acknowledged, 1) for count in self.looks)
        return f"{found:.2f} GETs that find a commit, {missed:.2f} that miss"

    @property
    def fairness(self) -> float:
        """The events of the slowest writer for each of the fastest."""
        counts = [len(times) for times in self.times]
        return min(counts) / max(*counts, 1)

    def quantile(self, share: float) -> float:
        return percentile([each for times in self.times for each in times], share)

    @property
    def note(self) -> str:
        return (
            f"p50 {1e3 * self.quantile(0.5):.0f}, p99 {1e3 * self.quantile(0.99):.0f}, longest "
            f"{1e3 * self.quantile(1.0):.0f} ms; slowest to fastest {self.fairness:.2f}; "
            f"{self.cpu_seconds / self.seconds:.2f} cores"
        )
