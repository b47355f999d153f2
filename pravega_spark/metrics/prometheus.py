"""Metrics in Prometheus' form: collectors for a registry, an HTTP server, a text, a text file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pravega_spark.engine.runtime.observers import observers
from pravega_spark.errors import IllegalState
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.metrics.catalog import (
    MAX_MEASURED_STREAMS,
    PROCESS_METRICS,
    ROOT_METRICS,
    SCRAPE_CACHE,
    HistogramValue,
    Metric,
    MetricKind,
    MetricValues,
)
from pravega_spark.metrics.measurement import RootMeasurement
from pravega_spark.metrics.process_counters import ProcessCounters
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.checks import check_whole
from pravega_spark.values.handles import ClosedByBlock
from pravega_spark.values.names import check_scope
from pravega_spark.values.package import install_extra
from pravega_spark.values.units import parse_duration_ms

try:
    import prometheus_client
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

    CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
    """The HTTP content type of the text."""
except ModuleNotFoundError:  # `from pravega_spark import *` works; what makes metrics raises
    Collector = object  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def _need_client() -> None:
    if Collector is object:
        raise ModuleNotFoundError(
            f"metrics need prometheus_client: {install_extra('metrics')}.",
            name="prometheus_client",
        )


def families(metrics: Sequence[Metric], values: MetricValues) -> Iterator[Family]:
    """Yield the metrics with their values in the client's form; also those without values."""
    for metric, found in values.read(metrics):
        yield _family(metric, found)


def _family(metric: Metric, found: dict[tuple[str, ...], float | HistogramValue]) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        for labels, value in found.items():
            assert isinstance(value, HistogramValue)
            bounds = [*map(str, value.bounds), "+Inf"]
            counts = accumulate(value.counts)
            histogram.add_metric(labels, list(zip(bounds, counts, strict=True)), value.total)
        return histogram
    is_counter = metric.kind is MetricKind.COUNTER
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily
    family = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in found.items():
        assert not isinstance(value, HistogramValue)
        family.add_metric(labels, value)
    return family


class RootMetrics(Collector):
    """The metrics of a root, as a collector for a registry, and as a text. Thread-safe.

    The root is measured when it is scraped, unless it was within ``cache``: the storage calls are
    bounded by the numbers of streams, groups and readers, and do not grow with events.
    """

    def __init__(
        self, manager: StreamManager, *, cache_seconds: float, max_streams: int, scopes: list[str]
    ) -> None:
        self._measurement = RootMeasurement(manager, max_streams, scopes)
        self._monotonic = root_of(manager).runtime.monotonic
        self._cache_seconds = cache_seconds
        self._lock = new_lock()
        self._known: tuple[float, MetricValues] | None = None

    def describe(self) -> Iterable[Family]:
        """Yield the metrics without values, so that to register them measures nothing."""
        return families(ROOT_METRICS, MetricValues())

    def collect(self) -> Iterable[Family]:
        """Yield the metrics of the root. Raises StoreError if the root cannot be listed."""
        return families(ROOT_METRICS, self._values())

    def _values(self) -> MetricValues:
        """Return the values, measured now or within the cache's time."""
        with self._lock:
            now = self._monotonic()
            if self._known is None or now - self._known[0] >= self._cache_seconds:
                self._known = now, self._measurement.measure()
            return self._known[1]

    def text(self) -> bytes:
        """Return the metrics as Prometheus' text, for HTTP with ``CONTENT_TYPE``."""
        return _text(self)

    def write_textfile(self, path: str | os.PathLike[str]) -> None:
        """Write the text to a file ``*.prom`` for node_exporter, which sees all of it or none."""
        registry = prometheus_client.CollectorRegistry()
        registry.register(self)
        prometheus_client.write_to_textfile(os.fspath(path), registry)


def root_metrics(
    manager: StreamManager,
    *,
    cache: str | float = SCRAPE_CACHE,
    max_streams: int = MAX_MEASURED_STREAMS,
    scopes: Iterable[str] = (),
) -> RootMetrics:
    """Return the metrics of a root, for a server, a registry or a file; keep the object.

    A scrape within ``cache`` of the last one costs nothing. At most ``max_streams`` streams and as
    many groups have metrics; ``pravega_scrape_skipped`` counts the others. ``scopes`` limits them
    to some scopes. Raises InvalidInput, InvalidName; ModuleNotFoundError without prometheus_client.
    """
    _need_client()
    return RootMetrics(
        manager,
        cache_seconds=parse_duration_ms("cache", cache) / 1_000,
        max_streams=check_whole("max_streams", max_streams, 1),
        scopes=[check_scope(scope) for scope in scopes],
    )


class ProcessMetrics(ClosedByBlock, Collector):
    """The metrics of this process since :func:`start_metrics`; ``close`` stops counting."""

    def __init__(self, registry: CollectorRegistry, max_streams: int) -> None:
        self._registry = registry
        self._counters = ProcessCounters(max_streams)
        self._stop_server: Callable[[], None] | None = None
        self.port: int | None = None
        """The port of the HTTP server; None without one."""
        registry.register(self)
        observers.append(self._counters)

    def describe(self) -> Iterable[Family]:
        """Yield the metrics without values."""
        return families(PROCESS_METRICS, MetricValues())

    def collect(self) -> Iterable[Family]:
        """Yield the metrics."""
        return families(PROCESS_METRICS, self._counters.values())

    def text(self) -> bytes:
        """Return the metrics as Prometheus' text."""
        return _text(self)

    def serve(self, address: str, port: int) -> None:
        """Serve the registry by HTTP in a thread. Raises OSError for a port that is in use."""
        server, thread = prometheus_client.start_http_server(port, address, self._registry)
        self.port = server.server_port

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stop_server = stop

    def close(self) -> None:
        """Stop the server and the counting; a second call does nothing."""
        if self._counters in observers:
            observers.remove(self._counters)
            self._registry.unregister(self)
        stop, self._stop_server, self.port = self._stop_server, None, None
        if stop is not None:
            stop()


def start_metrics(
    port: int | None = None,
    *,
    address: str = "127.0.0.1",
    registry: CollectorRegistry | None = None,
    max_streams: int = MAX_MEASURED_STREAMS,
) -> ProcessMetrics:
    """Count the work of this process's writers and readers from now on; return what counts.

    With ``port`` a thread serves the registry by HTTP at ``/metrics``, on this machine alone unless
    ``address`` says otherwise; 0 takes a free port. Without, ``registry`` (the client's default
    one) is served by the application. The streams beyond ``max_streams`` share one series. A forked
    child counts nothing until it starts metrics itself. Raises IllegalState if the registry has
    these metrics, InvalidInput, OSError for a port in use, ModuleNotFoundError without
    prometheus_client.
    """
    _need_client()
    check_whole("max_streams", max_streams, 1)
    if port is not None:
        check_whole("port", port)
    try:
        started = ProcessMetrics(registry or prometheus_client.REGISTRY, max_streams)
    except ValueError as error:
        raise IllegalState(
            f"metrics were started in this registry before: {error}. Use the object that the first "
            "call returned, close it, or give another registry."
        ) from error
    if port is not None:
        try:
            started.serve(address, port)
        except BaseException:
            started.close()
            raise
    return started


def _text(collector: Collector) -> bytes:
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    return prometheus_client.generate_latest(registry)
