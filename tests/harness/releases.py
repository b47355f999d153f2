"""Processes of earlier releases, from the wheels in ``tests/fixtures/releases``.

A release runs in this environment's Python with the wheel's own code before the checkout's, so that
both use one root at the same time: ``run_release("0.1.0", SCRIPT, root)``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "fixtures/releases"


@cache
def _unpacked(version: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix=f"pravega-spark-{version}-")
    (wheel,) = FOLDER.glob(f"pravega_spark-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder.name)
    return folder


def environment(version: str, *more: Path) -> dict[str, str]:
    """Return the variables with which Python, and what it starts, imports that release.

    ``more`` are folders of other modules, such as that of the tests.
    """
    path = os.pathsep.join((_unpacked(version).name, *map(str, more)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def sources(version: str) -> str:
    """Return the text of all modules of that release."""
    modules = sorted(Path(_unpacked(version).name).rglob("*.py"))
    return "".join(module.read_text(encoding="utf-8") for module in modules)


def start_release(
    version: str, script: str, *arguments: object, more: tuple[Path, ...] = ()
) -> subprocess.Popen[str]:
    """Start a script under that release, with its output piped; the caller ends it.

    ``more`` is as in :func:`environment`.
    """
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_unpacked(version).name,
        env=environment(version, *more),
    )


def run_release(version: str, script: str, *arguments: object, more: tuple[Path, ...] = ()) -> str:
    """Run a script under that release; return what it printed. Fails with its standard error."""
    process = start_release(version, script, *arguments, more=more)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, f"{version} ended with {process.returncode}:\n{errors}"
    return output
