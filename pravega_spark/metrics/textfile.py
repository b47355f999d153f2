"""The metrics of a root as a file for node_exporter, written again after each round of a job."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pravega_spark.errors import InvalidInput, PravegaSparkError
from pravega_spark.primitives.printable import printable

if TYPE_CHECKING:
    from pravega_spark.manager import StreamManager
    from pravega_spark.metrics.prometheus import RootMetrics

SUFFIX = ".prom"
"""node_exporter reads no files with another one."""


def check_textfile(option: str, path: str) -> str:
    """Return a path that node_exporter reads; raise InvalidInput for another one."""
    if path.endswith(SUFFIX) and os.path.basename(path) != SUFFIX:
        return path
    raise InvalidInput(
        f"{option} is {path!r}: node_exporter reads files that end in {SUFFIX} only; give "
        f"{path + SUFFIX!r}."
    )


class MetricsTextfile:
    """Writes the file of one root; what goes wrong is printed, once for each cause, and no more.

    The job's own work and exit status do not depend on it: Prometheus sees that the file gets old.
    """

    def __init__(self, prog: str, manager: StreamManager, path: str | None) -> None:
        """Take the name of the job for its errors; without a path nothing is written."""
        self._prog, self._manager, self._path = prog, manager, path
        self._metrics: RootMetrics | None = None
        self._failure = ""

    def write(self) -> None:
        """Measure the root, and replace the file."""
        if self._path is None:
            return
        try:
            if self._metrics is None:
                from pravega_spark.metrics.prometheus import root_metrics

                self._metrics = root_metrics(self._manager, cache=0)
            self._metrics.write_textfile(self._path)
            failure = ""
        except (ModuleNotFoundError, OSError, PravegaSparkError) as error:
            failure = f"{self._prog}: {self._path} is not written: {type(error).__name__}: {error}"
        if failure and failure != self._failure:
            print(printable(failure), file=sys.stderr)
        self._failure = failure
