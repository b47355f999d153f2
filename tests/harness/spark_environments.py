"""Environments of other versions: each has packages of its own over all else of ``.venv``.

``make setup`` makes that of the older Spark, for ``make test``; ``make spark-versions`` makes all.
A test that runs processes with two Sparks takes their interpreters and variables from here. It
fails where an environment is missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pravega_spark.spark.jars import delta_package
from tests.harness.jvm import clean_environment, variables

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).parents[2]
_MADE = "made"
_OF_VENV = ("fastapi", "tomli")


@dataclass(frozen=True)
class Spark:
    """One Spark: its PySpark, and other packages."""

    pyspark: str
    others: tuple[str, ...] = ()

    @property
    def delta(self) -> str:
        """The package of Delta's jar; "" if there is none for it."""
        return delta_package(self.pyspark) or ""

    @property
    def minor(self) -> str:
        return self.pyspark.rpartition(".")[0]

    @property
    def folder(self) -> Path:
        return _venv() / "spark" / (f"{self.pyspark}-lowest" if self.others else self.pyspark)

    @property
    def python(self) -> Path:
        """Its interpreter; raises FileNotFoundError if the environment is missing."""
        if not self.is_made():
            raise FileNotFoundError(
                f"{self.folder} is missing: python -m tests.harness.spark_environments"
            )
        return self.folder / "bin/python"

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables for processes of this Spark, without those of others."""
        python = str(self.python)
        return clean_environment(
            **{
                **variables(self.folder),
                "PYSPARK_PYTHON": python,
                "PYSPARK_DRIVER_PYTHON": python,
                "PYTHONPATH": str(REPOSITORY),
                **more,
            }
        )

    def is_made(self) -> bool:
        made = self.folder / _MADE
        return made.exists() and made.read_text() == "\n".join(self.others)


def _lowest_versions() -> tuple[str, ...]:
    """Return the lowest versions of what the package, and its extras but Spark's, need.

    Not that of FastAPI, which goes with a Starlette whose test client needs another client library.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    own = (*extras["s3"], *extras["metrics"], *extras["serve"])
    needed = " ".join((*project["dependencies"], *own))
    floors = re.findall(r"([\w-]+)>=([\d.]+)", needed)
    return tuple(f"{name}=={floor}" for name, floor in floors if name not in _OF_VENV)


SPARKS = {
    spark.minor: spark
    for spark in (
        Spark("3.5.9"),
        Spark("4.0.5"),
        Spark("4.1.4"),
        Spark("4.2.1"),
        Spark("4.3.0"),
    )
}
"""By minor version. ``.venv`` itself has the Spark of ``constraints.txt``."""
OLDER = SPARKS["4.0"]
"""The Spark beside the pinned one in ``make test``."""
LOWEST = Spark(SPARKS["4.1"].pyspark, _lowest_versions())
"""The lowest versions of all that the package needs, with the oldest Spark that has filters."""
NAMED = {**SPARKS, "older": OLDER, "lowest": LOWEST}
_START = """
from pravega_spark import session

session(**{"spark.master": "local[1]", "spark.ui.enabled": "false"}).stop()
"""
"""Starts Spark, which fetches the jar of its Delta for all later ones."""


def _venv() -> Path:
    """Return ``.venv``, also from inside one of its environments."""
    here = Path(sys.prefix)
    return here.parents[1] if here.parent.name == "spark" else here


def make(spark: Spark) -> None:
    """Make the environment of a Spark, unless it is there, and fetch its Delta."""
    if spark.is_made():
        return
    print(f"making {spark.folder}: 450 MB, once", flush=True)
    python = spark.folder / "bin/python"
    run_quietly(sys.executable, "-m", "venv", "--clear", "--without-pip", spark.folder)
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    builds = ("--build-constraint", REPOSITORY / "constraints.txt")
    run_quietly(*install, *builds, f"pyspark=={spark.pyspark}", *spark.others)
    (packages,) = _venv().resolve().glob("lib/python*/site-packages")
    (own,) = spark.folder.glob("lib/python*/site-packages")
    # What stands in .venv's own .pth files counts, too: the editable install of the package.
    (own / "over_venv.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    made = spark.folder / _MADE
    made.write_text("\n".join(spark.others))
    try:
        run_quietly(python, "-c", _START, environment=spark.environment())
    except BaseException:
        made.unlink()
        raise


def run_quietly(*command: str | Path, environment: dict[str, str] | None = None) -> None:
    """Run a command; print what it printed, and exit, if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(map(str, command))} failed")


if __name__ == "__main__":
    for name in sys.argv[1:] or NAMED:
        make(NAMED[name])
