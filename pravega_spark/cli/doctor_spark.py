"""What ``pravega-spark doctor`` says about Spark on this machine: versions, Java and jars.

It imports no PySpark: versions are those of the installed packages, and jars are looked for where
Spark would.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pravega_spark.spark.jars import (
    PACKAGES,
    PLATFORMS,
    delta_fits,
    delta_package,
    installed_delta,
    minor,
    numbers,
    start_with_delta,
)
from pravega_spark.spark.jvm_start import installed_java, ivy_folder, missing_packages
from pravega_spark.spark.session import environment_settings, has_delta_jar
from pravega_spark.values.package import install_extra

GOOD, NOTE, BAD = "ok", "note", "fail"
_PAGE = "docs/closed-networks.md"
_FIRST_WITH_SOURCES = "4.0"
_WORKER_SECONDS = 60
_PANDAS_TOO_NEW = (3,)
"""PySpark 4.2 and 4.3 say that they do not fully support this pandas."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and the way on if it is not good."""

    check: str
    status: str
    detail: str


def installed_version(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def spark_findings() -> Iterator[Finding]:
    """Look at Spark, and what must fit to it; nothing but a note if there is none."""
    home = _pyspark_home()
    spark = installed_version("pyspark") or _version_of_files(home)
    if home is None or spark is None:
        yield Finding("spark", NOTE, f"not installed: {install_extra('spark')}")
        return
    yield _spark(spark)
    yield from _other_home(spark)
    yield _java(spark)
    yield from _delta(spark, home)
    yield library("pandas")
    worker = os.environ.get("PYSPARK_PYTHON")
    problem = _worker_problem(worker) if worker else None
    if problem:
        yield Finding("worker python", BAD, f"PYSPARK_PYTHON={worker} {problem}")
    else:
        chosen = worker or f"{sys.executable}, by pravega.session()"
        yield Finding("worker python", GOOD, f"{chosen}; other sessions: set PYSPARK_PYTHON")


def _worker_problem(worker: str) -> str | None:
    """Return why an interpreter cannot run the tasks of this one's sessions; None if it can."""
    if shutil.which(worker) is None:
        return "is not a program"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    code = "import sys; print('%d.%d' % sys.version_info[:2], flush=True)"
    code += "; import pravega_spark.spark.source"
    try:
        done = subprocess.run(
            [worker, "-c", code],
            capture_output=True,
            text=True,
            timeout=_WORKER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    version = done.stdout.strip()
    if version and version != here:
        return f"is Python {version}, and this is {here}: Spark needs the same on both sides"
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        return f"cannot run the package: {last}. Set it to {sys.executable}"
    return None


def _pyspark_home() -> Path | None:
    found = importlib.util.find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else None


def _version_of_files(home: Path | None) -> str | None:
    """Return the version of a PySpark that pip does not know, such as that of ``SPARK_HOME``."""
    try:
        text = Path(home or "", "version.py").read_text()
    except OSError:
        return None
    found = re.search(r"__version__\D*= *[\"'](.+?)[\"']", text)
    return found[1] if found else None


def _spark(spark: str) -> Finding:
    known = list(PLATFORMS)
    if minor(spark) in known and numbers(spark) >= numbers(_FIRST_WITH_SOURCES):
        return Finding("spark", GOOD, f"pyspark {spark}")
    text = f"format('pravega') is for Spark {_FIRST_WITH_SOURCES} to {known[-1]}"
    if numbers(spark) < numbers(known[0]):
        return Finding("spark", BAD, f"pyspark {spark}: {text}; {install_extra('spark')}")
    return Finding("spark", NOTE, f"pyspark {spark}: {text}")


def _other_home(spark: str) -> Iterator[Finding]:
    """Yield a finding if SPARK_HOME has the JVM of another release than PySpark."""
    home = os.environ.get("SPARK_HOME")
    if not home:
        return
    cores = [path.stem.rpartition("-")[2] for path in Path(home, "jars").glob("spark-core_*.jar")]
    if cores != [spark]:
        has = f"Spark {', '.join(cores)}" if cores else "no Spark"
        way_on = f"unset it, or install the PySpark of its release; PySpark is {spark}"
        yield Finding("SPARK_HOME", BAD if cores else NOTE, f"{home} has {has}: {way_on}")


def _java(spark: str) -> Finding:
    java = installed_java()
    problem = java.problem(spark)
    if problem is not None:
        return Finding("java", BAD if java.version else NOTE, problem)
    if java.is_newer(spark):
        return Finding("java", NOTE, java.newer_text(spark))
    return Finding("java", GOOD, f"{java.program}, version {java.version}")


def _delta(spark: str, home: Path) -> Iterator[Finding]:
    python, package = installed_delta(), delta_package(spark)
    if python is not None and delta_fits(spark, python):
        yield Finding("delta-spark", GOOD, f"{python}, for Spark {minor(spark)}")
    elif python is not None:
        way_on = f"session() takes {package}" if package else "session() leaves Delta out"
        text = f"{python} has no jar for Spark {minor(spark)}: {way_on}"
        yield Finding("delta-spark", NOTE, text)
    known = environment_settings()
    if has_delta_jar(known, Path(os.environ.get("SPARK_HOME") or home)):
        yield Finding("delta jar", GOOD, "named by Spark's settings, or among Spark's jars")
    elif package is None:
        text = f"{start_with_delta(spark)}. format('pravega') needs none"
        yield Finding("delta jar", NOTE, text)
    elif missing_packages({**known, PACKAGES: package}, spark):
        text = (
            f"{package} is not in {ivy_folder(known, spark)} yet: the first session() fetches it; "
            f"session(delta=False) needs none. Without the internet: {_PAGE}"
        )
        yield Finding("delta jar", NOTE, text)
    else:
        yield Finding("delta jar", GOOD, f"{package} is in {ivy_folder(known, spark)}")


def library(name: str) -> Finding:
    """Compare a library with what the metadata of PySpark ask for, if that is installed."""
    found, spark = installed_version(name), installed_version("pyspark")
    if found is None:
        text = f"not installed; the jobs on Spark need it: {install_extra('jobs')}"
        return Finding(name, NOTE, text)
    asked = importlib.metadata.requires("pyspark") or [] if spark is not None else []
    least = next((m[1] for line in asked if (m := re.match(rf"{name}>=([\d.]+)", line))), None)
    if least is not None and numbers(found) < numbers(least):
        return Finding(name, BAD, f"{found}, and pyspark {spark} needs {least} or newer")
    if name == "pandas" and numbers(found) >= _PANDAS_TOO_NEW:
        return Finding(name, NOTE, f"{found}, of which PySpark warns: install one before 3")
    return Finding(name, GOOD, found)
