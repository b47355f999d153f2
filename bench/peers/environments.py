"""What no other target needs: ``make bench-peers`` fetches it into ``.peers``, which git ignores.

``python -m bench.peers.environments`` fetches what is missing, by pip and Maven. Where one of them
fails the run goes on without that peer, and says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".peers"
PAIMON = "pypaimon==2.1.0"
DUCKLAKE = "duckdb-extension-ducklake==1.5.5"
PRAVEGA = "0.13.0"
_DONE = "complete"
_SECONDS = 900
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencyManagement><dependencies><dependency>
    <groupId>com.google.protobuf</groupId><artifactId>protobuf-java</artifactId>
    <version>3.21.7</version>
  </dependency></dependencies></dependencyManagement>
  <dependencies><dependency>
    <groupId>io.pravega</groupId><artifactId>pravega-standalone</artifactId>
    <version>{PRAVEGA}</version>
    <exclusions><exclusion>
      <groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId>
    </exclusion></exclusions>
  </dependency></dependencies>
</project>
"""
"""Older classes of protobuf fail beside newer generated ones, and one logger is enough."""


def paimon() -> str | None:
    """Return the Python of the environment that has pypaimon; None if it was not made."""
    folder = FOLDER / "paimon"
    return str(folder / "bin/python") if (folder / _DONE).exists() else None


def ducklake() -> Path | None:
    """Return the package of DuckDB's extension; None if it was not fetched."""
    folder = FOLDER / "ducklake"
    return folder / "duckdb_extension_ducklake" if (folder / _DONE).exists() else None


def pravega() -> Path | None:
    """Return the folder of Pravega's jars; None if they were not fetched."""
    folder = FOLDER / "pravega"
    return folder / "jars" if (folder / _DONE).exists() else None


def _make_paimon(folder: Path) -> None:
    """In an environment of its own: it wants an older pyarrow than this project."""
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    _run(str(folder / "bin/python"), "-m", "pip", "install", "--quiet", PAIMON)


def _make_ducklake(folder: Path) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade")
    _run(*pip, "--target", str(folder), DUCKLAKE)


def _make_pravega(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM)
    maven = ("mvn", "--quiet", "--batch-mode", "--file", str(folder / "pom.xml"))
    _run(*maven, "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'jars'}")


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout)[-500:]}")


def fetch() -> None:
    """Fetch what is missing; say what could not be had."""
    for name, make in (
        ("paimon", _make_paimon),
        ("ducklake", _make_ducklake),
        ("pravega", _make_pravega),
    ):
        folder = FOLDER / name
        if (folder / _DONE).exists():
            continue
        print(f"fetching {name} into {folder}, once")
        try:
            make(folder)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{name} is not had: {error}", file=sys.stderr)
            continue
        (folder / _DONE).touch()


if __name__ == "__main__":
    fetch()
