"""A Spark session that knows Delta, made or found; what the user set stays as it is."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pravega_spark.limits import DELTA_PACKAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pravega_spark.spark.groups.group_listener import GroupListener

logger = logging.getLogger(__name__)

PACKAGES = "spark.jars.packages"
EXTENSIONS = "spark.sql.extensions"
CATALOG = "spark.sql.catalog.spark_catalog"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
}
"""Set where the user did not: frames cross into Python as Arrow, and workers stay warm."""
_LISTENER = "_pravega_spark_acknowledger"
_HEAR_OUT_MS = 5_000
"""So long a process waits at its end for reports of its queries that are under way."""


def session(builder: Any = None, **conf: Any) -> SparkSession:
    """Return a Spark session with Delta Lake; the data source ``pravega`` is found without help.

    ``builder`` is a ``SparkSession.builder`` of yours, ``conf`` more settings of Spark
    (``session(**{"spark.ui.enabled": "false"})``). What is set anywhere, also in
    ``PYSPARK_SUBMIT_ARGS`` or ``spark-defaults.conf``, is kept: to packages and extensions Delta's
    are added. Python workers run this interpreter unless ``PYSPARK_PYTHON`` says otherwise.

    The session gets a listener, once, that tells reader groups of their queries' last batches.
    A session that runs already is returned; if it lacks Delta, a warning says how to get it
    (``format("pravega")`` itself needs no jar). On Databricks and with a remote Spark Connect
    server nothing is set but ``conf``. Raises ModuleNotFoundError without PySpark.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"session() needs PySpark and Delta ({error}): pip install 'pravega-spark[spark]'.",
            name=error.name,
        ) from error

    builder = SparkSession.builder if builder is None else builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    options = dict(getattr(builder, "_options", {}))
    if _is_elsewhere(options):
        found: SparkSession = builder.getOrCreate()
        return found
    if "spark.pyspark.python" not in options:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    if _has_jvm():
        return _listening(_join(builder))
    known = {**_defaults_file(), **_submitted(), **{k: str(v) for k, v in options.items()}}
    for key, value in _wanted(known).items():
        builder = builder.config(key, value)
    _add_submitted_package()
    return _listening(builder.getOrCreate())


def _listening(made: SparkSession) -> SparkSession:
    """Add the listener that tells reader groups of finished batches, unless it is there.

    Not with Spark Connect, where listeners run in the client, far from the storage perhaps.
    """
    from pravega_spark.spark.groups.group_listener import GroupListener

    if hasattr(made, "_jsparkSession") and not hasattr(made, _LISTENER):
        listener = GroupListener()
        setattr(made, _LISTENER, listener)
        made.streams.addListener(listener)
        atexit.register(_hear_out, made, listener)
    return made


def _hear_out(made: Any, listener: GroupListener) -> None:
    """Take what Spark has still to report, and no more: it must not call a process that ended."""
    with contextlib.suppress(Exception):
        made._jsc.sc().listenerBus().waitUntilEmpty(_HEAR_OUT_MS)
    with contextlib.suppress(Exception):
        made.streams.removeListener(listener)
    listener.tell_all()


def _is_elsewhere(options: dict[str, Any]) -> bool:
    """Tell whether somebody else configures the server: Databricks, or a remote Connect server."""
    remote = str(options.get("spark.remote", os.environ.get("SPARK_REMOTE", "")))
    return "DATABRICKS_RUNTIME_VERSION" in os.environ or remote.startswith("sc://")


def _has_jvm() -> bool:
    """Tell whether a JVM runs already, so that no jar can be added: ours, or spark-submit's."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _wanted(known: dict[str, str]) -> dict[str, str]:
    """Return the settings to make, given those that are made already."""
    wanted = {key: value for key, value in DEFAULTS.items() if key not in known}
    if not _names_delta(known.get("spark.jars", "")):
        wanted[PACKAGES] = _added(known.get(PACKAGES, ""), DELTA_PACKAGE)
    wanted[EXTENSIONS] = _added(known.get(EXTENSIONS, ""), DELTA_EXTENSION)
    if CATALOG not in known:
        wanted[CATALOG] = DELTA_CATALOG
    return wanted


def _names_delta(packages: str) -> bool:
    return "delta-spark" in packages


def _added(listed: str, item: str) -> str:
    """Return a list separated by commas with the item in it; another Delta package counts."""
    items = [part.strip() for part in listed.split(",") if part.strip()]
    has = item in items or (item == DELTA_PACKAGE and _names_delta(listed))
    return ",".join(items if has else [*items, item])


def _defaults_file() -> dict[str, str]:
    """Return what ``spark-defaults.conf`` sets; a setting of ours would silently replace it."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder is None and "SPARK_HOME" in os.environ:
        folder = os.path.join(os.environ["SPARK_HOME"], "conf")
    try:
        text = Path(folder or "", "spark-defaults.conf").read_text() if folder else ""
    except OSError:
        return {}
    lines = (line.strip().replace("=", " ", 1).split(None, 1) for line in text.splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[0][0] != "#"}


def _submitted() -> dict[str, str]:
    """Return the settings of ``PYSPARK_SUBMIT_ARGS``."""
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    found = {}
    for flag, value in pairwise(words):
        if flag in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            found[key] = setting
        elif flag == "--packages":
            found[PACKAGES] = value
        elif flag == "--jars":
            found["spark.jars"] = value
    return found


def _add_submitted_package() -> None:
    """Add Delta to ``--packages`` of PYSPARK_SUBMIT_ARGS, which beats the setting."""
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    if "--packages" in words[:-1]:
        place = words.index("--packages") + 1
        words[place] = _added(words[place], DELTA_PACKAGE)
        os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(words)


def _join(builder: Any) -> SparkSession:
    """Return the session of a JVM that runs already: its jars are what they are."""
    from pyspark import SparkContext
    from pyspark.conf import SparkConf

    SparkContext._ensure_initialized()
    has_delta = _has_class(SparkContext._jvm, DELTA_EXTENSION)
    if not has_delta:
        logger.warning(
            "this Spark has no Delta Lake, so format('delta') will not be found; format('pravega') "
            "works. Start it with --packages %s, or call session() first in a new process.",
            DELTA_PACKAGE,
        )
    if has_delta and SparkContext._active_spark_context is None:
        known = {**dict(SparkConf().getAll()), **getattr(builder, "_options", {})}
        for key, value in _wanted({**known, "spark.jars": "delta-spark"}).items():
            builder = builder.config(key, value)
    found: SparkSession = builder.getOrCreate()
    if has_delta and DELTA_EXTENSION not in str(found.conf.get(EXTENSIONS, "")):
        logger.warning(
            "this session was made without Delta's extension, so Delta's SQL (DESCRIBE HISTORY, "
            "and tables by name) is missing; format('delta') and format('pravega') work. Set "
            "%s=%s and %s=%s when it is made.",
            EXTENSIONS,
            DELTA_EXTENSION,
            CATALOG,
            DELTA_CATALOG,
        )
    return found


def _has_class(jvm: Any, name: str) -> bool:
    from py4j.protocol import Py4JError

    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, False)
    except Py4JError:
        return False
    return True
