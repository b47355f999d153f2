"""Objects of the package's Java in Spark's JVM.

No jar is needed: the JVM compiles the source once, with the compiler that Spark uses for its own
generated code. All of these objects live on the driver.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from pravega_spark.primitives.process_locks import new_lock

_KNOWN = "_pravega_spark_compiled"
_lock = new_lock()


def java_object(gateway: Any, package: str, name: str) -> Any:
    """Return the object of the class whose source is in a package; raises what the JVM raises.

    Each class is compiled once for a JVM: PySpark remembers its methods by the name.
    """
    with _lock:
        known: dict[str, Any] = gateway.__dict__.setdefault(_KNOWN, {})  # it has any attribute
        if name not in known:
            known[name] = _compile(gateway, package, name)
        return known[name]


def _compile(gateway: Any, package: str, name: str) -> Any:
    from pravega_spark.spark.versions import java_for  # listeners are importable without Spark

    jvm = gateway.jvm
    source = java_for(gateway, files(package).joinpath(f"{name}.java").read_text())
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    compiler.cook(source)
    loaded = compiler.getClassLoader().loadClass(f"pravega_spark.{name}")
    (constructor,) = loaded.getConstructors()
    return constructor.newInstance(gateway.new_array(jvm.Object, 0))
