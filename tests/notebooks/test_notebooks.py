"""Each notebook is in Databricks source format and runs as plain Python; its assertions hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.py"))
PICTURES = {"kafka": 0, "retention": 3}
"""How many pictures a notebook has, if not one."""
LAST_LINES = {
    "exactly_once": "600 orders over 2 crashes, 600 copies, none twice",
    "interop": "838 flights, the same means from 5 engines",
    "kafka": "90 rows in 2 streams, each once, 9 keys",
    "quickstart": "all 1000 clicks read back, 143 of them copied exactly once",
    "retention": "10,452 events deleted, 1,756 kept for subscriber nyc/billing",
    "scaling": "1020 events over 2 splits and 2 merges, each key in order",
    "shop": "3 hours, a staff of 2, a film of 10 MB",
    "transactions": "30 moves booked, each once; alice, bob and the bank agree",
    "typed_and_sql": "839 flights as columns, natively and in SQL, each once",
}
"""What each notebook prints last, after its assertions have held."""
SMALL = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
RUN_EACH = """
import contextlib, pathlib, runpy, sys

for notebook in sys.argv[1:]:
    name = pathlib.Path(notebook).stem
    sys.argv = [notebook, "--root", str(pathlib.Path.cwd() / f"{name}-streams")]
    with open(f"{name}.txt", "w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(notebook, run_name="__main__")
"""
"""Runs notebooks one after the other as ``python notebook --root ...`` does, with one JVM."""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_databricks_source_format(notebook: Path) -> None:
    text = notebook.read_text()
    assert text.startswith("# Databricks notebook source\n")
    cells = text.split("# COMMAND ----------")
    assert len(cells) > 3
    assert all(cell.endswith("\n\n") for cell in cells[:-1])
    assert all(cell.startswith("\n\n") for cell in cells[1:])


def test_folder_has_a_notebook_for_each_last_line() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == sorted(LAST_LINES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one process has run all notebooks; with what each has printed."""
    folder = tmp_path_factory.mktemp("notebooks")
    options = " ".join(f"--conf {name}={value}" for name, value in SMALL.items())
    done = subprocess.run(
        [sys.executable, "-c", RUN_EACH, *map(str, NOTEBOOKS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_as_plain_python(notebook: Path, folder: Path) -> None:
    printed = (folder / f"{notebook.stem}.txt").read_text()
    assert printed.splitlines()[-1] == f"{notebook.stem}: {LAST_LINES[notebook.stem]}"
    pictures = list(folder.glob(f"pictures/{notebook.stem}-*.png"))
    assert len(pictures) == PICTURES.get(notebook.stem, 1)
