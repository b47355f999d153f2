"""Why the JVM of Spark does not start: no Java, an old one, or jars that could not be fetched.

PySpark only says that the JVM has ended. What that JVM wrote to stderr is already there for people
to read, and not kept; so what it needs is looked at, after a start has failed. This module needs no
PySpark.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pravega_spark.errors import IllegalState
from pravega_spark.spark.jars import PACKAGES, minor, platform

IVY: Final = "spark.jars.ivy"
_JAVA_SECONDS = 20
_ENDED = "JAVA_GATEWAY_EXITED"
_REMOVED = "getSubject is not supported"
"""What PySpark says of a JVM that ended, and the Hadoop of Spark 4.0 on Java 24 and newer."""
_PAGE = "docs/closed-networks.md"


@dataclass(frozen=True, slots=True)
class Java:
    """The program that Spark's scripts start as Java, and its version; 0 if it does not run."""

    program: str
    version: int

    def is_newer(self, spark: str) -> bool:
        """Return whether a release of Spark does not name it yet: it may run, or not."""
        return self.version > platform(spark).java[1]

    def newer_text(self, spark: str) -> str:
        """Return what is to be said of a Java that is newer than those that Spark names."""
        oldest, newest = platform(spark).java
        return (
            f"{self.program} is version {self.version}, and Spark {minor(spark)} names Java "
            f"{oldest} to {newest}: if it does not start, set JAVA_HOME to one of these"
        )

    def problem(self, spark: str) -> str | None:
        """Return why a release of Spark does not run on it, and the way on; None if it may."""
        oldest, newest = platform(spark).java
        needs = f"Spark {minor(spark)} needs Java {oldest} to {newest}"
        way_on = "install a JDK, and set JAVA_HOME to its folder"
        if not self.version:
            return f"{self.program} does not run, and {needs}: {way_on}"
        if self.version < oldest:
            return f"{self.program} is version {self.version}, and {needs}: {way_on}"
        return None


def installed_java() -> Java:
    """Return the Java that Spark's scripts would start: that of ``JAVA_HOME``, or of ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return Java("java (on PATH, as JAVA_HOME is not set)", 0)
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Java(program, 0)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return Java(program, int(found[1]) if found else 0)


def ivy_folder(settings: Mapping[str, str], spark: str) -> Path:
    """Return the folder into which Spark's resolver puts the jars of packages."""
    named = settings.get(IVY, "").strip()
    if named:
        return Path(named, "jars")
    name = ".ivy2" if minor(spark) == "3.5" else ".ivy2.5.2"
    return Path(pwd.getpwuid(os.getuid()).pw_dir, name, "jars")  # as Java's user.home, not $HOME


def missing_packages(settings: Mapping[str, str], spark: str) -> list[str]:
    """Return the packages of the settings whose jars the resolver has not fetched yet."""
    folder = ivy_folder(settings, spark)
    names = [name.strip() for name in settings.get(PACKAGES, "").split(",") if name.strip()]
    return [name for name in names if not (folder / _jar(name)).exists()]


def _jar(package: str) -> str:
    group, _, artifact = package.partition(":")
    return f"{group}_{artifact.replace(':', '-')}.jar"


@contextmanager
def explained_start(settings: Mapping[str, str], spark: str, way_on: str = "") -> Iterator[None]:
    """Say what is missing if Spark's JVM does not start in the block, with these settings.

    Raises IllegalState for a Java that Spark cannot take, and for packages that were not fetched,
    against which ``way_on`` is what else helps.
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error, settings, spark, way_on)
        if reason is None:
            raise
        raise IllegalState(f"Spark did not start: {reason}.") from None


def _reason(error: Exception, settings: Mapping[str, str], spark: str, way_on: str) -> str | None:
    text = str(error)
    if _ENDED not in text and _REMOVED not in text:
        return None
    java = installed_java()
    problem = java.problem(spark)
    if problem is not None:
        return problem
    reasons = [java.newer_text(spark)] if java.is_newer(spark) else []
    missing = missing_packages(settings, spark)
    if missing and _ENDED in text:
        reasons.append(
            f"{', '.join(missing)} could not be fetched into {ivy_folder(settings, spark)}, as the "
            f"lines above say: name a mirror by spark.jars.ivySettings, or the jars themselves by "
            f"spark.jars ({_PAGE}){way_on}"
        )
    return "; or ".join(reasons) or None
