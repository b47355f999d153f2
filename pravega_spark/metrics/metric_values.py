"""Values of metrics as they are measured, without a library of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pravega_spark.metrics.metric_catalog import METRICS, Metric


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """Counts of a histogram: below each bound of its buckets (not cumulative), above, the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class MetricValues:
    """Values by metric and labels; the order of the catalog is kept when they are read."""

    def __init__(self) -> None:
        """Begin without values."""
        self._values: dict[str, dict[tuple[str, ...], float | HistogramValue]] = {}

    def set(self, name: str, value: float | HistogramValue, *labels: str) -> None:
        """Set the value of a metric for its labels, in the order of the catalog."""
        if len(labels) != len(METRICS[name].labels):
            raise AssertionError(f"{name} has the labels {METRICS[name].labels}, got {labels}")
        self._values.setdefault(name, {})[labels] = value

    def get(self, name: str, *labels: str) -> float | HistogramValue | None:
        """Return a value, or None."""
        return self._values.get(name, {}).get(labels)

    def labels(self, name: str) -> list[tuple[str, ...]]:
        """Return the labels of a metric's values."""
        return list(self._values.get(name, ()))

    def read(
        self, metrics: Sequence[Metric]
    ) -> Iterator[tuple[Metric, dict[tuple[str, ...], float | HistogramValue]]]:
        """Yield these metrics with their values by labels; also those without any."""
        for metric in metrics:
            yield metric, self._values.get(metric.name, {})

    def update(self, other: MetricValues) -> None:
        """Add the values of another measurement."""
        for name, values in other._values.items():
            self._values.setdefault(name, {}).update(values)
