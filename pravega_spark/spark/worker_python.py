"""Chooses the program that Spark runs as Python, while its JVM starts."""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

WORKERS, DRIVER = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"
"""The environment variables that Spark takes the program from; the second one is for its driver."""
INTERPRETER = "PRAVEGA_SPARK_WORKER_PYTHON"
"""The environment variable that names the interpreter which the script runs."""
SCRIPT = str(Path(__file__).with_suffix(".sh"))


@contextmanager
def worker_python(settings: Mapping[str, str]) -> Iterator[None]:
    """Let Spark's Python processes run this interpreter, unless the user has chosen another one.

    Start Spark in the block. Each streaming query starts a Python process, and a session several.
    Spark lets them import PySpark from a zip archive without compiled code: 0.9 s of processor
    time for each, where the installed PySpark takes 0.25 s. So the JVM of a local Spark, if it is
    that of the installed PySpark and starts in the block, gets a script that takes the archive off
    the path and runs the interpreter. Other programs that this process starts later do not get it.
    ``settings`` are those of the session.
    """
    if "spark.pyspark.python" not in settings:
        os.environ.setdefault(WORKERS, sys.executable)
        os.environ.setdefault(DRIVER, os.environ[WORKERS])
    before = {name: os.environ[name] for name in (WORKERS, DRIVER) if name in os.environ}
    ours = [name for name, program in before.items() if _is_this_interpreter(program)]
    if not ours or has_jvm() or not _is_local(settings) or not _has_installed_pyspark():
        yield
        return
    os.environ.update({INTERPRETER: sys.executable}, **dict.fromkeys(ours, SCRIPT))
    try:
        yield
    finally:
        os.environ.update(before)
        del os.environ[INTERPRETER]


def has_jvm() -> bool:
    """Tell whether a JVM already runs (this process's or spark-submit's): it takes no more jars."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _is_this_interpreter(program: str) -> bool:
    """Tell whether a program is the running interpreter, by any path, in its environment."""
    found = shutil.which(program)
    return found is not None and _interpreter(found) == _interpreter(sys.executable)


def _interpreter(program: str) -> tuple[Path, Path | None]:
    """Return an interpreter's file, and the virtual environment that it runs in.

    The programs of virtual environments are links to one file; Python finds its environment by a
    file beside the link, or one folder above.
    """
    folder = Path(program).absolute().parent
    homes = (home.resolve() for home in (folder, folder.parent) if (home / "pyvenv.cfg").exists())
    return Path(program).resolve(), next(homes, None)


def _is_local(settings: Mapping[str, str]) -> bool:
    """Tell whether all of Spark will run in one JVM, which inherits the environment."""
    masters = (settings.get("spark.master", "local"), os.environ.get("MASTER", "local"))
    return os.name == "posix" and all(name.partition("[")[0] == "local" for name in masters)


def _has_installed_pyspark() -> bool:
    """Tell whether a new process of this interpreter finds the PySpark whose JVM will start."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    package = Path(pyspark.__file__).resolve().parent
    places = [sysconfig.get_path("purelib"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    found = (Path(place, package.name).resolve() for place in places if place)
    is_found = Path(_find_spark_home()).resolve() == package and package in found
    return is_found and os.access(SCRIPT, os.X_OK)
