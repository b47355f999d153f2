"""Each notebook is in Databricks source format and runs as plain Python; its assertions hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))
PICTURES = {"retention": 3}
SMALL = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_databricks_source_format(notebook: Path) -> None:
    text = notebook.read_text()
    assert text.startswith("# Databricks notebook source\n")
    cells = text.split("# COMMAND ----------")
    assert len(cells) > 3
    assert all(cell.endswith("\n\n") for cell in cells[:-1])
    assert all(cell.startswith("\n\n") for cell in cells[1:])


@pytest.mark.spark
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_as_plain_python(notebook: Path, tmp_path: Path) -> None:
    options = " ".join(f"--conf {name}={value}" for name, value in SMALL.items())
    done = subprocess.run(
        [sys.executable, str(notebook), "--root", str(tmp_path / "streams")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1].startswith(f"{notebook.stem}: ")
    assert len(list(tmp_path.glob("pictures/*.png"))) == PICTURES.get(notebook.stem, 0)
