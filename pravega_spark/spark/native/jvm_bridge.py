"""The classes of ``ChunkReads.java`` in Spark's JVM, and the session that they run in.

No jar is needed: the JVM compiles the source once, with the compiler that Spark uses for its own
generated code. All of these classes live on the driver; tasks run Spark's Parquet reader alone.
"""

from __future__ import annotations

from importlib.resources import files
from threading import Lock
from typing import TYPE_CHECKING, Any

from pravega_spark.errors import IllegalState
from pravega_spark.spark import native

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_SOURCE, _CLASS = "ChunkReads.java", "pravega_spark.ChunkReads"
_KNOWN = "_pravega_spark_chunk_reads"
_lock = Lock()


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
    context = spark.sparkContext
    with _lock:
        found = getattr(context, _KNOWN, None)
        if found is None:
            found = _compiled(context._gateway)
            setattr(context, _KNOWN, found)
    return found


def _compiled(gateway: Any) -> Any:
    from py4j.protocol import Py4JError

    jvm = gateway.jvm
    source = files(native).joinpath(_SOURCE).read_text()
    try:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.setSourceVersion(8)
        compiler.setTargetVersion(8)
        compiler.cook(source)
        loaded = compiler.getClassLoader().loadClass(_CLASS)
        (constructor,) = loaded.getConstructors()
        return constructor.newInstance(gateway.new_array(jvm.Object, 0))
    except (Py4JError, TypeError) as error:
        raise IllegalState(
            "native frames use internals of Spark 4.2, and this Spark has others: read the stream "
            f"with format('pravega'). The JVM says: {str(error)[:500]}"
        ) from error


def accept_callbacks(spark: SparkSession) -> None:
    """Let the JVM call objects of this process, as it does for ``foreachBatch``."""
    from pyspark.java_gateway import ensure_callback_server_started

    start: Any = ensure_callback_server_started
    start(spark.sparkContext._gateway)


def java_schema(spark: SparkSession, schema: StructType) -> Any:
    """Return a schema as Spark's JVM has it."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
