"""The URL by which Spark's JVM reads a root, whose clients are Hadoop's.

The clients of this package and those of Hadoop have names of their own for some storages, and
Hadoop's come in jars that the user adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pravega_spark.engine.store import open_store
from pravega_spark.errors import IllegalState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HADOOP_SCHEMES = {"s3": "s3a", "gcs": "gs"}
"""What Hadoop calls a storage, unless the session configures a client for our name of it."""
_PACKAGES = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
_GROUP = "org.apache.hadoop"


def hadoop_scheme(spark: SparkSession, root: str) -> str:
    """Return the scheme by which Spark reads a root, such as ``file`` or ``s3a``.

    Raises IllegalState if the session has no client for it, or runs in a locale that lacks a
    character of a local folder; a session of Spark Connect is not asked.
    """
    url = open_store(root).url
    scheme = url.partition("://")[0]
    known = _HADOOP_SCHEMES.get(scheme, scheme)
    if not hasattr(spark, "_jsparkSession"):
        return known
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    if configuration.get(f"fs.{scheme}.impl") is None:
        scheme = known
    _check_client(context._jvm, configuration, scheme, root)
    if scheme == "file":
        _check_locale(context._jvm, url)
    return scheme


def hadoop_url(spark: SparkSession, root: str) -> str:
    """Return a root as a URL for Spark, with the path as it is; errors as above."""
    return f"{hadoop_scheme(spark, root)}://{open_store(root).url.partition('://')[2].rstrip('/')}"


def _check_client(jvm: Any, configuration: Any, scheme: str, root: str) -> None:
    from py4j.protocol import Py4JJavaError

    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, configuration)
    except Py4JJavaError as error:
        version = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        package = f"{_GROUP}:{_PACKAGES[scheme]}:{version}" if scheme in _PACKAGES else ""
        way = f"--packages {package}" if package else "a package that has Hadoop's client for it"
        raise IllegalState(
            f"this session cannot read {root} itself: its JVM has no client for {scheme}://. Start "
            f"Spark with {way}, or read the stream with format('pravega'), which needs none. "
            f"The JVM says: {str(error.java_exception)[:200]}"
        ) from None


def _check_locale(jvm: Any, url: str) -> None:
    """Raise IllegalState for a folder that the JVM would look for under another name."""
    name = jvm.System.getProperty("sun.jnu.encoding")
    try:
        url.encode(name)
    except UnicodeEncodeError:
        raise IllegalState(
            f"this session's JVM cannot open {url}: its locale has the characters of {name} alone. "
            "Start it with LC_ALL=C.UTF-8 in the environment, or read the stream with "
            "format('pravega')."
        ) from None
    except LookupError:  # an encoding that Python lacks; the JVM will tell
        return
