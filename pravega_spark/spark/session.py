"""Creates a Spark session with Delta Lake, or returns the active one; keeps the user's settings."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.spark.worker_python import has_jvm, worker_python
from pravega_spark.values.limits import DELTA_PACKAGE
from pravega_spark.values.package import install_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = own_logger(__name__)

PACKAGES = "spark.jars.packages"
EXTENSIONS = "spark.sql.extensions"
CATALOG = "spark.sql.catalog.spark_catalog"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
}
"""Set unless the user sets them: Arrow transfer to Python, and reuse of Python workers."""
_LISTENER = "_pravega_spark_group_listener"


def session(builder: Any = None, **conf: Any) -> SparkSession:
    """Return a Spark session with Delta Lake, in which Spark finds the data source ``pravega``.

    ``builder`` is your own ``SparkSession.builder``; ``conf`` are further Spark settings
    (``session(**{"spark.ui.enabled": "false"})``). Existing settings are kept, including those of
    ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``; Delta is added to packages and extensions.
    Python workers run this interpreter unless ``PYSPARK_PYTHON`` is set to another one.

    The session gets one listener, which reports the last finished batches of its queries to their
    reader groups, and one rule, by which each action on a frame reads the newest versions. If a
    session is active it is returned; if it has no Delta, a warning says how to add it
    (``format("pravega")`` needs no jar). It is then active in the thread that called: Spark finds a
    Python data source by the active session of the thread that writes. On Databricks and with a
    remote Spark Connect server only ``conf`` is set. Raises ModuleNotFoundError without PySpark.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"session() needs PySpark and Delta ({error}): {install_extra('spark')}.",
            name=error.name,
        ) from error

    builder = SparkSession.builder if builder is None else builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    options = dict(getattr(builder, "_options", {}))
    if _is_configured_elsewhere(options):
        found: SparkSession = builder.getOrCreate()
        return found
    known = {**environment_settings(), **{k: str(v) for k, v in options.items()}}
    with worker_python(known):
        if has_jvm():
            return _completed(_attach(builder))
        for key, value in _missing_settings(known).items():
            builder = builder.config(key, value)
        _add_delta_to_submit_arguments()
        return _completed(builder.getOrCreate())


def _completed(made: SparkSession) -> SparkSession:
    """Give a session what reads of our sources need of it, and this thread the session."""
    from pravega_spark.spark.native.jvm_bridge import activate, plan_each_action

    activate(made)
    plan_each_action(made)
    return _with_group_listener(made)


def _with_group_listener(made: SparkSession) -> SparkSession:
    """Add the listener that reports finished batches to reader groups, unless the session has it.

    Not with Spark Connect: its listeners run in the client, which may not reach the storage.
    """
    from pravega_spark.spark.groups.group_listener import GroupListener

    if hasattr(made, "_jsparkSession") and not hasattr(made, _LISTENER):
        listener = GroupListener()
        setattr(made, _LISTENER, listener)
        made.streams.addListener(listener)
    return made


def _is_configured_elsewhere(options: dict[str, Any]) -> bool:
    """Tell whether the server is not ours to configure: Databricks or a remote Connect server."""
    remote = str(options.get("spark.remote", os.environ.get("SPARK_REMOTE", "")))
    return "DATABRICKS_RUNTIME_VERSION" in os.environ or remote.startswith("sc://")


def _missing_settings(known: dict[str, str]) -> dict[str, str]:
    """Return the settings to add to those that are known."""
    defaults = {**DEFAULTS, **_s3_endpoint()}
    missing = {key: value for key, value in defaults.items() if key not in known}
    if not _names_delta(known.get("spark.jars", "")):
        missing[PACKAGES] = _with_item(known.get(PACKAGES, ""), DELTA_PACKAGE)
    missing[EXTENSIONS] = _with_item(known.get(EXTENSIONS, ""), DELTA_EXTENSION)
    if CATALOG not in known:
        missing[CATALOG] = DELTA_CATALOG
    return missing


def _s3_endpoint() -> dict[str, str]:
    """Return how the JVM reaches the S3 server that the environment names to the clients of Python.

    Spark itself passes AWS_ACCESS_KEY_ID and its like on to the JVM, and no server's name needs to
    be secret. Such a server is asked for a bucket by path, as the clients of Python do.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return {}
    return {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def with_packages(packages: Sequence[str]) -> dict[str, str]:
    """Return the settings that add packages to those of the environment; none for a running JVM.

    A package that the environment names in any version, or as a jar, is left out.
    """
    known = environment_settings()
    listed = known.get(PACKAGES, "")
    has = f"{listed},{known.get('spark.jars', '')}"
    missing = [package for package in packages if package.split(":")[1] not in has]
    if not missing or has_jvm():
        return {}
    return {PACKAGES: ",".join(filter(None, (listed, *missing)))}


def _names_delta(packages: str) -> bool:
    return "delta-spark" in packages


def _with_item(listed: str, item: str) -> str:
    """Return a comma-separated list that has the item; another version of Delta counts as it."""
    items = [part.strip() for part in listed.split(",") if part.strip()]
    has = item in items or (item == DELTA_PACKAGE and _names_delta(listed))
    return ",".join(items if has else [*items, item])


def environment_settings() -> dict[str, str]:
    """Return the settings of ``spark-defaults.conf`` and ``PYSPARK_SUBMIT_ARGS``."""
    return {**_defaults_file(), **_submit_arguments()}


def _defaults_file() -> dict[str, str]:
    """Return the settings of ``spark-defaults.conf``, which a builder's setting would replace."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in os.environ:
        folder = os.path.join(os.environ["SPARK_HOME"], "conf")
    try:
        text = Path(folder or "", "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        return {}
    lines = (line.strip().replace("=", " ", 1).split(None, 1) for line in text.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[0][0] != "#"}


def _submit_arguments() -> dict[str, str]:
    """Return the settings of ``PYSPARK_SUBMIT_ARGS``."""
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    found = {}
    for flag, value in pairwise(words):
        if flag in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            found[key] = setting
        elif flag == "--master":
            found["spark.master"] = value
        elif flag == "--packages":
            found[PACKAGES] = value
        elif flag == "--jars":
            found["spark.jars"] = value
    return found


def _add_delta_to_submit_arguments() -> None:
    """Add Delta to ``--packages`` of PYSPARK_SUBMIT_ARGS, which overrides the setting."""
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    if "--packages" in words[:-1]:
        value = words.index("--packages") + 1
        words[value] = _with_item(words[value], DELTA_PACKAGE)
        os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(words)


def _attach(builder: Any) -> SparkSession:
    """Return a session of the JVM that already runs, with the jars that it has."""
    from pyspark import SparkContext
    from pyspark.conf import SparkConf

    SparkContext._ensure_initialized()
    has_delta = _has_class(SparkContext._jvm, DELTA_EXTENSION)
    if not has_delta:
        logger.warning(
            "this Spark has no Delta Lake: format('pravega') works, format('delta') does not. "
            "Start Spark with --packages %s, or call session() first in a new process.",
            DELTA_PACKAGE,
            extra=log_fields("start session"),
        )
    if has_delta and SparkContext._active_spark_context is None:
        known = {**dict(SparkConf().getAll()), **getattr(builder, "_options", {})}
        for key, value in _missing_settings({**known, "spark.jars": "delta-spark"}).items():
            builder = builder.config(key, value)
    found: SparkSession = builder.getOrCreate()
    if has_delta and DELTA_EXTENSION not in str(found.conf.get(EXTENSIONS, "")):
        logger.warning(
            "this session has no Delta extension: format('delta') and format('pravega') work, but "
            "Delta's SQL (DESCRIBE HISTORY, tables by name) does not. Create the session with "
            "%s=%s and %s=%s.",
            EXTENSIONS,
            DELTA_EXTENSION,
            CATALOG,
            DELTA_CATALOG,
            extra=log_fields("start session"),
        )
    return found


def _has_class(jvm: Any, name: str) -> bool:
    from py4j.protocol import Py4JError

    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, False)
    except Py4JError:
        return False
    return True
