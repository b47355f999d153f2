"""Starting a job and its Spark, and ending both.

A job's work is safe to repeat, so a job may be killed at any time, and two may run at once. The
exit status is 0 if nothing failed, 1 if something did or Spark is not installed, and 2 for
unusable input.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pravega_spark.errors import IllegalState, PravegaSparkError
from pravega_spark.jobs import early_signals
from pravega_spark.jobs.launcher_stderr import complain, launcher_stderr
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.spark.jars import kafka_package
from pravega_spark.spark.jvm_start import explained_start
from pravega_spark.spark.session import environment_settings, session, with_packages
from pravega_spark.spark.worker_python import worker_python
from pravega_spark.values.package import install_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


def run_job(
    prog: str,
    required: Sequence[str],
    check: Callable[[], object],
    work: Callable[[SparkSession | None, StopSignal], int],
    kind: str = "",
) -> int:
    """Do the work of a job in a Spark session that is its own; return the exit status.

    ``check`` raises before Spark starts for input that cannot be used. The work gets no session if
    a signal has stopped the job before it began. ``kind`` is the format that the work needs.
    """
    missing = [name for name in required if importlib.util.find_spec(name) is None]
    if missing:
        what = f"{', '.join(missing)} not found"
        complain(prog, f"{what}: the job needs {install_extra('jobs')}.")
        return 1
    early_signals.listen()
    sys.stderr = launcher_stderr()
    try:
        check()
    except PravegaSparkError as error:
        complain(prog, error)
        return 2
    stop = StopSignal()
    try:
        spark = None if stop.take_early() else start_listening(prog, stop, kind)
    except IllegalState as error:  # no Java, or no jar
        complain(prog, error)
        return 1
    try:
        return work(spark, stop)
    finally:
        stop.disarm()
        if spark is not None and not is_on_databricks():
            with contextlib.suppress(Exception):
                spark.stop()


def start_listening(prog: str, stop: StopSignal, kind: str = "") -> SparkSession | None:
    """Return a Spark session that signals stop in order; None if one arrived during the start.

    Such a signal may have reached the JVM, too, and Spark has a handler that raises in Python.
    """
    try:
        spark = start_spark(prog, kind)
        stop.listen(spark)
    except KeyboardInterrupt:
        stop.request()
        return None
    except Exception:
        if stop.take_early():
            return None
        raise
    stop.take_early()
    return spark


def start_spark(prog: str, kind: str = "") -> SparkSession:
    """Return a Spark session, and leave a shared server's settings alone.

    A JVM that this process starts fetches the packages of the formats ``kafka`` and ``delta``, if
    it was not given them as jars; one that already runs, such as that of spark-submit, has what its
    own command names. For ``delta`` the session has Delta's extension and catalog, too, unless the
    user named another catalog. Raises IllegalState if Spark cannot start.
    """
    from pyspark.sql import SparkSession

    from pravega_spark.spark.versions import spark_release

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"pravega-{prog}")
    is_served = os.environ.get("SPARK_REMOTE", "").startswith("sc://")
    if is_served or is_on_databricks():
        return builder.getOrCreate()
    if kind == "delta":
        return session(builder, **QUIET)
    packages = [kafka_package(spark_release())] if kind == "kafka" else []
    settings = {**QUIET, **with_packages(packages)}
    for key, value in settings.items():
        builder = builder.config(key, value)
    known = {**environment_settings(), **settings}
    with worker_python(known), explained_start(known, spark_release()):
        return builder.getOrCreate()


def is_on_databricks() -> bool:
    """Whether the session is Databricks' own, with its settings and its end."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def errors_of_spark() -> tuple[type[Exception], ...]:
    """Return what ends a round or a copy, and not the job: errors of Spark, and of this package."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PravegaSparkError, OSError, PySparkException, Py4JError
