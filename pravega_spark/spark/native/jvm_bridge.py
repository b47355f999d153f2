"""The objects of this folder's Java in Spark's JVM, and the session that they run in.

All of them live on the driver; tasks run Spark's Parquet reader alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import IllegalState
from pravega_spark.spark import native
from pravega_spark.spark.jvm.java_objects import java_object
from pravega_spark.spark.versions import KEEPS_PLANS, KNOWN_SPARKS, spark_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

logger = own_logger(__name__)


def chunk_reads(spark: SparkSession) -> Any:
    """Return the Java object that makes file indexes and sources, compiled once for each JVM.

    Raises IllegalState for a session without a JVM in this process (Spark Connect), and for a Spark
    whose internals are others than those that this version of the package knows.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise IllegalState(
            "native frames need a session whose JVM this process can reach, and this one is a "
            "client of Spark Connect: read the stream with format('pravega'), which works there."
        )
    from py4j.protocol import Py4JError

    try:
        return _object(spark, "ChunkReads")
    except (Py4JError, TypeError) as error:
        raise IllegalState(
            f"native frames use internals of Spark {KNOWN_SPARKS}, and this Spark, "
            f"{spark_release()}, has others: read the stream with format('pravega') on one of "
            f"these. The JVM says: {str(error)[:500]}"
        ) from error


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, as the thread that created it has it.

    Spark looks for Python data sources in the active session of a thread, and finds none without.
    """
    if hasattr(spark, "_jsparkSession"):
        gateway: Any = spark.sparkContext._gateway
        found = gateway.jvm.org.apache.spark.sql.classic.SparkSession
        found.setActiveSession(spark._jsparkSession)


def plan_each_action(spark: SparkSession) -> None:
    """Let each action of a session read the newest versions through ``format("pravega")``.

    Spark keeps what a Python source planned with its frame or view, but Spark 4.0 plans each scan
    anew. Does nothing there, for a session that has the rule, and for one whose JVM this process
    cannot reach; a Spark with other internals is logged, and there the first action of a frame
    decides what it reads.
    """
    from py4j.protocol import Py4JError

    if not KEEPS_PLANS or not hasattr(spark, "_jsparkSession"):
        return
    try:
        _object(spark, "FreshReads").addTo(spark._jsparkSession)
    except (Py4JError, TypeError) as error:
        logger.warning(
            "this Spark, %s, has other internals than %s: a frame or view of format('pravega') "
            "reads what its first action planned. Call load() for each action. The JVM says: %s",
            spark_release(),
            KNOWN_SPARKS,
            str(error)[:500],
            extra=log_fields("start session"),
        )


def _object(spark: SparkSession, name: str) -> Any:
    """Return the object of a class of this folder's Java; raises what the JVM raises."""
    gateway: Any = spark.sparkContext._gateway
    return java_object(gateway, native.__name__, name)


def accept_callbacks(spark: SparkSession) -> Any:
    """Let the JVM call objects of this process, as it does for ``foreachBatch``.

    Returns what has the connections of these calls in the JVM.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    start: Any = ensure_callback_server_started
    gateway: Any = spark.sparkContext._gateway
    start(gateway)
    return gateway.java_gateway_server


def java_schema(spark: SparkSession, schema: StructType) -> Any:
    """Return a schema as Spark's JVM has it."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
