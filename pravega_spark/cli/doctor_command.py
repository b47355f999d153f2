"""``pravega-spark doctor``: whether this machine and a root can work together."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pravega_spark.cli.output import TABLE, output_option, show_table, show_value
from pravega_spark.cli.root_option import config_path, new_root, root_option, root_profile
from pravega_spark.errors import PravegaSparkError
from pravega_spark.values.package import install_extra
from pravega_spark.values.units import time_text

if TYPE_CHECKING:
    from pravega_spark.engine.store import Store

GOOD, NOTE, BAD = "ok", "note", "fail"
_LIBRARIES = ("pyarrow", "numpy", "fsspec", "botocore", "pyspark", "delta-spark", "pandas")
_MOST_SKEW_SECONDS = 60
_JAVA_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and the way on if it is not good."""

    check: str
    status: str
    detail: str


@click.command("doctor")
@root_option
@output_option
def doctor(root: str | None, output: str) -> int:
    """Look at this machine and the root: versions, Java, storage, clocks, rights.

    Without a root it checks only the machine. A root that does not exist yet is probed in a
    folder that is removed again; nothing is created. The exit status is 1 if something fails.
    """
    findings = [*_machine()]
    try:
        url = root_profile(root).root
    except click.UsageError:
        findings.append(Finding("root", NOTE, "none named: pass --root to have it looked at"))
    else:
        findings += _root(root, url)
    if output == TABLE:
        show_table(
            ("CHECK", "STATUS", "DETAIL"),
            [(found.check, found.status, found.detail) for found in findings],
        )
    else:
        rows = [{"check": f.check, "status": f.status, "detail": f.detail} for f in findings]
        show_value(rows, output)
    return 1 if any(found.status == BAD for found in findings) else 0


# --------------------------------------------------------------------------------------- machine


def _machine() -> Iterator[Finding]:
    from pravega_spark import __version__

    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("pravega-spark", GOOD, f"{__version__}, {python}")
    versions = {name: _version(name) for name in _LIBRARIES}
    for name in ("pyarrow", "fsspec"):
        yield Finding(name, GOOD, versions[name] or "")
    if versions["botocore"] is None:
        yield Finding("s3", NOTE, f"not installed: {install_extra('s3')} for s3:// roots")
    yield from _spark(versions)
    path = config_path()
    yield Finding("profiles", GOOD, f"{path}{'' if path.exists() else ' (no such file)'}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _spark(versions: dict[str, str | None]) -> Iterator[Finding]:
    spark, delta = versions["pyspark"], versions["delta-spark"]
    if spark is None:
        yield Finding("spark", NOTE, f"not installed: {install_extra('spark')}")
        return
    yield Finding("spark", GOOD, f"pyspark {spark}, delta-spark {delta or 'not installed'}")
    yield _java()
    yield _delta_jar(delta)
    worker = os.environ.get("PYSPARK_PYTHON")
    if worker and shutil.which(worker) is None:
        yield Finding("worker python", BAD, f"PYSPARK_PYTHON={worker} is not a program")
    else:
        chosen = worker or f"{sys.executable}, by pravega.session()"
        yield Finding("worker python", GOOD, f"{chosen}; other sessions: set PYSPARK_PYTHON")


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    way_on = "Spark 4.2 needs Java 17 or newer: install a JDK, or set JAVA_HOME"
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return Finding("java", NOTE, f"{java} does not run. {way_on}")
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    major = int(match[1]) if match else 0
    if major < 17:
        return Finding("java", BAD, f"{java} is version {major or 'unknown'}. {way_on}")
    return Finding("java", GOOD, f"{java}, version {major}")


def _delta_jar(delta: str | None) -> Finding:
    if delta is None:
        return Finding("delta jar", NOTE, "pravega.session() needs delta-spark")
    folders = [Path.home() / ".ivy2.5.2" / "jars", Path.home() / ".ivy2" / "jars"]
    jars = [jar.name for folder in folders for jar in folder.glob("io.delta_delta-spark_*.jar")]
    if not jars:
        return Finding("delta jar", NOTE, "not in Ivy's cache yet: the first session fetches it")
    return Finding("delta jar", GOOD, ", ".join(sorted(set(jars))))


# ------------------------------------------------------------------------------------------ root


def _root(root: str | None, url: str) -> Iterator[Finding]:
    try:
        store = new_root(root).store
    except (PravegaSparkError, OSError) as error:
        yield Finding("root", BAD, f"{url}: {_line(error)}")
        return
    for check, look in (
        ("root", lambda: _marker(store)),
        ("exclusive creates", lambda: _creates(store)),
        ("clock", lambda: _clock(store)),
    ):
        yield _looked(check, look)


def _looked(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except (PravegaSparkError, OSError) as error:
        return Finding(check, BAD, _line(error))


def _marker(store: Store) -> Finding:
    """Look at the root's marker; a garbled one raises, and scopes without one have lost it."""
    from pravega_spark.engine.store.root_marker import missing_marker, read_root

    if read_root(store, refresh=True) is not None:
        return Finding("root", GOOD, f"{store.url} is a root")
    lost = str(missing_marker(store))
    if "holds scopes" in lost:
        return Finding("root", BAD, lost)
    return Finding("root", NOTE, f"{store.url} is not a root yet: the first scope makes it one")


def _creates(store: Store) -> Finding:
    """Race creates of the same names in a new folder, and delete it."""
    from pravega_spark.engine.store.probe import probe

    began = time.perf_counter()
    folder = Path(store.url.removeprefix("file://"))
    made = [path for path in (folder, *folder.parents) if store.is_local and not path.exists()]
    try:
        probe(store)
    finally:
        for path in made:  # only what the probe has made, and only if nobody uses it
            with contextlib.suppress(OSError):
                path.rmdir()
    took = time.perf_counter() - began
    detail = f"one winner in each race of threads; create, list and delete allowed ({took:.1f} s)"
    return Finding("exclusive creates", GOOD, detail)


def _clock(store: Store) -> Finding:
    if not store.has_clock:
        return Finding("clock", GOOD, "the storage has this machine's clock")
    skew = abs(store.time_ms() / 1_000 - time.time())
    if skew > _MOST_SKEW_SECONDS:
        text = f"differs from the storage's by {time_text(skew)}: set it; the storage's counts"
        return Finding("clock", NOTE, text)
    return Finding("clock", GOOD, f"within {skew:.1f} s of the storage's")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
