"""Creates a Spark session with Delta Lake, or returns the active one; keeps the user's settings."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.spark.jars import JARS, PACKAGES, delta_package, start_with_delta, with_versions
from pravega_spark.spark.jvm_start import explained_start
from pravega_spark.spark.worker_python import has_jvm, worker_python
from pravega_spark.values.checks import check_flag
from pravega_spark.values.package import install_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = own_logger(__name__)

EXTENSIONS = "spark.sql.extensions"
CATALOG = "spark.sql.catalog.spark_catalog"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DEFAULTS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
}
"""Set unless the user sets them: Arrow transfer to Python, and reuse of Python workers."""
_WITHOUT_DELTA = "; session(delta=False) needs none, and format('pravega') works with it"
"""What is added to the error of a jar that could not be fetched, if that is Delta's."""
_LISTENER = "_pravega_spark_group_listener"


def session(builder: Any = None, *, delta: Any = True, **conf: Any) -> SparkSession:
    """Return a Spark session with Delta Lake, in which Spark finds the data source ``pravega``.

    ``builder`` is your own ``SparkSession.builder``; ``conf`` are further Spark settings
    (``session(**{"spark.ui.enabled": "false"})``). Existing settings are kept, including those of
    ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``; Delta is added to packages and extensions.
    Python workers run this interpreter unless ``PYSPARK_PYTHON`` is set to another one.

    Delta's jar is the one for the installed PySpark; Spark fetches it once, unless the settings, or
    the ``jars`` of Spark, have one. Spark 4.3 has none yet: a warning says so, and Delta is left
    out. ``delta=False`` leaves it out, and fetches nothing: ``format("pravega")`` needs no jar. In
    ``spark.jars.packages`` those of Spark and Hadoop may stand without a version
    (``org.apache.hadoop:hadoop-aws``).

    The session gets one listener, which reports the last finished batches of its queries to their
    reader groups, and one rule, by which each action on a frame reads the newest versions. If a
    session is active it is returned; if it has no Delta, a warning says how to add it. It is then
    active in the thread that called: Spark finds a Python data source by the active session of the
    thread that writes. On Databricks and with a remote Spark Connect server only ``conf`` is set.
    Raises ModuleNotFoundError without PySpark, IllegalState if Spark cannot start without Java, or
    without a jar that could not be fetched.
    """
    try:
        from pyspark.sql import SparkSession

        from pravega_spark.spark.versions import spark_release
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"session() needs PySpark ({error}): {install_extra('spark')}.",
            name=error.name,
        ) from error

    check_flag("delta", delta)
    builder = copy.copy(SparkSession.builder if builder is None else builder)
    if hasattr(builder, "_options"):  # the caller's stay as they are, whatever comes of this
        builder._options = dict(builder._options)
    for key, value in conf.items():
        builder = builder.config(key, value)
    options = dict(getattr(builder, "_options", {}))
    if _is_configured_elsewhere(options):
        found: SparkSession = builder.getOrCreate()
        return found
    known = {**environment_settings(), **{k: str(v) for k, v in options.items()}}
    with worker_python(known):
        if has_jvm():
            return _completed(_attach(builder, delta))
        missing = _missing_settings(known, spark_release(), delta)
        for key, value in missing.items():
            builder = builder.config(key, value)
        taken = _names_delta(missing.get(PACKAGES, "")) and not _names_delta(
            known.get(PACKAGES, "")
        )
        known |= missing
        way_on = _WITHOUT_DELTA if taken else ""
        with explained_start(known, spark_release(), way_on), _submitted_packages(known):
            made = builder.getOrCreate()
        return _completed(made)


def _completed(made: SparkSession) -> SparkSession:
    """Give a session what reads of our sources need of it, and this thread the session."""
    from pravega_spark.spark.native.jvm_bridge import activate, plan_each_action
    from pravega_spark.spark.versions import HAS_DATA_SOURCES

    if not HAS_DATA_SOURCES:  # none of our sources reads there
        return made
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


def _missing_settings(known: Mapping[str, str], spark: str, delta: bool) -> dict[str, str]:
    """Return the settings to add to those that are known, for a release of Spark."""
    from pyspark.find_spark_home import _find_spark_home

    missing = _defaults(known)
    listed = with_versions(known.get(PACKAGES, ""), spark)
    package = None
    if delta and not (_names_delta(listed) or has_delta_jar(known, Path(_find_spark_home()))):
        package = delta_package(spark)
        if package is None:
            logger.warning(
                "Delta Lake is left out of the session, and format('delta') with it: %s. "
                "format('pravega') needs no jar.",
                start_with_delta(spark),
                extra=log_fields("start session"),
            )
            delta = False
    packages = ",".join(filter(None, (listed, package)))
    if packages != known.get(PACKAGES, ""):
        missing[PACKAGES] = packages
    return {**missing, **(_delta_settings(known) if delta else {})}


def _defaults(known: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that need no jar, unless the user sets them."""
    wanted = {**DEFAULTS, **_s3_endpoint()}
    return {key: value for key, value in wanted.items() if key not in known}


def _delta_settings(known: Mapping[str, str]) -> dict[str, str]:
    """Return the extension and the catalog of Delta, where the user's are none of Delta's."""
    listed = [part.strip() for part in known.get(EXTENSIONS, "").split(",") if part.strip()]
    own = [] if DELTA_EXTENSION in listed else [DELTA_EXTENSION]
    catalog = {} if CATALOG in known else {CATALOG: DELTA_CATALOG}
    return {EXTENSIONS: ",".join([*listed, *own]), **catalog}


def has_delta_jar(known: Mapping[str, str], home: Path) -> bool:
    """Tell whether Delta's jar is named by a setting, or among those of Spark's home."""
    named = (known.get(JARS, ""), known.get("spark.driver.extraClassPath", ""))
    return any(map(_names_delta, named)) or any((home / "jars").glob("*delta-spark*.jar"))


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
    has = f"{listed},{known.get(JARS, '')}"
    missing = [package for package in packages if package.split(":")[1] not in has]
    if not missing or has_jvm():
        return {}
    return {PACKAGES: ",".join(filter(None, (listed, *missing)))}


def _names_delta(packages: str) -> bool:
    return "delta-spark" in packages


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
            found[JARS] = value
    return found


@contextmanager
def _submitted_packages(known: Mapping[str, str]) -> Iterator[None]:
    """Have ``--packages`` of PYSPARK_SUBMIT_ARGS, which overrides the setting, name all of it."""
    before = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    words = shlex.split(before)
    if "--packages" not in words[:-1]:
        yield
        return
    words[words.index("--packages") + 1] = known[PACKAGES]
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(words)
    try:
        yield
    finally:
        os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _attach(builder: Any, delta: bool) -> SparkSession:
    """Return a session of the JVM that already runs, with the jars that it has."""
    from pyspark import SparkContext
    from pyspark.conf import SparkConf

    from pravega_spark.spark.versions import spark_release

    SparkContext._ensure_initialized()
    has_delta = _has_class(SparkContext._jvm, DELTA_EXTENSION)
    if delta and not has_delta:
        logger.warning(
            "this Spark has no Delta Lake: format('pravega') works, format('delta') does not; %s.",
            start_with_delta(spark_release()),
            extra=log_fields("start session"),
        )
    if has_delta and SparkContext._active_spark_context is None:
        known = {**dict(SparkConf().getAll()), **getattr(builder, "_options", {})}
        of_delta = _delta_settings(known) if delta else {}
        for key, value in {**_defaults(known), **of_delta}.items():
            builder = builder.config(key, value)
    found: SparkSession = builder.getOrCreate()
    if delta and has_delta and DELTA_EXTENSION not in str(found.conf.get(EXTENSIONS, "")):
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
