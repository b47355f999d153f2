"""Each notebook is in Databricks source format and runs as plain Python; its assertions hold."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness import warm_workers

pytestmark = pytest.mark.extended

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
OF_THE_RUNTIME = {"numpy", "pandas", "pyarrow", "pyspark"}
SMALL = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
RUN_EACH = """
import contextlib, pathlib, runpy, sys

for notebook in sys.argv[1:]:
    name = pathlib.Path(notebook).stem
    sys.argv = [notebook]
    with open(f"{name}.txt", "w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(notebook, run_name="__main__")
"""
"""Runs notebooks one after the other as ``python notebook`` does, with one JVM and one root."""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_databricks_source_format(notebook: Path) -> None:
    text = notebook.read_text()
    assert text.startswith("# Databricks notebook source\n")
    cells = text.split("# COMMAND ----------")
    assert len(cells) > 3
    assert all(cell.endswith("\n\n") for cell in cells[:-1])
    assert all(cell.startswith("\n\n") for cell in cells[1:])


def cells(notebook: Path) -> list[str]:
    return [cell.strip("\n") for cell in notebook.read_text().split("# COMMAND ----------")]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_installs_what_it_imports_and_nothing_that_the_runtime_has(notebook: Path) -> None:
    install = cells(notebook)[2]
    begin = "# MAGIC %pip install --quiet $package $kept"
    assert install.startswith(begin)
    code = ast.parse(notebook.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(code)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    others = imported - set(sys.stdlib_module_names) - {"pravega_spark"}
    assert set(install.removeprefix(begin).split()) == others - OF_THE_RUNTIME


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_begins_as_all_of_them_do(notebook: Path) -> None:
    which, _, restart, shared = cells(notebook)[1:5]
    assert [which, restart] == [cells(NOTEBOOKS[0])[n] for n in (1, 3)]
    end = shared.index("what.show(truncate=False)")
    assert shared[:end] == cells(NOTEBOOKS[0])[4][:end]


class Widgets:
    """Those of Databricks, in which a user has written some values."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def text(self, name: str, default: str, label: str = "") -> None:
        self.values.setdefault(name, default)

    def get(self, name: str) -> str:
        return self.values[name]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_starts_on_databricks_as_its_widgets_say(notebook: Path) -> None:
    restarts: list[int] = []
    library = SimpleNamespace(restartPython=lambda: restarts.append(1))
    shown: list[object] = []
    given: dict[str, Any] = {
        "dbutils": SimpleNamespace(widgets=Widgets(root="s3://b/r"), library=library),
        "display": shown.append,
    }
    found = dict(given)
    which, _, restart, shared = cells(notebook)[1:5]
    exec(which, found)
    assert found["package"] == ".."
    own = {name: version(name) for name in ("numpy", "pandas", "pyarrow")}
    assert found["kept"].split() == [f"{name}=={found}" for name, found in own.items()]
    exec(restart, found)
    assert restarts == [1]
    again = dict(given)  # a new process
    exec(shared, again)
    assert again["root"] == "s3://b/r"
    again["show"]("a frame")
    assert shown == ["a frame"]
    given["dbutils"].widgets.values["root"] = ""
    exec(shared, again)
    assert again["root"] == again["ROOT"] == f"file://{tempfile.gettempdir()}/pravega-notebooks"


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
            **warm_workers.variables(),
            "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
            "TMPDIR": str(folder),  # where the notebooks have their root
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
